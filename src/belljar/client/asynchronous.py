"""`AsyncClient`: every call of the service's HTTP door.

What went wrong in the service is raised here as the class that was raised there. A call that may have
been lost on the way is sent again, because nearly every call may be: most only look, `cancel` says the same
however often it is said, and a run is named by the client, so that a second request finds the first one's
run instead of starting another. The few that may not are sent `once`.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import httpx2

from belljar import __version__
from belljar.client import wire
from belljar.client.approvals import AsyncApprovals
from belljar.client.discovery import address_of, token_for
from belljar.client.retry import Retry
from belljar.client.sessions import AsyncSession, SessionOptions
from belljar.client.wire import (
    Event,
    ExecOptions,
    ExecPage,
    FileInfo,
    ForeignError,
    InvokeOptions,
    Result,
    RunOptions,
    TestOptions,
    ToolOptions,
    Unreachable,
)
from belljar.config import load_here
from belljar.errors import BadConfig, BadRequest, BelljarError, EngineUnavailable, QueueFull

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ["AsyncClient"]

_T = TypeVar("_T")

_CONNECT_S = 5.0
_CONNECTIONS = 256
"""More runs than this at once wait here; a process has descriptors for about a thousand."""
_SILENCE_S = 60.0
"""An event stream has a heartbeat, several times in this."""
_BUSY = (429, 503)
# A peer that is gone without a word is noticed by the kernel in about a minute, however long a run takes.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)


class AsyncClient:
    """Use it as `async with AsyncClient() as client`.

    Without an address it is the configured service, by default the one on this machine, whose token it
    finds by itself. `timeout_s` is for answers that wait for no program; a run takes as long as it takes.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        if base_url is None:
            base_url = address_of(load_here())
        scheme = _scheme(base_url)
        if token is None:
            token = token_for(base_url, load_here())
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise BadConfig("a token is visible ASCII characters without spaces", field="token")
        self.base_url = base_url.rstrip("/")
        self._retry = retry or Retry()
        self._in_process = transport is not None
        connect_s = min(timeout_s, _CONNECT_S)
        self._prompt = httpx2.Timeout(timeout_s, connect=connect_s)
        self._patient = httpx2.Timeout(timeout_s, connect=connect_s, read=None, pool=None)
        self._listening = httpx2.Timeout(timeout_s, connect=connect_s, read=_SILENCE_S, pool=None)
        self._http = httpx2.AsyncClient(
            base_url=self.base_url,
            headers={"authorization": f"Bearer {token}"} if token else {},
            transport=transport or _transport(scheme),
            trust_env=False,  # no proxy of the environment gets to see the token
        )
        self.approvals = AsyncApprovals(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    # Running

    async def run(
        self, code: str | None = None, language: str = "python", **options: Unpack[RunOptions]
    ) -> Result:
        """Run a program and wait for its end.

        Raises:
            ApprovalNeeded: a person has to say yes first; the same request_id finds the run again.
            BelljarError: it was not run, or its outcome is not known. Never for what the program did.
        """
        body = wire.run_body(code, language, options)
        return self._understood(wire.result, await self._over("/run", body))

    async def stream(
        self, code: str | None = None, language: str = "python", **options: Unpack[RunOptions]
    ) -> AsyncGenerator[Event | Result, None]:
        """Run a program: what happens while it happens, and the result last.

        A connection that breaks is made again and goes on where it was. Leaving the loop does not end the
        run; `cancel` does.
        """
        body = wire.run_body(code, language, options)
        async with aclosing(self._events("POST", "/run", body, "result")) as events:
            async for event in events:
                yield self._understood(wire.result, event.data) if event.kind == "result" else event

    async def exec(
        self, kind: str, command: str | None = None, **options: Unpack[ExecOptions]
    ) -> Mapping[str, Any]:
        """Submit to `/sandbox/execs`; returns when the run is over, unless `wait` is false."""
        body = wire.exec_body(kind, command, options)
        if options.get("wait", True):
            return await self._over("/sandbox/execs", body)
        return await self._json("POST", "/sandbox/execs", body, self._patient)

    async def wait(self, exec_id: str) -> Mapping[str, Any]:
        """The record of a run and what it wrote, once it is over; also of one that waits for a person.

        Raises:
            ApprovalDenied: and whatever else it was refused for.
        """
        written = {"stdout": bytearray(), "stderr": bytearray()}
        async with aclosing(self.events(exec_id)) as events:
            async for event in events:
                if event.kind in written:
                    written[event.kind] += event.output
        record = await self.get(exec_id)
        if record.get("status") == "refused":
            raise self._understood(wire.refused, record)
        return {**record, **{name: data.decode("utf-8", "replace") for name, data in written.items()}}

    async def cancel(self, exec_id: str) -> Mapping[str, Any]:
        """End a run; its record. One that is over stays as it is."""
        return await self._json("POST", wire.exec_path(exec_id, "cancel"))

    async def call_tool(self, name: str, **options: Unpack[ToolOptions]) -> Mapping[str, Any]:
        """What a tool answers: `status`, a `summary`, `data`, and where the rest is."""
        body = {"request_id": secrets.token_hex(16), **options}
        return await self._over(wire.path("/tools", name), body)

    async def invoke(self, skill_id: str, **options: Unpack[InvokeOptions]) -> Mapping[str, Any]:
        """What a skill gives: `status`, its `outputs`, and how the run went."""
        body = wire.invoke_body(options)
        return await self._over(wire.path("/skills", skill_id, "invoke"), body)

    async def invoke_stream(
        self, skill_id: str, **options: Unpack[InvokeOptions]
    ) -> AsyncGenerator[Event | Mapping[str, Any], None]:
        """Call a skill: what happens while it happens, and its answer last."""
        path, body = wire.path("/skills", skill_id, "invoke"), wire.invoke_body(options)
        async with aclosing(self._events("POST", path, body, "result")) as events:
            async for event in events:
                yield event.data if event.kind == "result" else event

    # Sessions

    @asynccontextmanager
    async def session(self, **options: Unpack[SessionOptions]) -> AsyncGenerator[AsyncSession, None]:
        """A session that ends with the block."""
        async with await self.start_session(**options) as session:
            yield session

    async def start_session(self, **options: Unpack[SessionOptions]) -> AsyncSession:
        """A session that lives on until it is closed, idle for too long or too old."""
        facts = await self._json("POST", "/sandbox/sessions", dict(options), once=True)
        return self._understood(lambda given: AsyncSession(self, given), facts)

    async def get_session(self, session_id: str) -> AsyncSession:
        """One that was begun elsewhere."""
        facts = await self._json("GET", wire.path("/sandbox/sessions", session_id))
        return self._understood(lambda given: AsyncSession(self, given), facts)

    async def sessions(
        self, *, project_id: str | None = None, ended: bool = False
    ) -> Sequence[Mapping[str, Any]]:
        """Newest first; with `ended`, also those that are over."""
        asked = wire.query("/sandbox/sessions", project_id=project_id, ended="true" if ended else "false")
        answer = await self._json("GET", asked)
        return self._understood(wire.rows("sessions"), answer)

    async def snapshots(self, project_id: str | None = None) -> Sequence[Mapping[str, Any]]:
        answer = await self._json("GET", wire.query("/sandbox/snapshots", project_id=project_id))
        return self._understood(wire.rows("snapshots"), answer)

    async def remove_snapshot(self, digest: str, project_id: str | None = None) -> None:
        path = wire.query(wire.path("/sandbox/snapshots", digest), project_id=project_id)
        await self._json("DELETE", path, once=True)

    async def test(
        self, code: str, tests: Sequence[Mapping[str, str]], **options: Unpack[TestOptions]
    ) -> Mapping[str, Any]:
        """What became of each test: `passed`, `counts`, `tests`. One may have been run twice if the answer to
        it was lost; that changes nothing."""
        body = {"code": code, "tests": [*tests], **options}
        return await self._json("POST", "/tests/run", body, self._patient)

    # Looking

    async def tools(self, form: str = "belljar") -> Sequence[Mapping[str, Any]]:
        """What this token may use; in the `form` of an LLM's API if it is `openai` or `anthropic`."""
        answer = await self._json("GET", f"/tools?{httpx2.QueryParams({'format': form})}")
        return self._understood(wire.rows("tools"), answer)

    async def skills(self) -> Sequence[Mapping[str, Any]]:
        return self._understood(wire.rows("skills"), await self._json("GET", "/skills"))

    async def health(self) -> Mapping[str, Any]:
        return await self._json("GET", "/health")

    async def usage(self) -> Sequence[Mapping[str, Any]]:
        """What the jars that are in use take right now."""
        return self._understood(wire.rows("usage"), await self._json("GET", "/sandbox/usage"))

    async def sandbox_health(self) -> Mapping[str, Any]:
        """What each engine of the service can enforce, and where it keeps things."""
        return await self._json("GET", "/sandbox/health")

    async def execs(
        self,
        *,
        project_id: str | None = None,
        task_id: str | None = None,
        status: str | None = None,
        skill_id: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ExecPage:
        asked = {
            "project_id": project_id,
            "task_id": task_id,
            "status": status,
            "skill_id": skill_id,
            "since": since.isoformat() if since else None,
            "limit": limit,
            "cursor": cursor,
        }
        params = httpx2.QueryParams({name: value for name, value in asked.items() if value is not None})
        return self._understood(wire.page, await self._json("GET", f"/sandbox/execs?{params}"))

    async def get(self, exec_id: str) -> Mapping[str, Any]:
        """The whole record of a run."""
        return await self._json("GET", wire.exec_path(exec_id))

    async def events(self, exec_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """What a run did after that event, and what it does until it is over."""
        path = wire.exec_path(exec_id, "events")
        async with aclosing(self._events("GET", path, None, "finished", after)) as events:
            async for event in events:
                yield event

    async def code(self, exec_id: str) -> str:
        """What ran, once it is over."""
        said = await self._json("GET", wire.exec_path(exec_id, "code"))
        return self._understood(lambda told: str(told["code"]), said)

    async def artifacts(self, exec_id: str) -> tuple[FileInfo, ...]:
        return self._understood(wire.artifacts, await self._json("GET", wire.exec_path(exec_id, "artifacts")))

    async def artifact(self, exec_id: str, path: str) -> bytes:
        response = await self._answer("GET", wire.exec_path(exec_id, "artifacts", path))
        return response.content

    async def artifact_chunks(self, exec_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """One file, a piece at a time; for one that should not be in memory as a whole.

        Raises:
            Unreachable: the connection broke. What was given out until then is not all of the file.
        """
        response = await self._answer("GET", wire.exec_path(exec_id, "artifacts", path), stream=True)
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        finally:
            await response.aclose()

    async def trail(
        self,
        *,
        project_id: str | None = None,
        path: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Mapping[str, Any]:
        """Which run left which version of a file: `entries` of a page of runs, `cursor` for the next."""
        asked = {"project_id": project_id, "path": path, "limit": limit, "cursor": cursor}
        params = httpx2.QueryParams({name: value for name, value in asked.items() if value is not None})
        return await self._json("GET", f"/sandbox/trail?{params}")

    async def network(self, exec_id: str) -> Mapping[str, Any]:
        """What was decided of a run's way out: `decisions`, the first of `total`."""
        return await self._json("GET", wire.exec_path(exec_id, "network"))

    async def receipt(self, exec_id: str) -> Mapping[str, Any]:
        return await self._json("GET", wire.exec_path(exec_id, "receipt"))

    async def verify(self) -> Mapping[str, Any]:
        """Has the service walk its chain of receipts."""
        return await self._json("GET", "/audit/verify", None, self._patient)

    async def explain(
        self,
        *,
        role: str | None = None,
        tool: str | None = None,
        policy_overrides: Mapping[str, object] | None = None,
    ) -> Mapping[str, Any]:
        """What a request would be granted, field by field, with the layer that set it."""
        body = {"role": role, "tool": tool, "policy_overrides": dict(policy_overrides or {})}
        return await self._json("POST", "/policy/explain", body)

    # On the wire

    async def _over(self, path: str, body: object) -> Mapping[str, Any]:
        """The answer to a run that is over; one that waits for a person is not."""
        answer = await self._json("POST", path, body, self._patient)
        if answer.get("status") == "pending_approval":
            raise self._understood(wire.approval_needed, answer)
        return answer

    async def _json(
        self,
        method: str,
        path: str,
        body: object = None,
        patience: httpx2.Timeout | None = None,
        *,
        once: bool = False,
    ) -> Mapping[str, Any]:
        response = await self._answer(method, path, body, patience=patience, once=once)
        return self._understood(wire.json_object, response.content)

    async def _events(
        self, method: str, path: str, body: object, last: str, after: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Events until the one named `last`, over as many connections as it takes."""
        failures = 0
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": str(after)} if after else {})}
            response = await self._answer(method, path, body, headers, patience=self._listening, stream=True)
            failure = Unreachable(f"{self.base_url} ended the stream before the run was over")
            try:
                async for sse in httpx2.EventSource(response, max_event_size=None):
                    event = self._understood(wire.event, sse)
                    if event.kind == "error":
                        raise self._understood(wire.refusal, event.data)
                    if event.kind == last:
                        yield event
                        return
                    if event.number > after:
                        after, failures = event.number, 0
                        yield event
            except httpx2.HTTPError as error:
                failure = self._unreachable(error)
            finally:
                await response.aclose()
            failures += 1
            await self._pause(failures, failure)

    async def _answer(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        content: bytes | None = None,
        patience: httpx2.Timeout | None = None,
        stream: bool = False,
        once: bool = False,
    ) -> httpx2.Response:
        """A good answer, however many attempts it takes; with `stream`, its body is yet to be read.

        `content` is a body that is no JSON. `once`: not again when it may have been done already.
        """
        content = content if body is None else wire.json_bytes(body)
        headers = {**(headers or {}), **({} if body is None else {"content-type": "application/json"})}
        failures = 0
        while True:
            request = self._http.build_request(
                method, path, content=content, headers=headers, timeout=patience or self._prompt
            )
            failure: BelljarError
            later_s = 0.0
            try:
                response = await self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                await response.aread()
            except httpx2.HTTPError as error:
                failure = self._unreachable(error)
                if once and not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise failure from error
            else:
                failure = self._refusal(response)
                if response.status_code not in _BUSY or isinstance(failure, EngineUnavailable):
                    raise failure
                later_s = _retry_after(response)
            failures += 1
            await self._pause(failures, failure, later_s)

    @asynccontextmanager
    async def _line(self, path: str) -> AsyncGenerator[ClientConnection, None]:
        """A WebSocket there."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        if self._in_process:
            raise BadRequest("a terminal needs a server to connect to; start one with `belljar serve`")
        headers = {"authorization": self._http.headers.get("authorization", "")}
        address = f"ws{self.base_url.removeprefix('http')}{path}"
        try:
            line = await connect(
                address, additional_headers=headers, proxy=None, compression=None, open_timeout=_CONNECT_S
            )
        except InvalidStatus as error:
            refused = httpx2.Response(error.response.status_code, content=bytes(error.response.body or b""))
            raise self._refusal(refused) from error
        except (WebSocketException, OSError) as error:
            message = f"no terminal can be had from {self.base_url}: {error or type(error).__name__}"
            raise Unreachable(message) from error
        async with line:
            yield line

    async def _pause(self, failures: int, failure: BelljarError, at_least_s: float = 0.0) -> None:
        seconds = self._retry.pause_s(failures, at_least_s)
        if seconds is None:
            raise failure
        await asyncio.sleep(seconds)

    def _unreachable(self, error: httpx2.HTTPError) -> Unreachable:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            message = f"no belljar service answers at {self.base_url}; start one with `belljar serve`"
        elif isinstance(error, httpx2.TimeoutException):
            message = f"{self.base_url} did not answer in time; is it overloaded, or its machine gone?"
        else:
            message = f"the connection to {self.base_url} broke: {error or type(error).__name__}"
        failure = Unreachable(message)
        failure.__cause__ = error
        return failure

    def _refusal(self, response: httpx2.Response) -> BelljarError:
        try:
            error = wire.refusal(wire.json_object(response.content))
        except wire.NOT_UNDERSTOOD:
            message = f"{self.base_url} answered {response.status_code} without saying why; is it belljar?"
            return ForeignError(message)
        if isinstance(error, QueueFull):
            error.retry_after_s = round(_retry_after(response)) or 1
        return error

    def _understood(self, parse: Callable[[Any], _T], given: object) -> _T:
        try:
            return parse(given)
        except wire.NOT_UNDERSTOOD as error:
            message = f"{self.base_url} gave an answer that belljar {__version__} does not understand"
            raise ForeignError(message) from error


def _scheme(base_url: str) -> str:
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise BadConfig(f"{base_url!r} is not an address: {error}", field="base_url") from error
    if url.scheme not in ("http", "https") or not url.host:
        message = f"{base_url!r} is not the address of a service; one starts with http:// or https://"
        raise BadConfig(message, field="base_url")
    return url.scheme


def _transport(scheme: str) -> httpx2.AsyncHTTPTransport:
    # Reading the machine's certificates takes longer than a run does; without TLS there is nothing to trust.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if scheme == "http" else True
    limits = httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
    return httpx2.AsyncHTTPTransport(
        verify=verify, trust_env=False, limits=limits, socket_options=_KEEP_ALIVE
    )


def _retry_after(response: httpx2.Response) -> float:
    """In seconds. The header's other form, a date, counts as none."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 10 else 0.0
