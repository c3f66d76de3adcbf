"""`belljar serve`: the application on a socket, by uvicorn, with limits that uvicorn leaves to a proxy.

A connection has so long to send its headers and so much room for them, one request at a time, and is dropped
when it takes no more of its answer. On a signal nothing new is taken, what runs may end or is ended, every
caller gets an answer, everything is written down; then the socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from belljar.api.app import SECURITY_HEADERS, create_app_for
from belljar.api.desk import Patience
from belljar.api.errors import error_body
from belljar.config import Config
from belljar.errors import BadConfig, BadRequest, BelljarError, Unavailable
from belljar.service import SHUTDOWN_GRACE_S, Service

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

__all__ = ["Server", "listen", "serve"]

BACKLOG = 2048
MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 100
KEEP_ALIVE_S = 15
MAX_MESSAGE_BYTES = 64 << 10
"""Of a WebSocket."""
SPARE_DESCRIPTORS = 512
"""Not for connections: for the database, jars and files."""
_LAST_ANSWERS_S = 5
"""For answers that are on their way when everything has ended."""


def serve(config: Config, *, on_ready: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT. `on_ready` is told the address when calls are taken.

    Raises:
        BelljarError: the service cannot be opened, or cannot listen there.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, on_ready))


async def _serve(config: Config, on_ready: Callable[[str], None]) -> None:
    with listen(config) as sock:
        async with Service.open(config) as service:
            service.tokens.operator_token()  # made now, so that a caller on this machine finds it
            await Server(service, room=_room_for_connections(), on_ready=on_ready).serve(sockets=[sock])


def listen(config: Config) -> socket.socket:
    """The socket of the configured address."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        what = f"cannot listen on {config.host} port {config.port}: {error.strerror}"
        raise BadConfig(f"{what}; set sandbox.host or sandbox.port", field="port") from error


class Server(uvicorn.Server):
    """One service on given sockets."""

    def __init__(
        self,
        service: Service,
        *,
        room: int = 1000,
        patience: Patience | None = None,
        on_ready: Callable[[str], None] = print,
    ) -> None:
        """`room`: for so many connections."""
        patience = patience or Patience()
        app = create_app_for(service, patience)
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(_Protocol, patience=patience, room=room),  # type: ignore[arg-type]
                ws="websockets-sansio",
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=_LAST_ANSWERS_S,
                backlog=BACKLOG,
            )
        )
        self._app = app
        self._service = service
        self._on_ready = on_ready
        self._hurry: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        self._on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Who waits for a run gets its outcome, also if that is `cancelled`; so the runs are ended first."""
        await self._service.lifecycle.close(SHUTDOWN_GRACE_S)
        await self._app.aclose()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again at the end, and nothing after it would be closed."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        try:
            for one in signals:
                loop.add_signal_handler(one, self._end)
        except (ValueError, RuntimeError):  # not the main thread: whoever runs us ends us
            yield
            return
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    def _end(self) -> None:
        """At the second signal, what still runs is not waited for."""
        if self.should_exit:
            self._hurry = asyncio.create_task(self._service.lifecycle.close(0))
        self.should_exit = True


class _Protocol(HttpToolsProtocol):
    def __init__(self, *args: Any, patience: Patience, room: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._patience = patience
        self._room = room
        self._header_bytes = 0
        self._impatience: TimerHandle | None = None
        self._stall: TimerHandle | None = None

    # Headers: in time, not too many, one request at a time.

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._room:
            self._refuse(503, Unavailable("there are too many connections; come back later"))
            return
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._impatience is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_headers()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            raise BadRequest("a second request came before the answer to the first")

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise BadRequest("too many headers")

    def on_headers_complete(self) -> None:
        self._forget(self._impatience)
        self._impatience = None
        if not self.url.startswith(b"/"):
            raise BadRequest("the target must be a path")
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(self._impatience, self._stall)
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._impatience = self.loop.call_later(self._patience.headers_s, self.transport.abort)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise BadRequest("the headers are too large")

    # Answers: taken in time.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self._patience.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget(self._stall)
        super().resume_writing()

    def _forget(self, *timers: TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()

    # What is not HTTP, or too much of it, in the shape of every other error.

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, BadRequest("this is not a proper request", field="request"))

    def _refuse(self, status: int, error: BelljarError) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(error_body(error, request_id=None, operator=False)).encode()
        headers = (
            *SECURITY_HEADERS,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        )
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], lines, body))
        self.transport.close()


def _room_for_connections() -> int:
    """As many as there can be descriptors; for them the soft limit is raised to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(64, (hard if hard != resource.RLIM_INFINITY else 1 << 20) - SPARE_DESCRIPTORS)
