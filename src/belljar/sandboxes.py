"""The names that the design documents gave to running code, over the client of today.

    SandboxManager   runs code and shell commands, each in a jar of its own
    SessionSandbox   `async with` a session: what runs in it shares files and variables
    run_code_once    one program, and nothing left of it

Without an address they open the service in this process.
"""

# ruff: noqa: ASYNC109  # `timeout` is one of those names; the service keeps it

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Self

from belljar.client import AsyncClient, AsyncSession, Result
from belljar.client.sessions import SessionOptions, SessionRunOptions
from belljar.client.wire import RunOptions
from belljar.config import load_here
from belljar.inprocess import alocal, arun

__all__ = ["SandboxManager", "SessionSandbox", "run_code_once"]


class SandboxManager:
    """Use it as `async with SandboxManager() as manager`, or call `aclose` at the end.

    `pool_size` and `policy_file` are for a service in this process; a service elsewhere has its own.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        pool_size: int | None = None,
        policy_file: str | Path | None = None,
    ) -> None:
        self._opening = _client(base_url, token, pool_size, policy_file)
        self._open = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._client: AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._open.aclose()

    async def execute_code(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        files: Mapping[str, bytes | str] | None = None,
    ) -> Result:
        client = await self._connected()
        return await client.run(code, language, **_options(timeout, files))

    async def execute_shell(
        self,
        command: str,
        files: Mapping[str, bytes | str] | None = None,
        timeout: float | None = None,
    ) -> Result:
        """`command` as bash reads it, where `files` are."""
        return await self.execute_code(command, "bash", timeout, files)

    async def _connected(self) -> AsyncClient:
        async with self._connecting:
            if self._client is None:
                self._client = await self._open.enter_async_context(self._opening)
            return self._client


class SessionSandbox:
    """What runs in the block shares files; Python code shares its variables too."""

    def __init__(
        self, session_id: str | None = None, base_url: str | None = None, token: str | None = None
    ) -> None:
        """`session_id` is the project that the session is for: the caller's own name for what it works on."""
        self._project_id = session_id
        self._opening = _client(base_url, token)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> _Sandbox:
        async with AsyncExitStack() as opening:
            client = await opening.enter_async_context(self._opening)
            options = SessionOptions() if self._project_id is None else {"project_id": self._project_id}
            session = await opening.enter_async_context(client.session(**options))
            self._open = opening.pop_all()
        return _Sandbox(session)

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()


class _Sandbox:
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def execute_code(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,
        files: Mapping[str, bytes | str] | None = None,
    ) -> Result:
        options = SessionRunOptions(**_options(timeout, files))  # type: ignore[typeddict-item]
        if language == "python":
            options["context"] = "main"
        return await self.session.run(code, language, **options)

    async def execute_shell(
        self,
        command: str,
        files: Mapping[str, bytes | str] | None = None,
        timeout: float | None = None,
    ) -> Result:
        return await self.execute_code(command, "bash", timeout, files)

    execute_shell_command = execute_shell


async def run_code_once(code: str, language: str = "python", timeout: float | None = None) -> Result:
    """In a jar that is gone when this returns, of a service that is too."""
    return await arun(code, language, **_options(timeout, None))


def _client(
    base_url: str | None,
    token: str | None,
    pool_size: int | None = None,
    policy_file: str | Path | None = None,
) -> AbstractAsyncContextManager[AsyncClient]:
    if base_url is not None:
        return AsyncClient(base_url, token)
    given = {"sandbox.pool.max_idle": pool_size, "sandbox.policy": policy_file}
    return alocal(load_here({key: str(value) for key, value in given.items() if value is not None}))


def _options(timeout: float | None, files: Mapping[str, bytes | str] | None) -> RunOptions:
    options = RunOptions()
    if timeout is not None:
        options["timeout_s"] = timeout
    if files is not None:
        options["files"] = files
    return options
