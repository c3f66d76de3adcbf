"""The Engine API of Docker (or Podman's copy of it): where it is, and one clear sentence when it fails.

aiodocker finds the endpoint as the docker command does (context, DOCKER_HOST, socket) and brings TLS;
requests are plain HTTP with JSON. What a request is about is the callers' affair.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from belljar.engines.docker.channel import Attached, Demultiplexer
from belljar.errors import EngineUnavailable

if TYPE_CHECKING:
    import aiohttp
    from aiodocker import Docker

API_VERSION = (1, 41)
"""Of Docker 20.10: the first with private cgroup namespaces."""
ANSWER_S = 30.0
"""How long the engine may take to answer, but where it is to wait for something or to work through much."""
_START_THE_ENGINE = "start it (`systemctl start docker`), or say where it is with sandbox.docker.host"

_USERINFO = re.compile(r"//[^/]*@")
_ALONE = {"Connection": "close"}
"""Connecting anew costs nothing next to what is asked for; a kept connection would have to be watched."""


class Failed(EngineUnavailable):
    """The engine said no; `status` is its HTTP status, 0 where it could not be reached at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, field="engine")
        self.status = status


class Api:
    def __init__(self, docker: Docker, endpoint: str, context: str) -> None:
        self._docker = docker
        self.endpoint = _USERINFO.sub("//", endpoint)
        """As a person would name it."""
        self.context = context
        self.version = ""
        """Of the API."""

    @classmethod
    async def open(cls, host: str | None = None, context: str | None = None) -> Api:
        """Connected, and new enough. EngineUnavailable says what is wrong and what to do."""
        try:
            import aiodocker
            from aiodocker.exceptions import DockerContextInvalidError, DockerContextTLSError
        except ImportError as error:
            raise EngineUnavailable(
                "the docker engine needs the package aiodocker; in belljar's source: pip install '.[docker]'",
                field="engine",
            ) from error
        try:
            docker = aiodocker.Docker(url=host, context=None if host else context)
        except (DockerContextInvalidError, DockerContextTLSError) as error:
            named = context or "that is in use"
            raise EngineUnavailable(
                f"the docker context {named} cannot be used; `docker context ls` shows those there are",
                field="docker.context",
            ) from error
        except (AssertionError, ValueError, OSError) as error:
            where = f"{host} is no address of a docker engine" if host else "no docker engine is here"
            raise EngineUnavailable(f"{where}; {_START_THE_ENGINE}", field="docker.host") from error
        docker.connector._limit = 0  # every jar holds a connection, and there is a limit for jars already
        used = None if host else docker._get_docker_context_endpoint(context)
        if used is not None and used.host != docker._connection_info:  # DOCKER_HOST comes before it
            used = None
        api = cls(docker, docker._connection_info, (used and used.context_name) or "default")
        try:
            await api._agree_on_version()
        except BaseException:
            await api.close()
            raise
        return api

    async def close(self) -> None:
        await self._docker.close()

    async def ask(self, method: str, path: str, *, body: object = None, **params: str | int) -> Any:
        """One request; what its answer holds as JSON, None where it is empty."""
        async with self._response(method, path, body=body, params=params, within_s=ANSWER_S) as response:
            text = await response.read()
        return json.loads(text) if text else None

    async def wait(self, container: str, condition: str) -> Any:
        """Until the container is so, however long that takes; what the engine then says of its end."""
        async with self._response(
            "POST", f"containers/{container}/wait", params={"condition": condition}
        ) as response:
            text = await response.read()
        if not text:
            raise Failed(f"the docker engine at {self.endpoint} gave up waiting")
        return json.loads(text)

    async def lines(
        self, method: str, path: str, *, data: bytes | AsyncIterator[bytes], **params: str | int
    ) -> AsyncIterator[Any]:
        """A request that tells its progress, one JSON object per line, for as long as there is some."""
        async with self._response(method, path, data=data, params=params) as response:
            while line := await response.content.readline():
                if line.strip():
                    yield json.loads(line)

    async def attach(
        self, container: str, target: asyncio.Protocol, aside: Callable[[bytes], None]
    ) -> Attached:
        """Connect the streams of a container that is not started yet."""
        params = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        request = self._response(
            "POST",
            f"containers/{container}/attach",
            params=params,
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
        )
        try:
            async with asyncio.timeout(ANSWER_S):  # what comes after the answer's head takes its time
                response = await request.__aenter__()
        except TimeoutError as error:
            raise self._unreachable(error) from error
        connection = response.connection
        if connection is None or connection.transport is None:
            response.close()
            raise Failed("the docker engine does not let its streams be attached to")
        protocol = Demultiplexer(target, aside)
        connection.transport.set_protocol(protocol)
        # Of another event loop's making it is no subclass of asyncio's, but it does the same.
        attached = Attached(cast("asyncio.WriteTransport", connection.transport), response.close)
        protocol.connection_made(attached)
        return attached

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int],
        body: object = None,
        data: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] = _ALONE,
        within_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        content_type = "application/x-tar" if data is not None else "application/json"
        try:
            response = await self._docker.session.request(
                method,
                f"{self._docker.docker_host}/{self._prefix}{path}",
                params={name: str(value) for name, value in params.items()},
                data=json.dumps(body) if body is not None else data,
                headers={"Content-Type": content_type, **headers},
                timeout=aiohttp.ClientTimeout(total=within_s),
            )
            if response.status >= 400:
                raise Failed(_message(await response.read()), response.status)
            yield response
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Failed:
        reason = getattr(error, "os_error", error)
        if isinstance(reason, PermissionError):
            return Failed(
                f"the docker engine at {self.endpoint} does not permit this user; add it to the group "
                "`docker`, or run belljar as root"
            )
        if isinstance(reason, FileNotFoundError | ConnectionRefusedError):
            return Failed(f"no docker engine answers at {self.endpoint}; {_START_THE_ENGINE}")
        if isinstance(reason, TimeoutError):
            return Failed(
                f"the docker engine at {self.endpoint} did not answer within {ANSWER_S:.0f} s; look at its "
                "own log, and restart it if it hangs"
            )
        return Failed(f"the docker engine at {self.endpoint} went away: {error or type(error).__name__}")

    @property
    def _prefix(self) -> str:
        return f"v{self.version}/" if self.version else ""

    async def _agree_on_version(self) -> None:
        answer = await self.ask("GET", "version")
        version = str(answer.get("ApiVersion", "0.0"))
        with suppress(ValueError):
            major, _, minor = version.partition(".")
            if (int(major), int(minor)) >= API_VERSION:
                self.version = version
                return
        raise EngineUnavailable(
            f"the docker engine at {self.endpoint} speaks API {version}, but belljar needs "
            f"{API_VERSION[0]}.{API_VERSION[1]}; upgrade it to Docker 20.10 or newer",
            field="engine",
        )


def _message(body: bytes) -> str:
    text = body[:4000].decode("utf-8", "replace").strip()
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("message"), str):
            text = found["message"]
    return f"the docker engine says: {text or 'nothing'}"
