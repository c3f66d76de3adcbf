"""`AsyncClient`: every call of the service's HTTP door.

What went wrong in the service is raised here as the class that was raised there. A call that may have
been lost on the way is sent again, because every call here may be: most only look, `cancel` says the same
however often it is said, and a run is named by the client, so that a second request finds the first one's
run instead of starting another.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Self, TypeVar, Unpack

import httpx2

from belljar import __version__
from belljar.client import wire
from belljar.client.discovery import address_of, token_for
from belljar.client.retry import Retry
from belljar.client.wire import (
    Event,
    ExecOptions,
    ExecPage,
    FileInfo,
    ForeignError,
    Result,
    RunOptions,
    Unreachable,
)
from belljar.config import load_here
from belljar.errors import BadConfig, BelljarError, EngineUnavailable, QueueFull

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
            BelljarError: it was not run, or its outcome is not known. Never for what the program did.
        """
        body = wire.run_body(code, language, options)
        return self._understood(wire.result, await self._json("POST", "/run", body, self._patient))

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
        return await self._json("POST", "/sandbox/execs", body, self._patient)

    async def cancel(self, exec_id: str) -> Mapping[str, Any]:
        """End a run; its record. One that is over stays as it is."""
        return await self._json("POST", wire.exec_path(exec_id, "cancel"))

    # Looking

    async def health(self) -> Mapping[str, Any]:
        return await self._json("GET", "/health")

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

    async def _json(
        self, method: str, path: str, body: object = None, patience: httpx2.Timeout | None = None
    ) -> Mapping[str, Any]:
        response = await self._answer(method, path, body, patience=patience)
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
        patience: httpx2.Timeout | None = None,
        stream: bool = False,
    ) -> httpx2.Response:
        """A good answer, however many attempts it takes; with `stream`, its body is yet to be read."""
        content = None if body is None else wire.json_bytes(body)
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
            else:
                failure = self._refusal(response)
                if response.status_code not in _BUSY or isinstance(failure, EngineUnavailable):
                    raise failure
                later_s = _retry_after(response)
            failures += 1
            await self._pause(failures, failure, later_s)

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
