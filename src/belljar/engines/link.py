"""The host's end of the guest protocol, over any byte stream, and the jar that is built on it.

What comes out of a jar is hostile: every frame is bounded by the decoder, every count and total
here. A guest that breaks a rule is not argued with: the jar is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from belljar.engines.base import Area, Collected, Command
from belljar.engines.collecting import Collector
from belljar.engines.watch import Push, Watch
from belljar.errors import EngineUnavailable, LimitExceeded, PathNotAllowed
from belljar.guest import protocol, tree
from belljar.models import (
    Ended,
    Event,
    Grant,
    InputFile,
    OnOutputLimit,
    Output,
    Started,
    Stream,
    Usage,
    Verdict,
)

PATIENCE_S = 5.0
"""How long a guest that was told to kill everything may take to say so."""
MAX_DEPTH = 64
MAX_UNREAD = 32 << 20
"""Bytes of frames that may wait for their reader; more than any grant's output comes to."""


class Link(asyncio.Protocol):
    """Streams of frames to and from one guest."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._decoder = protocol.Decoder()
        self._streams: dict[int, asyncio.Queue[protocol.Frame | None]] = {0: asyncio.Queue()}
        self._notice: dict[int, Callable[[protocol.Frame], None]] = {}
        """Whom to tell of a stream's frames when they arrive, however late they are read."""
        self._next_stream = 2
        self._unread = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost: str | None = None
        """Why nothing more can be heard."""

    def open(self, op: str, body: bytes | None = None, **fields: object) -> int:
        """Start an operation. A small body goes with it: each write wakes the guest."""
        stream = self._next_stream
        self._next_stream += 2
        self._streams[stream] = asyncio.Queue()
        if self.lost:
            self._streams[stream].put_nowait(None)
        frames = [protocol.encode_json(protocol.OPEN, stream, op=op, **fields)]
        if body is not None and len(body) <= protocol.CHUNK:
            frames += protocol.encode_body(stream, body)
        self._write(b"".join(frames))
        return stream

    def notice(self, stream: int, tell: Callable[[protocol.Frame], None]) -> None:
        self._notice[stream] = tell

    async def write_body(self, stream: int, content: bytes) -> None:
        """The rest of a body that was too large to go with `open`."""
        if len(content) > protocol.CHUNK:
            for frame in protocol.encode_body(stream, content):
                await self._writable.wait()
                self._write(frame)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    async def next(self, stream: int) -> protocol.Frame:
        """The next frame of a stream. EngineUnavailable when the guest is gone."""
        frame = await self._streams[stream].get()
        if frame is None:
            raise EngineUnavailable(f"the jar was lost: {self.lost}")
        self._unread -= _weight(frame)
        if frame.kind == protocol.END:
            del self._streams[stream]
        return frame

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                if frame.stream in self._streams:
                    if frame.stream in self._notice:
                        self._notice[frame.stream](frame)
                    self._unread += _weight(frame)
                    self._streams[frame.stream].put_nowait(frame)
            if self._unread > MAX_UNREAD:
                self.fail("the guest sends more than is read")
        except protocol.ProtocolError as error:
            self.fail(str(error))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(str(error) if error else "the channel closed")

    def fail(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            self._writable.set()
            for queue in self._streams.values():
                queue.put_nowait(None)
            self.close()


def _weight(frame: protocol.Frame) -> int:
    return len(frame.payload) + 200  # the frame itself is not nothing


class GuestJar:
    """A jar whose inside is our guest. An engine gives it a link and the facts only a host can see."""

    def __init__(
        self,
        grant: Grant,
        link: Link,
        *,
        base_env: Mapping[str, str],
        held_by: Mapping[str, str],
        counters: Callable[[], Mapping[str, int]],
        kill: Callable[[], None],
        kill_programs: Callable[[], None] = lambda: None,
        destroy: Callable[[], Awaitable[None]],
        timings: Mapping[str, float],
    ) -> None:
        self._grant = grant
        self._link = link
        self._base_env = base_env
        self._held_by = held_by
        self._counters = counters
        self._kill = kill
        self._kill_programs = kill_programs
        self._destroy = destroy
        self._watch: Watch | None = None
        self.posture = ""
        """Digest of what the live jar was found to be; set by the engine before anything is run."""
        self.timings = timings
        """Seconds that each part of making it took."""
        self._destroyed: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._link.lost is None and self._destroyed is None

    def assign(self, grant: Grant) -> None:
        self._grant = grant

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        streams = []
        for file in files:
            stream = self._link.open("put", file.content, area=area, path=file.path, mode=0o644)
            streams.append((stream, file))
            await self._link.write_body(stream, file.content)
        for stream, file in streams:
            try:
                error = (await self._link.next(stream)).json().get("error")
            except protocol.ProtocolError as broken:
                self._link.fail(f"the guest broke the rules: {broken}")
                raise EngineUnavailable(f"the jar was lost: {self._link.lost}") from broken
            if error == tree.TOO_LARGE:
                raise LimitExceeded(
                    f"{file.path}: the inputs do not fit into a workspace of "
                    f"{self._grant.limits.workspace_mb} MB and {self._grant.limits.workspace_files} files",
                    field="input_files",
                )
            if error:
                raise PathNotAllowed(f"{file.path}: cannot be written ({error})", reason=str(error))

    async def exec(self, command: Command) -> AsyncIterator[Event]:
        if self._destroyed is not None:
            raise EngineUnavailable("the jar was destroyed")
        limits = self._grant.limits
        before = self._counters()
        stream = self._link.open(
            "exec",
            command.stdin,
            argv=command.argv,
            warm=command.warm,
            env={**self._base_env, **command.env},
            cwd=command.cwd,
            stdout_cap=limits.stdout_kb << 10,
            stderr_cap=limits.stderr_kb << 10,
        )
        watch = self._watch = Watch(limits, self._push, PATIENCE_S)
        self._link.notice(stream, lambda frame: self._hear(frame, watch))
        feeding = asyncio.create_task(self._link.write_body(stream, command.stdin))
        ended = False
        try:
            while not ended:
                try:
                    event = self._understand(await self._link.next(stream), watch, before)
                except EngineUnavailable:
                    event = self._lost(watch, before)
                except (protocol.ProtocolError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                    self._link.fail(f"the guest broke the rules: {error}")
                    event = self._lost(watch, before)
                if event is not None:
                    ended = isinstance(event, Ended)
                    yield event
        finally:
            self._watch = None
            watch.close()
            feeding.cancel()
            if not ended:
                await self.destroy()

    def cancel(self) -> None:
        if self._watch is not None:
            self._watch.stop(Verdict.CANCELLED)

    async def collect(self, paths: Sequence[str] | None) -> Collected:
        limits = self._grant.limits
        stream = self._link.open(
            "collect",
            paths=paths,
            max_files=limits.artifact_files,
            max_bytes=limits.artifact_mb << 20,
            max_depth=MAX_DEPTH,
        )
        # Both areas may be listed to twice the cap and some more; see the guest's `_Sender`.
        skips = len(paths) if paths is not None else 2 * (2 * limits.artifact_files + 1001)
        collector = Collector(limits.artifact_files, limits.artifact_mb << 20, skips)
        while not collector.done:
            try:
                async with asyncio.timeout(4 * PATIENCE_S):
                    frame = await self._link.next(stream)
                collector.take(frame)
            except (TimeoutError, protocol.ProtocolError, LookupError, TypeError, ValueError) as error:
                self._link.fail(f"the guest broke the rules of collecting: {error!r}")
                raise EngineUnavailable(f"the jar was lost: {self._link.lost}") from error
        return collector.collected()

    async def destroy(self) -> None:
        if self._destroyed is None:
            self._destroyed = asyncio.create_task(self._take_away())
        await asyncio.shield(self._destroyed)

    async def _take_away(self) -> None:
        self._kill()
        self._link.close()
        await self._destroy()

    def _understand(self, frame: protocol.Frame, watch: Watch, before: Mapping[str, int]) -> Event | None:
        if frame.kind in (protocol.OUT, protocol.ERR):
            name = Stream.STDOUT if frame.kind == protocol.OUT else Stream.STDERR
            if not watch.heard(name, len(frame.payload)):
                raise protocol.ProtocolError("more output than was asked for")
            return Output(name, frame.payload)
        if frame.kind == protocol.NOTE:
            return Started(self.posture) if "started" in frame.json() else None
        if frame.kind == protocol.END:
            return self._ended(frame.json(), watch, before)
        raise protocol.ProtocolError("a frame that is not the guest's to send")

    def _hear(self, frame: protocol.Frame, watch: Watch) -> None:
        """When a frame arrives: the clocks must not depend on when it is read."""
        watch.touch()
        if frame.kind == protocol.END:
            watch.close()
        elif frame.kind == protocol.NOTE and b"started" in frame.payload:
            if not watch.start():
                raise protocol.ProtocolError("a program that starts twice")
        elif frame.kind == protocol.NOTE and self._grant.on_output_limit is OnOutputLimit.KILL:
            watch.stop(Verdict.OUTPUT_LIMIT)  # the program writes past a cap

    def _push(self, how: Push) -> None:
        """Called by a clock, whether anyone reads the events or not."""
        if how is Push.DESTROY:
            self._kill()
            self._link.fail("the guest does not answer")
        else:
            if how is Push.KILL:
                self._kill_programs()  # the guest may be starved by what it is to kill
            self._link.open("signal", signal=how.value)

    def _ended(self, facts: Mapping[str, Any], watch: Watch, before: Mapping[str, int]) -> Ended:
        status, out, err = (_count(facts[name]) for name in ("status", "out", "err"))
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        usage = self._usage(watch, before, disk_full=bool(facts["full"]))
        failed = code != 0
        if watch.reason is not None:
            verdict = watch.reason
        elif usage.oom_kills and failed:
            verdict = Verdict.OOM
        elif usage.disk_full and failed:
            verdict = Verdict.DISK_FULL
        else:
            verdict = Verdict.SIGNALED if number is not None else Verdict.EXITED
        return Ended(
            verdict=verdict,
            exit_code=code,
            signal=number,
            stdout_bytes=out,
            stderr_bytes=err,
            usage=usage,
        )

    def _lost(self, watch: Watch, before: Mapping[str, int]) -> Ended:
        """The guest is gone: the kernel's counters, or our own stopping of it, may still say why."""
        usage = self._usage(watch, before, disk_full=False)
        verdict = watch.reason or (Verdict.OOM if usage.oom_kills else Verdict.LOST)
        return Ended(
            verdict=verdict,
            exit_code=None,
            signal=int(signal.SIGKILL),
            stdout_bytes=watch.bytes[Stream.STDOUT],
            stderr_bytes=watch.bytes[Stream.STDERR],
            usage=usage,
        )

    def _usage(self, watch: Watch, before: Mapping[str, int], *, disk_full: bool) -> Usage:
        after = self._counters()
        return Usage(
            wall_s=watch.elapsed(),
            cpu_s=(after["cpu_us"] - before["cpu_us"]) / 1e6,
            memory_peak_mb=round(after["memory_peak"] / (1 << 20), 2),
            pids_peak=max(0, after["pids_peak"] - 1),  # without the guest
            oom_kills=max(0, after["oom_kills"] - before["oom_kills"]),  # a lost jar counts nothing any more
            pids_refused=after["pids_refused"] - before["pids_refused"],
            disk_full=disk_full,
            held_by=self._held_by,
        )


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise protocol.ProtocolError("a count that cannot be")
    return value
