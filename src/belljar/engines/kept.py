"""A jar that several programs of one project use: what a session is made of.

    KeptJar   the jar, its files, its contexts
    Terminal  a program that a person types at
    Seat      one run's view of it, with the contract of any jar: when the run is over it gets up,
              and what it left (files, background processes, variables) stays

A run's clocks end the run, not the jar: signals go to the program and what it started. Only a guest that does
not answer any more takes the jar with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from belljar.engines.base import WORK, Area, Collected, Command
from belljar.engines.collecting import MAX_DEPTH
from belljar.engines.following import PATIENCE_S, Following, count
from belljar.engines.guestjar import GuestJar
from belljar.engines.link import Link, collect, weight
from belljar.engines.watch import Push
from belljar.errors import BadRequest, Conflict, EngineUnavailable, LimitExceeded, NotFound, PathNotAllowed
from belljar.guest import protocol, tree
from belljar.models import Event, Grant, InputFile, Owner

__all__ = ["FileEntry", "KeptJar", "Seat", "Terminal"]

MAX_CONTEXTS = 16
MAX_CELL = 1 << 20
MAX_LISTED = 20_000
MAX_NAME_BYTES = 4 << 20
"""Of all paths of a listing."""
MAX_LISTING = MAX_LISTED * 400 + 9 * MAX_NAME_BYTES
"""Bytes of a listing as it is sent: a byte that cannot be shown is written as nine."""
MAX_ANSWER = 1 << 20
"""Bytes of any other answer, beside the content that was asked for."""
MAX_TERMINALS = 8
MAX_FED = 1 << 16
"""Bytes that are given to a program to read at once."""
WINDOW = 1 << 18
"""Bytes of a terminal that may wait for their reader; then the program waits."""
BUSY_S = 0.05
HANG_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str
    """Relative to what was listed."""
    kind: str
    """`regular`, `directory`, or why it is neither (`symlink`, `not_regular`)."""
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0


class KeptJar:
    def __init__(self, jar: GuestJar) -> None:
        self._jar = jar
        self._contexts: dict[str, _Context] = {}
        self._terminals: set[Terminal] = set()

    @property
    def alive(self) -> bool:
        return self._jar.alive

    @property
    def contexts(self) -> tuple[str, ...]:
        return tuple(self._contexts)

    @property
    def jar(self) -> GuestJar:
        return self._jar

    def seat(self, grant: Grant, env: Mapping[str, str] | None = None, cwd: str = WORK) -> Seat:
        """`env` and `cwd`: what a program has if it asks for nothing else."""
        return Seat(self, grant, env or {}, cwd)

    async def destroy(self) -> None:
        await self._jar.destroy()

    async def signal_all(self, number: int) -> None:
        """Every process in it but the guest; with SIGSTOP and SIGCONT it pauses and goes on."""
        await self.ask("signal", signal=int(number))

    # Contexts

    async def context(self, name: str, env: Mapping[str, str], cwd: str) -> _Context:
        """The one of that name, begun where there is none."""
        if name not in self._contexts:
            if len(self._contexts) >= MAX_CONTEXTS:
                raise LimitExceeded(f"a session has at most {MAX_CONTEXTS} contexts", field="context")
            command = Command(argv=("context",), warm=True, env={"MPLBACKEND": "Agg", **env}, cwd=cwd)
            order = self._jar.order(command, self._jar.grant.limits)
            stream = self._jar.link.open("context", **order, kept=True, cells=True)
            context = self._contexts[name] = _Context(stream)
            self._jar.link.forget(stream)  # nobody reads it: that it began is seen from its cells
            self._jar.link.notice(stream, lambda frame: self._hear_context(name, context, frame))
        return self._contexts[name]

    async def close_context(self, name: str) -> None:
        if name not in self._contexts:
            raise NotFound(f"there is no context {name}", field="context")
        context = self._contexts.pop(name)  # at once: the next cell of that name begins another
        await self.ask("signal", signal=int(signal.SIGKILL), program=context.stream)

    def _hear_context(self, name: str, context: _Context, frame: protocol.Frame) -> None:
        if frame.kind == protocol.END:
            if self._contexts.get(name) is context:
                del self._contexts[name]
            self._jar.link.forget(context.stream)

    # Programs that are spoken to

    def terminal(self, command: Command, rows: int, columns: int) -> Terminal:
        """A program with a terminal of its own."""
        if len(self._terminals) >= MAX_TERMINALS:
            raise LimitExceeded(f"a session has at most {MAX_TERMINALS} terminals", field="session_id")
        order = self._jar.order(command, self._jar.grant.limits)
        order |= {"stdout_cap": WINDOW, "kept": True, "stdin_open": True, "terminal": [rows, columns]}
        terminal = Terminal(self, self._jar.link.open("exec", **order), self._terminals.discard)
        self._terminals.add(terminal)
        return terminal

    async def feed(self, program: int, data: bytes, *, end: bool = False) -> None:
        """
        Raises:
            Conflict: it has not read yet what it was given, or reads no more.
        """
        await self.ask("feed", program=program, data=data, end=end)

    async def signal(self, program: int, number: int) -> None:
        """To a program and what it started."""
        await self.ask("signal", signal=int(number), program=program)

    # Files

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        await self._jar.put(area, files)

    async def listing(self, area: Area, path: str = "", *, depth: int = 1) -> list[FileEntry]:
        frames = await self.ask(
            "list",
            MAX_LISTING,
            area=area.value,
            path=path,
            max_entries=MAX_LISTED,
            max_name_bytes=MAX_NAME_BYTES,
            max_depth=min(depth, MAX_DEPTH),
        )
        try:
            found = [_entry(entry) for frame in frames for entry in frame.json().get("entries", ())]
        except (protocol.ProtocolError, LookupError, TypeError, ValueError) as error:
            raise self._jar.link.broken(error) from error
        return sorted(found, key=lambda entry: entry.path)

    async def read(self, area: Area, path: str, *, offset: int = 0, length: int) -> tuple[bytes, int]:
        """At most `length` bytes from `offset` on, and how large the whole file is."""
        frames = await self.ask(
            "read", 2 * length + MAX_ANSWER, area=area.value, path=path, offset=offset, length=length
        )
        content = b"".join(frame.payload for frame in frames if frame.kind == protocol.DATA)
        try:
            if len(content) > length:
                raise protocol.ProtocolError("a file that is larger than was asked for")
            return content, count(frames[-1].json().get("size"))
        except protocol.ProtocolError as error:
            raise self._jar.link.broken(error) from error

    async def remove(self, area: Area, path: str) -> None:
        await self.ask("remove", area=area.value, path=path)

    async def move(self, area: Area, path: str, to: str) -> None:
        await self.ask("move", area=area.value, path=path, to=to)

    async def make_directory(self, area: Area, path: str) -> None:
        await self.ask("mkdir", area=area.value, path=path)

    async def everything(self) -> Collected:
        """All files of `work` and `artifacts`, within the size of the workspace."""
        limits = self._jar.grant.limits
        whole = replace(limits, artifact_mb=limits.workspace_mb, artifact_files=limits.workspace_files)
        return await collect(self._jar.link, None, whole, all_of_it=True)

    async def ask(self, op: str, max_bytes: int = MAX_ANSWER, **fields: Any) -> list[protocol.Frame]:
        """All frames of the answer; a refusal becomes the error it is."""
        link = self._jar.link
        stream = link.open(op, **fields)
        frames: list[protocol.Frame] = []
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                while not frames or frames[-1].kind != protocol.END:
                    frames.append(await link.next(stream))
                    max_bytes -= weight(frames[-1])
                    if max_bytes < 0:
                        raise protocol.ProtocolError("a longer answer than was asked for")
            refused = frames[-1].json().get("error")
        except (TimeoutError, protocol.ProtocolError) as error:
            raise link.broken(error) from error
        finally:
            link.forget(stream)
        if refused:
            raise _refusal(str(refused), str(fields.get("path", "")))
        return frames


@dataclass(eq=False)
class _Context:
    stream: int
    cells: int = 0
    busy: bool = False


class Terminal:
    """A program that a person types at. It is no run, and has no clock but its session's."""

    def __init__(self, kept: KeptJar, stream: int, forget: Callable[[Terminal], None]) -> None:
        self._kept = kept
        self._stream = stream
        self._forget = forget
        self.exit_code: int | None = None
        self.signal: int | None = None

    async def begin(self) -> None:
        """
        Raises:
            LimitExceeded: the jar has none left, or no process; its programs can use them up.
        """
        link = self._kept.jar.link
        try:
            first = await link.answer(self._stream)
        except TimeoutError as error:
            raise link.broken(error) from error
        if first.kind == protocol.END:
            raise LimitExceeded(
                "the session has no terminal or no process left; end what holds them", field="session_id"
            )

    async def output(self) -> AsyncIterator[bytes]:
        """What it shows, until it is over. It is not read faster than this is."""
        link = self._kept.jar.link
        while True:
            frame = await link.next(self._stream)
            if frame.kind == protocol.OUT:
                yield frame.payload
                link.let("room", program=self._stream, bytes=len(frame.payload))
            elif frame.kind == protocol.END:
                self._end(frame)
                return

    def _end(self, frame: protocol.Frame) -> None:
        try:
            status = frame.json().get("status")
        except protocol.ProtocolError as error:
            raise self._kept.jar.link.broken(error) from error
        if isinstance(status, int) and 0 <= status < 1 << 16:
            self.exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None

    async def type(self, data: bytes) -> None:
        """Waits while the program does not read; says nothing to one that is over."""
        for start in range(0, len(data), MAX_FED):
            while True:
                try:
                    await self._kept.feed(self._stream, data[start : start + MAX_FED])
                    break
                except Conflict as error:
                    if error.field == "program":
                        return
                    await asyncio.sleep(BUSY_S)

    async def resize(self, rows: int, columns: int) -> None:
        await self._kept.ask("resize", program=self._stream, rows=rows, columns=columns)

    async def send_signal(self, number: int) -> None:
        await self._kept.signal(self._stream, number)

    async def close(self) -> None:
        """Hang up, as when a line is cut; what does not heed is killed."""
        self._forget(self)
        link = self._kept.jar.link
        if link.lost or self._stream not in link:
            return
        link.let("signal", signal=int(signal.SIGHUP), program=self._stream)
        try:
            await asyncio.sleep(HANG_UP_S)
        finally:
            await _end(link, self._stream, self._stream)


class Seat:
    """The contract of `Jar`, for one run in a jar that stays."""

    owner: Owner | None = None

    def __init__(self, kept: KeptJar, grant: Grant, env: Mapping[str, str], cwd: str) -> None:
        self._kept = kept
        self._jar = kept.jar
        self._env = env
        self._cwd = cwd
        self._following: Following | None = None
        self._program: int | None = None
        """That which runs, as the guest knows it."""
        self.grant = grant
        self.held_by = self._jar.held_by
        self.counters = self._jar.counters
        self.settle = self._jar.settle
        self.posture = self._jar.posture

    @property
    def link(self) -> Link:
        return self._jar.link

    @property
    def alive(self) -> bool:
        return self._jar.alive

    def assign(self, grant: Grant) -> None:
        self.grant = grant

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        await self._kept.put(area, files)

    async def exec(self, command: Command) -> AsyncIterator[Event]:
        if not self.alive:
            raise EngineUnavailable("the session's jar is gone")
        cwd = self._cwd if command.cwd == WORK else command.cwd
        command = replace(command, env={**self._env, **command.env}, cwd=cwd)
        if command.context is not None:
            context = await self._kept.context(command.context, command.env, command.cwd)
            if context.busy:
                raise Conflict(f"context {command.context} is busy with another run", field="context")
            context.busy = True
            context.cells += 1
            try:
                before = self.counters()
                stream = self._hand_over(context, command)
                async for event in self._follow(stream, context.stream, command, before):
                    yield event
            finally:
                context.busy = False
        else:
            before = self.counters()
            order = self._jar.order(command, self.grant.limits)
            stream = self.link.open("exec", command.stdin, **order, kept=True, stdin_open=command.stdin_open)
            async for event in self._follow(stream, stream, command, before):
                yield event

    def _hand_over(self, context: _Context, command: Command) -> int:
        if len(command.cell.encode()) > MAX_CELL:
            raise LimitExceeded(f"a cell has at most {MAX_CELL >> 10} KB of code", field="code")
        limits = self.grant.limits
        return self.link.open(
            "cell",
            context=context.stream,
            code=command.cell,
            name=f"<cell {context.cells}>",
            stdout_cap=limits.stdout_kb << 10,
            stderr_cap=limits.stderr_kb << 10,
        )

    async def _follow(
        self, stream: int, program: int, command: Command, before: Mapping[str, int]
    ) -> AsyncIterator[Event]:
        """`program`: whom to signal. A context is interrupted first, and lives on if it heeds."""
        gentle = signal.SIGINT if command.context is not None else signal.SIGTERM

        def push(how: Push) -> None:
            if how is Push.DESTROY:
                self.link.fail("the guest does not answer")
            elif how is Push.TERMINATE:
                self.link.let(
                    "signal", signal=int(gentle), program=program, alone=command.context is not None
                )
            else:
                self.link.let("signal", signal=int(signal.SIGKILL), program=program)

        following = self._following = Following(self, stream, command.stdin, before, push, self.link.tunnels)
        self._program = program
        events = following.events()
        try:
            async for event in events:
                yield event
        finally:
            self._following = self._program = None
            if not following.ended:
                await _end(self.link, program, stream)

    async def feed(self, data: bytes, *, end: bool = False) -> None:
        """More for its program to read."""
        await self._kept.feed(self._running(), data, end=end)

    async def send_signal(self, number: int) -> None:
        await self._kept.signal(self._running(), number)

    def _running(self) -> int:
        if self._program is None:
            raise Conflict("no program of this run is running", field="exec_id")
        return self._program

    def cancel(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def collect(self, paths: Sequence[str] | None) -> Collected:
        """What was made or changed since the session was last asked."""
        return await collect(self.link, paths, self.grant.limits, kept=True)

    async def destroy(self) -> None:
        """The run is over; the jar stays."""


async def _end(link: Link, program: int, stream: int) -> None:
    """Nobody listens any more: the program is dead before its caller goes on."""
    link.let("signal", signal=int(signal.SIGKILL), program=program)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (await link.next(stream)).kind != protocol.END:
                pass
    except TimeoutError:
        link.fail("the guest does not answer")
    except EngineUnavailable:
        pass
    finally:
        link.forget(stream)


def _entry(entry: dict[str, Any]) -> FileEntry:
    """ProtocolError, LookupError, TypeError or ValueError where it is none."""
    path, kind, mtime_ns = entry["path"], entry["kind"], entry.get("mtime_ns", 0)
    if not (isinstance(path, str) and isinstance(kind, str) and isinstance(mtime_ns, int)):
        raise protocol.ProtocolError("an entry that is none")
    (path + kind).encode()  # half a character could not be passed on
    return FileEntry(path, kind, count(entry.get("size", 0)), mtime_ns, count(entry.get("mode", 0)))


def _refusal(reason: str, path: str) -> Exception:
    if reason == "busy":
        return Conflict("the program has not read yet what it was given; try again", field="body")
    if reason == "gone":
        return Conflict("the program reads no more", field="program")
    if reason == tree.MISSING:
        return NotFound(f"{path or WORK}: there is no such file", field="path")
    if reason == tree.TOO_LARGE:
        return LimitExceeded(f"{path}: it does not fit", field="path")
    if reason in (tree.SYMLINK, tree.OUTSIDE):
        return PathNotAllowed(f"{path}: leads elsewhere ({reason})", reason=reason, field="path")
    return BadRequest(f"{path}: cannot be done ({reason})", field="path")
