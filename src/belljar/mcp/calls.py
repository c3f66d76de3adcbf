"""A call of a tool, from its first event to its result in words and in structure.

A run that waits for a person would be one more kind of event in `follow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Any, TypeVar

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.server import ServerRequestContext

from belljar.client import AsyncClient, Event, Result
from belljar.errors import BadRequest, BelljarError
from belljar.mcp.resources import link, uri_of

__all__ = ["Context", "check", "follow", "run_view", "said", "skill_view", "told"]

Context = ServerRequestContext[dict[str, Any], Any]

MAX_CHARS = 16_000
"""Of a stream in the text of a result; the structure has all that was kept."""
MAX_LINKS = 50
OUTPUT_EVERY_S = 0.25
"""Progress that only says that output came is told no more often."""

_OUTPUT = ("stdout", "stderr")
_OF_A_RUN = ("verdict", "exit_code", "signal", "timed_out", "stdout", "stderr", "truncated", "duration_ms")
_Last = TypeVar("_Last")


def check(given: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """
    Raises:
        BadRequest: the arguments are not what the tool's schema asks for.
    """
    fault = next(iter(Draft202012Validator(schema).iter_errors(given)), None)
    if fault is not None:
        place = ".".join(["arguments", *map(str, fault.absolute_path)])
        raise BadRequest(f"{place}: {fault.message[:300]}", field=place)


async def follow(
    ctx: Context, client: AsyncClient, events: AsyncGenerator[Event | _Last, None]
) -> Event | _Last:
    """The last thing that comes, when the run is over. Who cancels the call cancels the run."""
    progress = _Progress(ctx)
    exec_id, last = "", None
    try:
        async with aclosing(events):
            async for last in events:
                if isinstance(last, Event):
                    exec_id = exec_id or str(last.data.get("exec_id", ""))
                    await progress.tell(last)
    except asyncio.CancelledError:
        if exec_id:
            with anyio.CancelScope(shield=True), suppress(BelljarError):
                await client.cancel(exec_id)
        raise
    assert last is not None, "a stream ends with a result"
    return last


class _Progress:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._written = dict.fromkeys(_OUTPUT, 0)
        self._next_at = 0.0

    async def tell(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        if event.kind not in _OUTPUT:
            return await self._ctx.session.report_progress(event.number, None, event.kind)
        self._written[event.kind] += len(event.output)
        if now >= self._next_at:
            self._next_at = now + OUTPUT_EVERY_S
            sizes = ", ".join(f"{size} bytes of {name}" for name, size in self._written.items() if size)
            await self._ctx.session.report_progress(event.number, None, sizes)


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
    if view.get("reason"):
        lines.append(f"its outputs are not as promised: {view['reason']}")
    lines += [f"--- {name}\n{_shortened(view[name])}" for name in _OUTPUT if view[name]]
    content: list[types.ContentBlock] = [types.TextContent(type="text", text="\n".join(lines))]
    content += [link(file) for file in view["artifacts"][:MAX_LINKS]]
    return types.CallToolResult(content=content, structured_content=dict(view))


def said(error: BelljarError) -> types.CallToolResult:
    where = f" ({error.field})" if error.field else ""
    text = f"{error.code}{where}: {error.message}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    head, tail = text[: MAX_CHARS * 3 // 4], text[-MAX_CHARS // 4 :]
    return f"{head}\n… {len(text) - len(head) - len(tail)} characters left out …\n{tail}"
