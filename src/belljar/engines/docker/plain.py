"""A jar of an image without python3: the program itself is the container, a helper beside it has the guest.

    helper  (our image)     guest: stages before, collects after    /workspace      ┐ one tmpfs volume
    program (their image)   runs the command, and nothing else      /workspace      ┘ in both

The two never run at the same time as far as files go: the helper touches them before the program starts and
after every process of it is dead. What a guest would say of a program is said here from what the Engine API
says of a container, in the same frames, so everything above is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from belljar.engines.base import WORK, Area, Collected, Command
from belljar.engines.docker.api import Failed
from belljar.engines.docker.running import Container, lacks
from belljar.engines.following import Following
from belljar.engines.guestjar import GuestJar
from belljar.engines.watch import Push
from belljar.errors import BelljarError, EngineUnavailable, PostureMismatch
from belljar.guest import protocol
from belljar.models import Event, Grant, InputFile, Limits, Owner, canonical_json

_SAMPLE_S = 0.05
_DRAIN_S = 0.5
"""How long the engine may take to pass on what a program that is dead has written."""
_PROGRESS_S = 0.1
_ENDING_S = 2.0
"""How long the engine may take to say that a process which is gone has ended."""


class PlainJar:
    owner: Owner | None = None

    def __init__(
        self,
        grant: Grant,
        helper: GuestJar,
        *,
        make: Callable[[Command], Container],
        check: Callable[[Container], object],
        is_full: Callable[[], bool],
    ) -> None:
        self.grant = grant
        self.posture = ""
        self.timings = helper.timings
        self._helper = helper
        self._make = make
        self._check = check
        self._is_full = is_full
        self._container: Container | None = None
        self._program: Program | None = None
        self._following: Following | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._destroyed: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._helper.alive and self._destroyed is None

    def assign(self, grant: Grant) -> None:
        self.grant = grant
        self._helper.assign(grant)

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        await self._helper.put(area, files)

    async def collect(self, paths: Sequence[str] | None) -> Collected:
        return await self._helper.collect(paths)

    def cancel(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def exec(self, command: Command) -> AsyncIterator[Event]:
        if not self.alive:
            raise EngineUnavailable("the jar was destroyed")
        following: Following | None = None
        try:
            await self._make_folder(command.cwd)
            container = self._container = self._make(command)
            program = self._program = Program(self.grant.limits, container)
            await container.create(program, program.heard_aside)
            await container.look()
            asked = {**container.config["HostConfig"], "Mounts": None}  # whose names are of this jar alone
            self.posture = hashlib.sha256(canonical_json(asked)).hexdigest()
            facts = _Facts(self, self._helper, container, program)
            following = self._following = Following(
                facts, program.stream, command.stdin, facts.counters(), self._push
            )
            self._begin(self._run(program, container, command.argv[0]))
            async for event in following.events():
                yield event
        finally:
            self._following = None
            if following is not None and following.ended:
                await self._end(container)
            else:
                await self.destroy()

    async def destroy(self) -> None:
        if self._destroyed is None:
            self._destroyed = asyncio.create_task(self._take_away())
        await asyncio.shield(self._destroyed)

    async def _take_away(self) -> None:
        if self._container is not None and self._program is not None:
            self._container.kill()
            self._program.fail("the jar was destroyed")
            await self._end(self._container)
        await self._helper.destroy()

    async def _end(self, container: Container) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(Failed):  # the engine is away; its reaper does the rest
            await container.remove()

    async def _make_folder(self, folder: str) -> None:
        if folder != WORK:
            link = self._helper.link
            made = link.open("mkdir", area=Area.WORK.value, path=folder.removeprefix(f"{WORK}/"))
            try:
                await link.answer(made)
            except TimeoutError as error:
                raise link.broken(error) from error

    async def _run(self, program: Program, container: Container, name: str) -> None:
        """From the start to the end; the last frame says how it ended."""
        try:
            program.note(started=True)
            code = await self._run_to_end(program, container)
        except Failed as error:
            if not lacks(error, name):
                program.fail(error.message)
                return
            program.say(
                protocol.ERR, f"belljar: cannot run {ascii(name)}: No such file or directory\n".encode()
            )
            code = 127
        except BelljarError as error:
            container.kill()
            program.fail(error.message)
            return
        program.end(code, full=self._is_full())

    async def _run_to_end(self, program: Program, container: Container) -> int:
        ending = asyncio.create_task(container.wait())
        try:
            await container.start()
            await self._look(container, ending)
            while not ending.done():
                container.counters()  # its cgroup goes when it ends
                await asyncio.wait({ending}, timeout=_SAMPLE_S)
            code = await ending
        finally:
            ending.cancel()
        await program.drained()
        await container.settle()
        return code

    async def _look(self, container: Container, ending: asyncio.Task[int]) -> None:
        """At the live process, as soon as there is one; a short program may be over before."""
        state = (await container.look())["State"]
        try:
            if state["Running"]:
                container.take_hold(state["Pid"])
                self._check(container)
        except PostureMismatch:
            raise
        except EngineUnavailable:
            await asyncio.wait({ending}, timeout=_ENDING_S)
            if not ending.done():
                raise

    def _push(self, how: Push) -> None:
        assert self._container is not None
        assert self._program is not None
        if how is Push.TERMINATE:
            self._begin(self._container.signal("SIGTERM"))
        else:
            self._container.kill()
            self._begin(self._container.signal("SIGKILL"))
            if how is Push.DESTROY:
                self._program.fail("the container does not end")

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Facts:
    """What is followed of a program."""

    def __init__(self, jar: PlainJar, helper: GuestJar, container: Container, program: Program) -> None:
        self.link = program
        self.grant = jar.grant
        self.owner = jar.owner
        self.posture = jar.posture
        self.held_by = helper.held_by
        self.counters: Callable[[], Mapping[str, int]] = container.counters

    async def settle(self) -> None:
        """Its last frame comes when that is done."""


class Program(asyncio.Protocol):
    """The streams of a program's container, told as a guest would tell them."""

    stream = 2

    def __init__(self, limits: Limits, container: Container) -> None:
        self._caps = {protocol.OUT: limits.stdout_kb << 10, protocol.ERR: limits.stderr_kb << 10}
        self._totals = {protocol.OUT: 0, protocol.ERR: 0}
        self._container = container
        self._frames: asyncio.Queue[protocol.Frame | None] = asyncio.Queue()
        self._notice: Callable[[protocol.Frame], None] = lambda frame: None
        self._closed = asyncio.Event()
        self._reported = 0.0
        self.lost: str | None = None

    # What a link offers

    def notice(self, stream: int, tell: Callable[[protocol.Frame], None]) -> None:
        self._notice = tell

    async def write_body(self, stream: int, content: bytes) -> None:
        self._container.send(content)
        self._container.send_eof()

    async def next(self, stream: int) -> protocol.Frame:
        frame = await self._frames.get()
        if frame is None:
            raise EngineUnavailable(f"the jar was lost: {self.lost}")
        return frame

    def fail(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            self._frames.put_nowait(None)

    # What is to be told

    def note(self, **fields: object) -> None:
        self._tell(protocol.NOTE, json.dumps(fields, separators=(",", ":")).encode())

    def say(self, kind: int, data: bytes) -> None:
        kept = data[: max(0, self._caps[kind] - self._totals[kind])]
        self._totals[kind] += len(data)
        if kept:
            self._tell(kind, kept)
        if self._totals[kind] > self._caps[kind] and time.monotonic() - self._reported > _PROGRESS_S:
            self._reported = time.monotonic()
            self.note(**self._counts())

    def end(self, code: int, *, full: bool) -> None:
        facts = {"status": code << 8, **self._counts(), "full": full}
        self._tell(protocol.END, json.dumps(facts).encode())

    async def drained(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._closed.wait()

    def _counts(self) -> dict[str, int]:
        return {"out": self._totals[protocol.OUT], "err": self._totals[protocol.ERR]}

    def _tell(self, kind: int, payload: bytes) -> None:
        frame = protocol.Frame(kind, self.stream, payload)
        self._notice(frame)
        self._frames.put_nowait(frame)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self.say(protocol.OUT, data)

    def heard_aside(self, data: bytes) -> None:
        self.say(protocol.ERR, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
