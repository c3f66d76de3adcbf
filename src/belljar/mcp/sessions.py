"""`session.start`, `session.run`, `session.files` and `session.stop`: a jar that is kept between calls."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types

from belljar.client import Event, Result
from belljar.errors import BadRequest
from belljar.mcp.approving import run_to_end
from belljar.mcp.calls import ToolCall, answer, run_view, told
from belljar.mcp.schemas import COUNT, FLAG, PROGRAM, TEXT, TEXTS, inputs, outputs, run_outputs

if TYPE_CHECKING:
    from belljar.client.sessions import AsyncSessionFiles, SessionOptions, SessionRunOptions

__all__ = ["FILES", "RUN", "START", "STOP", "files", "run", "start", "stop"]

MAX_READ = 1 << 20
"""Of a file in one answer; `start` goes on from there."""

_MAX_START = 1 << 50
_SESSION_ID = {"session_id": {**TEXT, "description": "What session.start answered."}}
_FACTS = outputs(session_id=TEXT, project_id=TEXT, state=TEXT, reason=TEXT)
_HELD = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

START = types.Tool(
    name="session.start",
    title="Start a session",
    description=(
        "Start a sealed jar without network that is kept between calls: its files stay, and the variables "
        "of Python code that is run in a context. It ends by session.stop, or when nobody uses it."
    ),
    input_schema=inputs(
        {
            "project_id": TEXT,
            "env": {**TEXTS, "description": "Variables of everything that is run in it."},
            "idle_s": {"type": "number", "description": "It ends when nobody used it for so long."},
            "max_age_s": {"type": "number"},
            "snapshot": {**TEXT, "description": "Digest of the snapshot whose files it begins with."},
        }
    ),
    output_schema=_FACTS,
    annotations=_HELD,
)
RUN = types.Tool(
    name="session.run",
    title="Run a program in a session",
    description=(
        "Run a program in a session; get what it printed and the files it left. Python code with a `context` "
        "has the variables of what was run in it before, and shows the value of its last expression."
    ),
    input_schema=inputs(
        {
            **_SESSION_ID,
            **PROGRAM,
            "context": {**TEXT, "description": "A name of your own, for Python that keeps its variables."},
        },
        "session_id",
        "code",
    ),
    output_schema=run_outputs(session_id=TEXT, results={"type": "array", "items": {"type": "object"}}),
    annotations=_HELD,
)
FILES = types.Tool(
    name="session.files",
    title="Files of a session",
    description="List, read or write files of a session, by paths relative to where its programs start.",
    input_schema=inputs(
        {
            **_SESSION_ID,
            "action": {**TEXT, "enum": ["list", "read", "write"]},
            "path": {**TEXT, "description": "Needed to read and write; of a folder to list, all without."},
            "area": {**TEXT, "enum": ["work", "artifacts", "inputs"], "default": "work"},
            "depth": {**COUNT, "minimum": 1, "description": "How deep to list."},
            "start": {**COUNT, "minimum": 0, "maximum": _MAX_START, "description": "The byte to read from."},
            "content": {**TEXT, "description": "The text to write."},
            "content_b64": {**TEXT, "description": "Instead of text, the bytes to write."},
        },
        "session_id",
        "action",
    ),
    output_schema={
        "type": "object",
        "properties": {
            "path": TEXT,
            "area": TEXT,
            "files": {"type": "array", "items": {"type": "object"}},
            "content": TEXT,
            "content_b64": TEXT,
            "size": {**COUNT, "description": "Bytes that were read or written."},
            "more": {**FLAG, "description": "Whether the file may go on after what was read."},
        },
        "required": ["path", "area"],
    },
    annotations=types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False),
)
STOP = types.Tool(
    name="session.stop",
    title="Stop a session",
    description="End a session and everything in it. What its runs left can still be read as resources.",
    input_schema=inputs(_SESSION_ID, "session_id"),
    output_schema=_FACTS,
    annotations=types.ToolAnnotations(read_only_hint=False, idempotent_hint=True, open_world_hint=False),
)


async def start(call: ToolCall) -> types.CallToolResult:
    session = await call.client.start_session(**cast("SessionOptions", call.given))
    return _facts(await session.info())


async def run(call: ToolCall) -> types.CallToolResult:
    given = call.given
    session = await call.client.get_session(given["session_id"])
    own = {"session_id", "code", "language", "request_id"}
    options = cast("SessionRunOptions", {name: given[name] for name in given.keys() - own})

    def begin(request_id: str) -> AsyncGenerator[Event | Result, None]:
        named: SessionRunOptions = {**options, "request_id": request_id}
        return session.stream(given["code"], given.get("language", "python"), **named)

    result = await run_to_end(call, begin)
    shown = [dict(forms) for forms in result.results]
    return told({**run_view(result), "session_id": session.id, "results": shown})


async def files(call: ToolCall) -> types.CallToolResult:
    given = call.given
    there = (await call.client.get_session(given["session_id"])).files
    place = {"path": given.get("path", ""), "area": given.get("area", "work")}
    if given["action"] == "list":
        found = await there.list(depth=int(given.get("depth", 1)), **place)
        return answer({**place, "files": found}, "\n".join(map(_line, found)) or "there are no files")
    if given["action"] == "read":
        return await _read(there, int(given.get("start", 0)), **place)
    content = _content(given)
    await there.write(content=content, **place)
    return answer({**place, "size": len(content)}, f"{len(content)} bytes written")


async def stop(call: ToolCall) -> types.CallToolResult:
    session = await call.client.get_session(call.given["session_id"])
    await session.close()
    return _facts(await session.info())


def _facts(facts: Mapping[str, Any]) -> types.CallToolResult:
    return answer(facts, f"session {facts['session_id']} is {facts['state']}")


async def _read(there: AsyncSessionFiles, start: int, *, path: str, area: str) -> types.CallToolResult:
    try:
        data = await there.read(path, start=start, end=start + MAX_READ, area=area)
    except BadRequest as error:
        if error.field != "Range":
            raise
        data = b""  # there is nothing after `start`
    view = {"path": path, "area": area, "size": len(data), "more": len(data) == MAX_READ}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        encoded = base64.b64encode(data).decode("ascii")
        return answer({**view, "content_b64": encoded}, f"{len(data)} bytes that are not text")
    return answer({**view, "content": text}, text)


def _content(given: Mapping[str, Any]) -> bytes:
    """
    Raises:
        BadRequest: there is none, or it cannot be read.
    """
    if ("content" in given) == ("content_b64" in given):
        raise BadRequest("give either content or content_b64", field="arguments.content")
    try:
        if "content" in given:
            return str(given["content"]).encode()
        return base64.b64decode(given["content_b64"], validate=True)
    except ValueError as error:
        raise BadRequest(f"this is not content: {error}", field="arguments.content") from error


def _line(file: Mapping[str, Any]) -> str:
    return f"{file['path']}/" if file["kind"] == "directory" else f"{file['path']} ({file['size']} bytes)"
