"""`AsyncSession`: one session of the service, and its files, as `AsyncClient.session` gives them.

What means something else when it is sent twice (`fork`, `move`) is not sent again when the connection broke
after it was sent: it may have been done.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from belljar.client import wire
from belljar.client.terminals import AsyncTerminal
from belljar.client.wire import Event, Result, RunOptions

if TYPE_CHECKING:
    from belljar.client.asynchronous import AsyncClient

__all__ = ["AsyncSession", "AsyncSessionFiles", "SessionOptions", "SessionRunOptions"]

_ROUTE = "/sandbox/sessions"


class SessionOptions(TypedDict, total=False):
    """What a session is begun with. What is left out is for the service's policy to say."""

    project_id: str
    policy_overrides: Mapping[str, object]
    env: Mapping[str, str]
    working_dir: str
    idle_s: float
    max_age_s: float
    snapshot: str
    """Digest of the snapshot whose files it begins with."""


class SessionRunOptions(RunOptions, total=False):
    """What a run in a session takes by name: all of a run but `project_id`, `image` and `persist_work`."""

    stdin_open: bool
    """It will be given more to read, by `feed`."""
    context: str
    """The Python that keeps its variables, in which the code is to be run."""


class AsyncSession:
    """Leaving the block ends the session; without a block, `close` does."""

    def __init__(self, client: AsyncClient, facts: Mapping[str, Any]) -> None:
        self._client = client
        self.id: str = facts["session_id"]
        self.project_id: str = facts["project_id"]
        self.files = AsyncSessionFiles(client, self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self, code: str | None = None, language: str = "python", **options: Unpack[SessionRunOptions]
    ) -> Result:
        """Run a program in it and wait for its end; as `AsyncClient.run`."""
        body = wire.run_body(code, language, options)
        answer = await self._client._over(self._path("run"), body)
        return self._client._understood(wire.result, answer)

    async def stream(
        self, code: str | None = None, language: str = "python", **options: Unpack[SessionRunOptions]
    ) -> AsyncGenerator[Event | Result, None]:
        """Run a program in it: what happens while it happens, and the result last."""
        body = wire.run_body(code, language, options)
        async with aclosing(self._client._events("POST", self._path("run"), body, "result")) as events:
            async for event in events:
                if event.kind == "result":
                    yield self._client._understood(wire.result, event.data)
                else:
                    yield event

    async def interrupt(self, exec_id: str | None = None) -> Sequence[str]:
        """Interrupt one run in it, or all; their ids."""
        answer = await self._client._json("POST", self._path("interrupt"), {"exec_id": exec_id})
        return self._client._understood(lambda given: list(map(str, given["interrupted"])), answer)

    async def feed(self, exec_id: str, data: bytes | str = b"", *, end: bool = False) -> None:
        """More for a run to read that was begun with `stdin_open`; `end`: and no more after it."""
        path = wire.query(self._path("runs", exec_id, "stdin"), end="true" if end else "false")
        await self._client._answer("POST", path, content=wire.content_bytes(data), once=True)

    async def signal(self, exec_id: str, name: str) -> None:
        """Send a signal such as `SIGINT` to a run."""
        await self._client._json("POST", self._path("runs", exec_id, "signal"), {"signal": name}, once=True)

    @asynccontextmanager
    async def terminal(
        self, rows: int = 24, columns: int = 80, term: str = "xterm-256color"
    ) -> AsyncGenerator[AsyncTerminal, None]:
        """A shell in it, until the block is left. Not in process: it needs a server to connect to."""
        path = wire.query(self._path("terminal"), rows=str(rows), columns=str(columns), term=term)
        async with self._client._line(path) as line:
            yield AsyncTerminal(line)

    async def info(self) -> Mapping[str, Any]:
        """Its state, its ends, its contexts; also when it is over."""
        return await self._client._json("GET", self._path())

    async def contexts(self) -> Sequence[str]:
        answer = await self._client._json("GET", self._path("contexts"))
        return self._client._understood(lambda given: list(map(str, given["contexts"])), answer)

    async def close_context(self, name: str) -> None:
        await self._client._json("DELETE", self._path("contexts", name), once=True)

    async def extend(self, seconds: float) -> Mapping[str, Any]:
        """Let it live at least so long from now."""
        return await self._client._json("POST", self._path("extend"), {"seconds": seconds})

    async def pause(self) -> Mapping[str, Any]:
        return await self._client._json("POST", self._path("pause"), once=True)

    async def resume(self) -> Mapping[str, Any]:
        return await self._client._json("POST", self._path("resume"), once=True)

    async def snapshot(self) -> Mapping[str, Any]:
        """Keep its files; `digest` names them."""
        return await self._client._json("POST", self._path("snapshot"))

    async def fork(self, count: int = 1) -> list[AsyncSession]:
        answer = await self._client._json("POST", self._path("fork"), {"count": count}, once=True)
        made = self._client._understood(wire.rows("sessions"), answer)
        return [AsyncSession(self._client, facts) for facts in made]

    async def close(self) -> None:
        await self._client._json("DELETE", self._path())

    def _path(self, *more: str) -> str:
        return wire.path(_ROUTE, self.id, *more)


class AsyncSessionFiles:
    """Files of a session; `area` is `work`, `artifacts` or `inputs`."""

    def __init__(self, client: AsyncClient, session_id: str) -> None:
        self._client = client
        self._route = wire.path(_ROUTE, session_id, "files")

    async def list(
        self, path: str = "", *, depth: int = 1, area: str = "work"
    ) -> Sequence[Mapping[str, Any]]:
        answer = await self._client._json("GET", self._at("", area, path=path, depth=str(depth)))
        return self._client._understood(wire.rows("files"), answer)

    async def read(self, path: str, *, start: int = 0, end: int | None = None, area: str = "work") -> bytes:
        """All of a file, or its bytes from `start` to before `end`."""
        wanted = (
            {"range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        )
        response = await self._client._answer("GET", self._at("/content", area, path=path), headers=wanted)
        return response.content

    async def write(self, path: str, content: bytes | str, *, area: str = "work") -> None:
        data = wire.content_bytes(content)
        await self._client._answer("PUT", self._at("/content", area, path=path), content=data)

    async def remove(self, path: str, *, area: str = "work") -> None:
        """A folder with all that is in it."""
        await self._client._json("DELETE", self._at("", area, path=path), once=True)

    async def move(self, path: str, to: str, *, area: str = "work") -> None:
        body = {"area": area, "path": path, "to": to}
        await self._client._json("POST", f"{self._route}/move", body, once=True)

    async def make_folder(self, path: str, *, area: str = "work") -> None:
        await self._client._json("POST", f"{self._route}/mkdir", {"area": area, "path": path})

    async def upload(self, files: Mapping[str, bytes | str], *, path: str = "", area: str = "work") -> None:
        """All of these, or none, below `path`."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in files.items():
                data = wire.content_bytes(content)
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        where = self._at("/archive", area, path=path)
        await self._client._answer("PUT", where, content=packed.getvalue())

    async def download(self, path: str = "", *, area: str = "work") -> Mapping[str, bytes]:
        """Every file below `path`, by its path from there."""
        response = await self._client._answer(
            "GET", self._at("/archive", area, path=path), patience=self._client._patient
        )
        return self._client._understood(_unpacked, response.content)

    async def watch(self, path: str = "", *, area: str = "work") -> AsyncGenerator[Event, None]:
        """What changes below `path`, until the session ends or the loop is left."""
        events = self._client._events("GET", self._at("/watch", area, path=path), None, "ended")
        async with aclosing(events):
            async for event in events:
                yield event

    def _at(self, rest: str, area: str, **place: str) -> str:
        return wire.query(self._route + rest, area=area, **place)


def _unpacked(archive: bytes) -> Mapping[str, bytes]:
    """Only content is taken from it; nothing is written anywhere."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as packed:
            for member in packed:
                file = packed.extractfile(member) if member.isreg() else None
                if file is not None:
                    found[member.name] = file.read()
    except tarfile.TarError as error:
        raise ValueError from error
    return found
