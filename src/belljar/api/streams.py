"""A run's events as server-sent events: numbered, so that a reader who lost the line goes on where it was.

Nothing is buffered per reader: the next event is taken when the connection has room for it. Who reads
too slowly is dropped by the server (`server.py`); the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

from belljar.api.answers import as_json
from belljar.errors import BadRequest
from belljar.execution.events import RunEvent

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["EventStream", "Message", "frame", "last_event_id"]

Message = RunEvent | tuple[str, object]
"""An event of the run, or a last word of ours that has no number."""

_HEARTBEAT = b": still here\n\n"


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, messages: AsyncGenerator[Message, None], heartbeat_s: float) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._messages = messages
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        gone = asyncio.create_task(_disconnected(receive))
        try:
            async with aclosing(self._messages), aclosing(self._paced(gone)) as frames:
                async for data in frames:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def _paced(self, gone: asyncio.Task[None]) -> AsyncGenerator[bytes, None]:
        """Messages as bytes, a heartbeat in every long silence, until they end or nobody listens."""
        while not gone.done():
            coming = asyncio.ensure_future(anext(self._messages))
            try:
                while not coming.done():
                    done, _ = await asyncio.wait(
                        (coming, gone), timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if gone in done:
                        return
                    if not done:
                        yield _HEARTBEAT
                yield frame(coming.result())
            except StopAsyncIteration:
                return
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait((coming,))
                if not coming.cancelled():
                    coming.exception()  # seen: whoever listened may be gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def frame(message: Message) -> bytes:
    """JSON has no line breaks outside its strings, and none inside them: one `data:` line holds it."""
    if isinstance(message, RunEvent):
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (
            message.number,
            message.kind.encode(),
            as_json(message.data),
        )
    kind, data = message
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), as_json(data))


def last_event_id(given: str | None) -> int:
    """The number after which a reader goes on; from the start without one."""
    if given is None or given == "":
        return 0
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise BadRequest("Last-Event-ID must be the id of an event, a number", field="Last-Event-ID")
    return int(given)
