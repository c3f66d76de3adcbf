"""The transport of a client whose service is an ASGI app in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx2

__all__ = ["AppTransport"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class AppTransport(httpx2.AsyncBaseTransport):
    """To an ASGI app in this process. Its answers stream, where httpx2's own transport gathers them first."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(await request.aread())
        exchange.task = asyncio.create_task(exchange.serve(self._app, _scope(request)))
        try:
            return await exchange.started
        except BaseException:
            await exchange.aclose()
            raise


class _Exchange(httpx2.AsyncByteStream):
    """One request and its answer. The app has a task of its own, which ends with the answer's reader."""

    def __init__(self, content: bytes) -> None:
        self.started: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._content: bytes | None = content
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def serve(self, app: App, scope: Message) -> None:
        try:
            await app(scope, self._receive, self._send)
            if not self.started.done():
                raise RuntimeError("the app gave no answer")
        except Exception as error:
            if self.started.done():
                raise
            self.started.set_exception(error)
        finally:
            self._chunks.put_nowait(None)

    async def _receive(self) -> Message:
        if self._content is None:
            await asyncio.Event().wait()  # whoever leaves cancels the task
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            self.started.set_result(httpx2.Response(message["status"], headers=headers, stream=self))
        elif message["type"] == "http.response.body":
            self._chunks.put_nowait(message.get("body", b""))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self._chunks.get()) is not None:
            if chunk:
                yield chunk
        assert self.task is not None
        await self.task

    async def aclose(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


def _scope(request: httpx2.Request) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port or 80),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
