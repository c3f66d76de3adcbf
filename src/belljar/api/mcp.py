"""`/mcp`: the MCP server over streamable HTTP, behind the same door as everything else.

What a tool does goes through the HTTP door once more, in this process and with the caller's own token, so
that MCP can do nothing that its caller could not. The SDK takes most of a second to import, so that is left
to the first who calls.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.responses import Response

from belljar.api.calls import Call
from belljar.api.desk import MAX_BODY_BYTES
from belljar.client import AsyncClient
from belljar.client.apps import App, AppTransport
from belljar.errors import Unavailable

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

__all__ = ["Mount", "exchange"]

logger = logging.getLogger(__name__)

MAX_SESSIONS = 1000
IDLE_S = 600.0


async def exchange(call: Call) -> Response:
    mount: Mount = call.scope["belljar.mcp"]
    body = bytes(await call.read()) if call.method == "POST" else b""
    return _Passed(await mount.sessions(), call, body)


class Mount:
    """The MCP server of one app: made when it is first called, ended with the app."""

    def __init__(self, app: App) -> None:
        self._transport = AppTransport(app)
        self._starting = asyncio.Lock()
        self._over = asyncio.Event()
        self._sessions: StreamableHTTPSessionManager | None = None
        self._task: asyncio.Task[None] | None = None

    async def sessions(self) -> StreamableHTTPSessionManager:
        """
        Raises:
            Unavailable: the SDK is not installed, or the app is about to end.
        """
        async with self._starting:
            if self._sessions is None:
                if self._over.is_set():
                    raise Unavailable("the service is about to end")
                made = await asyncio.to_thread(self._made)
                ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._hold(made, ready), name="mcp")
                await asyncio.shield(ready)
                self._sessions = made
        return self._sessions

    async def aclose(self) -> None:
        self._over.set()
        if self._task is not None:
            await self._task

    def _made(self) -> StreamableHTTPSessionManager:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            from belljar.mcp import create_server
        except ImportError as error:
            raise Unavailable(
                "MCP is not installed here; in belljar's source: pip install '.[mcp]'"
            ) from error
        return StreamableHTTPSessionManager(
            create_server(self._client),
            max_request_body_size=MAX_BODY_BYTES,
            session_idle_timeout=IDLE_S,
            max_sessions=MAX_SESSIONS,
        )

    async def _hold(self, sessions: StreamableHTTPSessionManager, ready: asyncio.Future[None]) -> None:
        try:
            async with sessions.run():
                ready.set_result(None)
                await self._over.wait()
        except Exception as error:
            logger.exception("the MCP server has ended")
            if not ready.done():
                ready.set_exception(Unavailable(f"MCP cannot be started: {error}"))

    def _client(self, request: Request) -> AsyncClient:
        token = request.headers["authorization"].partition(" ")[2].strip()
        return AsyncClient("http://localhost", token, transport=self._transport)


class _Passed(Response):
    """The SDK's own answer. It gets the body that was read here, within our limits for bodies."""

    def __init__(self, sessions: StreamableHTTPSessionManager, call: Call, body: bytes) -> None:
        super().__init__()
        self._sessions = sessions
        self._caller = call.caller.id
        self._body: bytes | None = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        async def replayed() -> Message:
            if self._body is None:
                return await receive()
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}

        # Whose session it is: with another token it is as absent as none.
        user = AuthenticatedUser(AccessToken(token="", client_id=self._caller, scopes=[]))
        await self._sessions.handle_request({**scope, "user": user}, replayed, send)
