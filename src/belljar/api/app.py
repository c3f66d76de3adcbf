"""The application: the table of routes, and the door that every request passes on its way to them.

The door answers for what is the same for all: the form of the path, where a call comes from, whose token it
has, how an error is told, and which headers every answer has.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router

from belljar.api import (
    approvals,
    artifacts,
    execs,
    mcp,
    openapi,
    operations,
    policies,
    runs,
    sessionfiles,
    sessions,
    skills,
    terminals,
    tests,
    tools,
    trail,
    usage,
)
from belljar.api.auth import Hosts, check_path, identify
from belljar.api.calls import Call
from belljar.api.desk import Desk, Patience
from belljar.api.errors import Recorded, WrongRequest, error_answer, status_of
from belljar.api.handshakes import with_token
from belljar.api.pages import HEADERS as PAGE_HEADERS
from belljar.api.pages import page_at
from belljar.config import Config
from belljar.errors import BelljarError, Forbidden, NotFound, Unavailable
from belljar.service import Service
from belljar.tokens import Role, Token

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ROUTES", "Door", "Entry", "create_app", "create_app_for"]

logger = logging.getLogger(__name__)

ALL = frozenset(Role)
RUNNERS = frozenset(role for role in Role if role.may_run)
OPERATOR = frozenset({Role.OPERATOR})
PERSONS = frozenset({Role.OPERATOR, Role.APPROVER})

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
READ_AWAY_BYTES = 1 << 20
READ_AWAY_S = 1.0
_NEEDS_NO_TOKEN = "/health"


class Entry(NamedTuple):
    method: str
    path: str
    handler: Callable[[Call], Awaitable[Response]]
    roles: frozenset[Role] = ALL
    starts_runs: bool = False
    """Such a request is traced, with its runs."""


_EXEC = "/sandbox/execs/{exec_id}"
_SESSION = "/sandbox/sessions/{session_id}"

ROUTES: tuple[Entry, ...] = (
    Entry("GET", _NEEDS_NO_TOKEN, operations.alive),
    Entry("POST", "/run", runs.run, RUNNERS, starts_runs=True),
    Entry("POST", "/sandbox/execs", execs.create, RUNNERS, starts_runs=True),
    Entry("GET", "/sandbox/execs", execs.page),
    Entry("GET", _EXEC, execs.show),
    Entry("GET", f"{_EXEC}/code", execs.code),
    Entry("GET", f"{_EXEC}/events", execs.events),
    Entry("GET", f"{_EXEC}/artifacts", artifacts.listing),
    Entry("GET", f"{_EXEC}/artifacts/{{path:path}}", artifacts.one),
    Entry("GET", f"{_EXEC}/network", execs.network),
    Entry("GET", f"{_EXEC}/receipt", execs.receipt),
    Entry("POST", f"{_EXEC}/cancel", execs.cancel, RUNNERS),
    Entry("POST", "/sandbox/sessions", sessions.create, RUNNERS),
    Entry("GET", "/sandbox/sessions", sessions.listing),
    Entry("GET", _SESSION, sessions.show),
    Entry("DELETE", _SESSION, sessions.close, RUNNERS),
    Entry("POST", f"{_SESSION}/run", sessions.run, RUNNERS, starts_runs=True),
    Entry("POST", f"{_SESSION}/interrupt", sessions.interrupt, RUNNERS),
    Entry("POST", f"{_SESSION}/extend", sessions.extend, RUNNERS),
    Entry("POST", f"{_SESSION}/pause", sessions.pause, RUNNERS),
    Entry("POST", f"{_SESSION}/resume", sessions.resume, RUNNERS),
    Entry("POST", f"{_SESSION}/snapshot", sessions.snapshot, RUNNERS),
    Entry("POST", f"{_SESSION}/fork", sessions.fork, RUNNERS),
    Entry("GET", f"{_SESSION}/contexts", sessions.contexts),
    Entry("DELETE", f"{_SESSION}/contexts/{{name}}", sessions.close_context, RUNNERS),
    Entry("GET", f"{_SESSION}/files", sessionfiles.listing),
    Entry("DELETE", f"{_SESSION}/files", sessionfiles.remove, RUNNERS),
    Entry("GET", f"{_SESSION}/files/content", sessionfiles.content),
    Entry("PUT", f"{_SESSION}/files/content", sessionfiles.put_content, RUNNERS),
    Entry("POST", f"{_SESSION}/files/move", sessionfiles.move, RUNNERS),
    Entry("POST", f"{_SESSION}/files/mkdir", sessionfiles.mkdir, RUNNERS),
    Entry("GET", f"{_SESSION}/files/archive", sessionfiles.archive),
    Entry("PUT", f"{_SESSION}/files/archive", sessionfiles.put_archive, RUNNERS),
    Entry("GET", f"{_SESSION}/files/watch", sessionfiles.watch),
    Entry("GET", f"{_SESSION}/terminal", terminals.terminal, RUNNERS),
    Entry("POST", f"{_SESSION}/runs/{{exec_id}}/stdin", terminals.stdin, RUNNERS),
    Entry("POST", f"{_SESSION}/runs/{{exec_id}}/signal", terminals.send_signal, RUNNERS),
    Entry("GET", "/sandbox/usage", usage.show),
    Entry("GET", "/sandbox/snapshots", sessions.snapshots),
    Entry("DELETE", "/sandbox/snapshots/{digest}", sessions.remove_snapshot, RUNNERS),
    Entry("GET", "/approvals", approvals.listing),
    Entry("GET", "/approvals/{approval_id}", approvals.show),
    Entry("POST", "/approvals/{approval_id}", approvals.decide, PERSONS),
    Entry("GET", "/sandbox/health", operations.sandbox),
    Entry("GET", "/sandbox/trail", trail.show),
    Entry("POST", "/tests/run", tests.run, RUNNERS, starts_runs=True),
    Entry("GET", "/tools", tools.listing),
    Entry("POST", "/tools/{tool}", tools.call_tool, RUNNERS, starts_runs=True),
    Entry("GET", "/skills", skills.listing),
    Entry("GET", "/skills/{skill_id}", skills.show),
    Entry("POST", "/skills/{skill_id}/invoke", skills.invoke, RUNNERS, starts_runs=True),
    Entry("POST", "/mcp", mcp.exchange, RUNNERS),
    Entry("GET", "/mcp", mcp.exchange, RUNNERS),
    Entry("DELETE", "/mcp", mcp.exchange, RUNNERS),
    Entry("GET", "/policy/explain", policies.explain),
    Entry("POST", "/policy/explain", policies.explain_request),
    Entry("GET", "/audit/verify", operations.audit, OPERATOR),
    Entry("GET", "/metrics", operations.metrics),
    Entry("GET", "/openapi.json", openapi.show),
)


def create_app(config: Config, patience: Patience | None = None) -> ASGIApp:
    """The application of a service of its own, which is open as long as the server's lifespan is."""
    return Door(config, patience or Patience())


def create_app_for(service: Service, patience: Patience | None = None) -> Door:
    """The application of a service that somebody else opens and closes; so is the door."""
    return Door(service.config, patience or Patience(), service)


class Door:
    def __init__(self, config: Config, patience: Patience, service: Service | None = None) -> None:
        self._config = config
        self._hosts = Hosts(config)
        self._patience = patience
        self._desk = None if service is None else Desk(service, patience)
        self._mcp = mcp.Mount(self)
        paths = dict.fromkeys(entry.path for entry in ROUTES)
        endpoints = [Route(path, _Endpoint(one for one in ROUTES if one.path == path)) for path in paths]
        lifespan = self._open if service is None else None
        self._router = Router(endpoints, redirect_slashes=False, default=_no_route, lifespan=lifespan)

    @asynccontextmanager
    async def _open(self, _: object) -> AsyncIterator[None]:
        async with Service.open(self._config) as service:
            self._desk = Desk(service, self._patience)
            try:
                yield
            finally:
                await self.aclose()

    async def aclose(self) -> None:
        """End what lasts longer than a call: what MCP clients have open."""
        await self._mcp.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._http(*terminals.as_call(*with_token(scope, receive, send)))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        page = page_at(scope["path"])

        async def dressed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message["headers"], *(SECURITY_HEADERS if page is None else PAGE_HEADERS)]
                if _has_unread_body(scope):
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._look_at(scope)
            if page is not None:
                await page.answer(scope)(scope, receive, dressed)
                return
            self._let_in(scope)
            await self._router(scope, receive, dressed)
            return
        except ClientDisconnect:
            return
        except BelljarError as error:
            if started:
                raise
            fault = error
        except Exception:
            if started:
                raise
            scope["belljar.request_id"] = secrets.token_hex(16)
            logger.exception("%s: a fault of ours", scope["belljar.request_id"])
            fault = Recorded(None, None)
        await _read_away(scope, receive)
        caller: Token | None = scope.get("belljar.caller")
        operator = caller is not None and caller.role is Role.OPERATOR
        answer = error_answer(fault, request_id=scope.get("belljar.request_id"), operator=operator)
        await answer(scope, receive, dressed)

    def _look_at(self, scope: Scope) -> None:
        check_path(scope.get("raw_path") or scope["path"].encode())
        self._hosts.check(scope["headers"])

    def _let_in(self, scope: Scope) -> None:
        if self._desk is None:
            raise Unavailable("the service is not open yet")
        scope["belljar.desk"] = self._desk
        scope["belljar.mcp"] = self._mcp
        if scope["path"] != _NEEDS_NO_TOKEN:
            scope["belljar.caller"] = identify(scope["headers"], self._desk.service.tokens)


class _Endpoint:
    """One path: which methods it has, and for whom."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.method: entry for entry in entries}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry = self._entries.get(scope["method"])
        if entry is None:
            allowed = ", ".join(self._entries)
            raise WrongRequest(405, f"this path takes {allowed} only", field="method", allow=allowed)
        caller: Token | None = scope.get("belljar.caller")
        if caller is not None and caller.role not in entry.roles:
            raise Forbidden(f"a token of role {caller.role} may not do this", field="Authorization")
        if terminals.SOCKET in scope and entry.handler is not terminals.terminal:
            raise WrongRequest(400, "there is no WebSocket here", field="Upgrade")
        call = Call(scope, receive, send)
        try:
            if entry.starts_runs:
                await _traced(entry, call, send)
            else:
                await (await entry.handler(call))(scope, receive, send)
        finally:
            call.let_go()


async def _traced(entry: Entry, call: Call, send: Send) -> None:
    with call.service.tracing.request(entry.method, entry.path, call.headers) as answered:
        try:
            answer = await entry.handler(call)
        except ClientDisconnect:
            raise
        except Exception as error:
            fault = error if isinstance(error, BelljarError) else Recorded(None, None)
            answered(status_of(fault), fault.code)
            raise
        answered(answer.status_code, None)
        await answer(call.scope, call.receive, send)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("there is no such route; /openapi.json lists them", field="path")


async def _read_away(scope: Scope, receive: Receive) -> None:
    """A client that is still sending when the connection ends loses the answer, so a short body is let in."""
    if not _has_unread_body(scope) or any(name == b"expect" for name, _ in scope["headers"]):
        return
    left = READ_AWAY_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_AWAY_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    scope["belljar.body_read"] = True
                    return


def _has_unread_body(scope: Scope) -> bool:
    """A connection with more to come is not used again."""
    if scope.get("belljar.body_read"):
        return False
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
