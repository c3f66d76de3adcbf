"""`Client`: the asynchronous client for code that blocks, by an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from belljar.client.approvals import AsyncApprovals
from belljar.client.asynchronous import AsyncClient
from belljar.client.retry import Retry
from belljar.client.sessions import AsyncSession, AsyncSessionFiles, SessionOptions

__all__ = ["Approvals", "Client", "Session", "SessionFiles"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A")


class _Portal:
    """One client, open in the event loop of a thread of its own until `close`."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[AsyncClient]]) -> None:
        self._ready: Future[AsyncClient] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._hold(opening)), name="belljar-client", daemon=True
        )
        self._thread.start()
        self.inner = self._ready.result()

    async def _hold(self, opening: Callable[[], AbstractAsyncContextManager[AsyncClient]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        try:
            async with opening() as inner:
                self._ready.set_result(inner)
                await self._over.wait()
        except BaseException as error:
            (self._ended if self._ready.done() else self._ready).set_exception(error)
        else:
            self._ended.set_result(None)

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What `work` returns or raises. If the wait is interrupted, by Ctrl-C say, so is the work."""
        if not self.is_open:
            work.close()
            raise RuntimeError("this client is closed")
        over: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _pass_on(task, over))

        def stop() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before it could be handed over
                work.close()
                over.set_exception(CancelledError())

        try:
            self._loop.call_soon_threadsafe(start)
            return over.result()
        except BaseException:
            if not over.done():
                self._loop.call_soon_threadsafe(stop)
                wait([over])
            raise

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        if self.is_open:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._ended.result()


def _pass_on(task: asyncio.Task[_T], over: Future[_T]) -> None:
    if task.cancelled():
        over.set_exception(CancelledError())
    elif (error := task.exception()) is not None:
        over.set_exception(error)
    else:
        over.set_result(task.result())


class _Twin(Generic[_A]):
    """Something of the client's, for code that blocks."""

    _portal: _Portal
    _inner: _A


def _blocking(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Twin[_A], _P], _T]:
    @functools.wraps(method)
    def call(self: _Twin[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._portal.call(method(self._inner, *args, **kwargs))

    return call


def _blocking_iterator(
    method: Callable[Concatenate[_A, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[_Twin[_A], _P], Generator[_T, None, None]]:
    @functools.wraps(method)
    def iterate(self: _Twin[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> Generator[_T, None, None]:
        steps = method(self._inner, *args, **kwargs)
        try:
            while True:
                # Each value in a list: an empty one is the end, and no value can be taken for it.
                step = self._portal.call(_next(steps))
                if not step:
                    return
                yield step[0]
        finally:
            if self._portal.is_open:
                self._portal.call(steps.aclose())

    return iterate


async def _next(steps: AsyncGenerator[_T, None]) -> list[_T]:
    async for value in steps:
        return [value]
    return []


class SessionFiles(_Twin[AsyncSessionFiles]):
    def __init__(self, portal: _Portal, inner: AsyncSessionFiles) -> None:
        self._portal, self._inner = portal, inner

    list = _blocking(AsyncSessionFiles.list)
    read = _blocking(AsyncSessionFiles.read)
    write = _blocking(AsyncSessionFiles.write)
    remove = _blocking(AsyncSessionFiles.remove)
    move = _blocking(AsyncSessionFiles.move)
    make_folder = _blocking(AsyncSessionFiles.make_folder)
    upload = _blocking(AsyncSessionFiles.upload)
    download = _blocking(AsyncSessionFiles.download)
    watch = _blocking_iterator(AsyncSessionFiles.watch)


class Session(_Twin[AsyncSession]):
    """`AsyncSession` for code that blocks."""

    def __init__(self, portal: _Portal, inner: AsyncSession) -> None:
        self._portal, self._inner = portal, inner
        self.id = inner.id
        self.project_id = inner.project_id
        self.files = SessionFiles(portal, inner.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, count: int = 1) -> list[Session]:
        return [Session(self._portal, made) for made in self._portal.call(self._inner.fork(count))]

    run = _blocking(AsyncSession.run)
    stream = _blocking_iterator(AsyncSession.stream)
    interrupt = _blocking(AsyncSession.interrupt)
    feed = _blocking(AsyncSession.feed)
    signal = _blocking(AsyncSession.signal)
    info = _blocking(AsyncSession.info)
    contexts = _blocking(AsyncSession.contexts)
    close_context = _blocking(AsyncSession.close_context)
    extend = _blocking(AsyncSession.extend)
    pause = _blocking(AsyncSession.pause)
    resume = _blocking(AsyncSession.resume)
    snapshot = _blocking(AsyncSession.snapshot)
    close = _blocking(AsyncSession.close)


class Approvals(_Twin[AsyncApprovals]):
    def __init__(self, portal: _Portal, inner: AsyncApprovals) -> None:
        self._portal, self._inner = portal, inner

    list = _blocking(AsyncApprovals.list)
    show = _blocking(AsyncApprovals.show)
    approve = _blocking(AsyncApprovals.approve)
    deny = _blocking(AsyncApprovals.deny)


class Client(_Twin[AsyncClient]):
    """`AsyncClient` for code that blocks: the same calls, made by an event loop in a thread of its own."""

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        self._open(lambda: AsyncClient(base_url, token, timeout_s=timeout_s, retry=retry))

    def _open(self, opening: Callable[[], AbstractAsyncContextManager[AsyncClient]]) -> None:
        self._portal = _Portal(opening)
        self._inner = self._portal.inner
        self.approvals = Approvals(self._portal, self._inner.approvals)

    @classmethod
    def over(cls, opening: Callable[[], AbstractAsyncContextManager[AsyncClient]]) -> Client:
        """For an `AsyncClient` that is made in some other way."""
        client = cls.__new__(cls)
        client._open(opening)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._portal.close()

    @property
    def base_url(self) -> str:
        return self._inner.base_url

    def start_session(self, **options: Unpack[SessionOptions]) -> Session:
        """A session that lives until it is closed, idle for too long or too old; leaving its block closes."""
        return Session(self._portal, self._portal.call(self._inner.start_session(**options)))

    session = start_session

    def get_session(self, session_id: str) -> Session:
        """One that was begun elsewhere."""
        return Session(self._portal, self._portal.call(self._inner.get_session(session_id)))

    run = _blocking(AsyncClient.run)
    stream = _blocking_iterator(AsyncClient.stream)
    exec = _blocking(AsyncClient.exec)
    wait = _blocking(AsyncClient.wait)
    cancel = _blocking(AsyncClient.cancel)
    test = _blocking(AsyncClient.test)
    call_tool = _blocking(AsyncClient.call_tool)
    invoke = _blocking(AsyncClient.invoke)
    invoke_stream = _blocking_iterator(AsyncClient.invoke_stream)
    tools = _blocking(AsyncClient.tools)
    skills = _blocking(AsyncClient.skills)
    sessions = _blocking(AsyncClient.sessions)
    snapshots = _blocking(AsyncClient.snapshots)
    remove_snapshot = _blocking(AsyncClient.remove_snapshot)
    health = _blocking(AsyncClient.health)
    usage = _blocking(AsyncClient.usage)
    sandbox_health = _blocking(AsyncClient.sandbox_health)
    execs = _blocking(AsyncClient.execs)
    get = _blocking(AsyncClient.get)
    events = _blocking_iterator(AsyncClient.events)
    code = _blocking(AsyncClient.code)
    artifacts = _blocking(AsyncClient.artifacts)
    artifact = _blocking(AsyncClient.artifact)
    artifact_chunks = _blocking_iterator(AsyncClient.artifact_chunks)
    trail = _blocking(AsyncClient.trail)
    network = _blocking(AsyncClient.network)
    receipt = _blocking(AsyncClient.receipt)
    verify = _blocking(AsyncClient.verify)
    explain = _blocking(AsyncClient.explain)
