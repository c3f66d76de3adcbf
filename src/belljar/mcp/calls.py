"""A call of a tool: are its arguments sound, what happens while its run goes on, and its result in words and
in structure."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.server import ServerRequestContext

from belljar.client import AsyncClient, Event, Result
from belljar.errors import BadRequest, BelljarError
from belljar.mcp.resources import link, uri_of

__all__ = [
    "Context",
    "Progress",
    "ToolCall",
    "Waiting",
    "answer",
    "cancelled_together",
    "check",
    "follow",
    "run_view",
    "said",
    "skill_view",
    "told",
]

Context = ServerRequestContext[dict[str, Any], Any]

MAX_CHARS = 16_000
"""Of a stream in the text of a result; the structure has all that was kept."""
MAX_LINKS = 50
OUTPUT_EVERY_S = 0.25
"""Progress that only says that output came is told no more often."""

_OUTPUT = ("stdout", "stderr")
_OF_A_RUN = (
    "verdict",
    "exit_code",
    "signal",
    "timed_out",
    "stdout",
    "stderr",
    "truncated",
    "duration_ms",
    "error_code",
    "error_reason",
)
_PNG = "image/png"
_Last = TypeVar("_Last")


class ToolCall(NamedTuple):
    ctx: Context
    client: AsyncClient
    """With the caller's own token."""
    params: types.CallToolRequestParams

    @property
    def given(self) -> Mapping[str, Any]:
        return self.params.arguments or {}


def check(given: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """
    Raises:
        BadRequest: the arguments are not what the tool's schema asks for.
    """
    fault = next(iter(Draft202012Validator(schema).iter_errors(given)), None)
    if fault is not None:
        place = ".".join(["arguments", *map(str, fault.absolute_path)])
        raise BadRequest(f"{place}: {fault.message[:300]}", field=place)


# While it goes on


class Waiting(NamedTuple):
    """A run that goes no further until a person has decided."""

    shown: Mapping[str, Any]
    """What there is to decide on, as the service shows it."""


async def follow(
    progress: Progress, client: AsyncClient, events: AsyncGenerator[Event | _Last, None]
) -> _Last | Waiting:
    """The last thing that comes, when the run is over, or that it waits. Who cancels the call cancels it."""
    last: Event | _Last | None = None
    async with aclosing(events), cancelled_together(client) as run:
        async for last in events:
            if isinstance(last, Event):
                run.exec_id = run.exec_id or str(last.data.get("exec_id", ""))
                await progress.tell(last)
                if last.kind == "pending_approval":
                    shown = await client.approvals.show(str(last.data["approval_id"]))
                    if shown["state"] == "waiting":
                        return Waiting(shown)
    assert last is not None, "a stream ends with a result"
    assert not isinstance(last, Event), "and with nothing else"
    return last


class _Run:
    def __init__(self, exec_id: str) -> None:
        self.exec_id = exec_id


@asynccontextmanager
async def cancelled_together(client: AsyncClient, exec_id: str = "") -> AsyncGenerator[_Run, None]:
    """Who cancels the block cancels the run, as soon as it has an id."""
    run = _Run(exec_id)
    try:
        yield run
    except asyncio.CancelledError:
        if run.exec_id:
            with anyio.CancelScope(shield=True), suppress(BelljarError):
                await client.cancel(run.exec_id)
        raise


class Progress:
    """Of one call. What was told once is not told again when its run is followed anew."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._told = 0
        self._written = dict.fromkeys(_OUTPUT, 0)
        self._next_at = 0.0

    async def tell(self, event: Event) -> None:
        if event.number <= self._told:
            return
        self._told = event.number
        now = asyncio.get_running_loop().time()
        if event.kind not in _OUTPUT:
            return await self._ctx.session.report_progress(event.number, None, event.kind)
        self._written[event.kind] += len(event.output)
        if now >= self._next_at:
            self._next_at = now + OUTPUT_EVERY_S
            sizes = ", ".join(f"{size} bytes of {name}" for name, size in self._written.items() if size)
            await self._ctx.session.report_progress(event.number, None, sizes)


# When it is over


def run_view(result: Result) -> dict[str, Any]:
    answer = result.answer
    files = [asdict(file) for file in result.outputs]
    return {
        "exec_id": result.id,
        **{name: answer[name] for name in _OF_A_RUN},
        "artifacts": _named(result.id, files),
    }


def skill_view(answer: Mapping[str, Any]) -> dict[str, Any]:
    exec_id = answer["exec_id"]
    own = {name: answer[name] for name in ("status", "reason", "outputs")}
    return {
        "exec_id": exec_id,
        **own,
        **{name: answer[name] for name in _OF_A_RUN},
        "artifacts": _named(exec_id, answer["artifacts"]),
    }


def _named(exec_id: str, files: Any) -> list[dict[str, Any]]:
    return [{**file, "uri": uri_of(exec_id, file["path"])} for file in files]


def told(view: Mapping[str, Any]) -> types.CallToolResult:
    """A program that failed is a result like any other: the model reads it and tries again."""
    how = f"exited with {view['exit_code']}" if view["verdict"] == "exited" else view["verdict"]
    lines = [f"{how} after {view['duration_ms']} ms (run {view['exec_id']})"]
    if view["error_code"]:
        lines.append(f"{view['error_code']}: {view['error_reason']}")
    if view.get("reason") not in (None, view["error_reason"]):
        lines.append(f"its outputs are not as promised: {view['reason']}")
    results = view.get("results", ())
    shown = "\n".join(str(forms["text/plain"]) for forms in results if "text/plain" in forms)
    parts = {**{name: view[name] for name in _OUTPUT}, "results": shown}
    lines += [f"--- {name}\n{_shortened(text)}" for name, text in parts.items() if text]
    content: list[types.ContentBlock] = [types.TextContent(type="text", text="\n".join(lines))]
    content += [
        types.ImageContent(type="image", data=forms[_PNG], mime_type=_PNG)
        for forms in results
        if _is_png(forms.get(_PNG))
    ]
    content += [link(file) for file in view["artifacts"][:MAX_LINKS]]
    return types.CallToolResult(content=content, structured_content=dict(view))


def _is_png(given: object) -> bool:
    """A program may say of anything that it is one."""
    try:
        return isinstance(given, str) and base64.b64decode(given, validate=True).startswith(b"\x89PNG")
    except ValueError:
        return False


def answer(view: Mapping[str, Any], text: str) -> types.CallToolResult:
    """Of a tool that runs nothing."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=dict(view)
    )


def said(error: BelljarError) -> types.CallToolResult:
    where = f" ({error.field})" if error.field else ""
    text = f"{error.code}{where}: {error.message}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    head, tail = text[: MAX_CHARS * 3 // 4], text[-MAX_CHARS // 4 :]
    return f"{head}\n… {len(text) - len(head) - len(tail)} characters left out …\n{tail}"
