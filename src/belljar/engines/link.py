"""The host's end of the guest protocol, over any byte stream, and the jar that is built on it.

What comes out of a jar is hostile: every frame is bounded by the decoder, every count and total
here. A guest that breaks a rule is not argued with: the jar is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from belljar.engines.base import Area, Collected, Command
from belljar.engines.mime import mime_of
from belljar.errors import EngineUnavailable, LimitExceeded, PathNotAllowed
from belljar.guest import protocol, tree
from belljar.models import (
    Artifact,
    Ended,
    Event,
    Grant,
    InputFile,
    Limits,
    OnOutputLimit,
    Output,
    Skipped,
    SkipReason,
    Started,
    Stream,
    Usage,
    Verdict,
)

PATIENCE_S = 5.0
"""How long a guest that was told to kill everything may take to say so."""
MAX_DEPTH = 64
POKE = protocol.Frame(0, 0, b"")
"""Not from the guest: a clock of ours wants the reader of a stream to look at it."""


class Link(asyncio.Protocol):
    """Streams of frames to and from one guest."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._decoder = protocol.Decoder()
        self._streams: dict[int, asyncio.Queue[protocol.Frame | None]] = {0: asyncio.Queue()}
        self._next_stream = 2
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
        if frame.kind == protocol.END:
            del self._streams[stream]
        return frame

    def poke(self, stream: int) -> None:
        if stream in self._streams:
            self._streams[stream].put_nowait(POKE)

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
                    self._streams[frame.stream].put_nowait(frame)
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
        self._watch: _Watch | None = None
        self.posture = ""
        """Digest of what the live jar was found to be; set by the engine before anything is run."""
        self.timings = timings
        """Seconds that each part of making it took."""
        self._destroyed: asyncio.Task[None] | None = None

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        streams = []
        for file in files:
            stream = self._link.open("put", file.content, area=area, path=file.path, mode=0o644)
            streams.append((stream, file))
            await self._link.write_body(stream, file.content)
        for stream, file in streams:
            error = (await self._link.next(stream)).json().get("error")
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
        watch = self._watch = _Watch(limits, lambda: self._link.poke(stream))
        feeding = asyncio.create_task(self._link.write_body(stream, command.stdin))
        ended = False
        try:
            while not ended:
                try:
                    frame = await self._link.next(stream)
                    event = self._understand(frame, watch, before)
                except EngineUnavailable:
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
        return await _Collector(
            self._link, stream, limits.artifact_files, limits.artifact_mb << 20, skips
        ).run()

    async def destroy(self) -> None:
        if self._destroyed is None:
            self._destroyed = asyncio.create_task(self._take_away())
        await asyncio.shield(self._destroyed)

    async def _take_away(self) -> None:
        self._kill()
        self._link.close()
        await self._destroy()

    def _understand(self, frame: protocol.Frame, watch: _Watch, before: Mapping[str, int]) -> Event | None:
        if frame is POKE:
            self._push(watch.due())
        elif frame.kind in (protocol.OUT, protocol.ERR):
            name = Stream.STDOUT if frame.kind == protocol.OUT else Stream.STDERR
            if watch.heard(name, len(frame.payload)):
                return Output(name, frame.payload)
            self._link.fail("the guest sent more output than was asked for")
        elif frame.kind == protocol.NOTE and "started" in frame.json():
            watch.start()
            return Started(self.posture)
        elif frame.kind == protocol.NOTE:  # the program writes past a cap
            watch.touch()
            if self._grant.on_output_limit is OnOutputLimit.KILL:
                watch.stop(Verdict.OUTPUT_LIMIT)
        else:
            return self._ended(frame.json(), watch, before)
        return None

    def _push(self, how: _Push) -> None:
        if how is _Push.DESTROY:
            self._kill()  # the guest does not answer; its end is seen on the link
        elif how is not _Push.NOTHING:
            if how is _Push.KILL:
                self._kill_programs()  # the guest may be starved by what it is to kill
            self._link.open("signal", signal=how.value)

    def _ended(self, facts: Mapping[str, Any], watch: _Watch, before: Mapping[str, int]) -> Ended:
        status = int(facts["status"])
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
            stdout_bytes=int(facts["out"]),
            stderr_bytes=int(facts["err"]),
            usage=usage,
        )

    def _lost(self, watch: _Watch, before: Mapping[str, int]) -> Ended:
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

    def _usage(self, watch: _Watch, before: Mapping[str, int], *, disk_full: bool) -> Usage:
        after = self._counters()
        return Usage(
            wall_s=watch.elapsed(),
            cpu_s=(after["cpu_us"] - before["cpu_us"]) / 1e6,
            memory_peak_mb=round(after["memory_peak"] / (1 << 20), 2),
            pids_peak=max(0, after["pids_peak"] - 1),  # without the guest
            oom_kills=after["oom_kills"] - before["oom_kills"],
            pids_refused=after["pids_refused"] - before["pids_refused"],
            disk_full=disk_full,
            held_by=self._held_by,
        )


class _Push(Enum):
    """What to do to a program, gentlest first."""

    NOTHING = 0
    TERMINATE = int(signal.SIGTERM)
    KILL = int(signal.SIGKILL)
    DESTROY = -1


class _Watch:
    """The clocks of one run: when it has to be ended, why, and how hard to push next."""

    def __init__(self, limits: Limits, poke: Callable[[], None]) -> None:
        self._limits = limits
        self._poke = poke
        self._loop = asyncio.get_running_loop()
        self._started = self._heard = self._loop.time()
        self._last_push = _Push.NOTHING
        self._wanted: Verdict | None = None
        self._timer = self._loop.call_at(self._deadline(), poke)
        self.reason: Verdict | None = None
        """Why we ended it; None when it ended by itself."""
        self.bytes = {Stream.STDOUT: 0, Stream.STDERR: 0}

    def start(self) -> None:
        self._started = self._heard = self._loop.time()

    def touch(self) -> None:
        self._heard = self._loop.time()

    def heard(self, stream: Stream, count: int) -> bool:
        self.touch()
        self.bytes[stream] += count
        cap_kb = self._limits.stdout_kb if stream is Stream.STDOUT else self._limits.stderr_kb
        return self.bytes[stream] <= cap_kb << 10

    def stop(self, reason: Verdict) -> None:
        self._wanted = self._wanted or reason
        self._poke()

    def elapsed(self) -> float:
        return self._loop.time() - self._started

    def close(self) -> None:
        self._timer.cancel()

    def due(self) -> _Push:
        """Called when a clock rang: the next push, if it is time for one."""
        if self._last_push is not _Push.NOTHING and self._loop.time() < self._timer.when():
            return _Push.NOTHING  # asked to stop again while being stopped
        if self._last_push is _Push.NOTHING:
            self.reason = self._why()
            if self.reason is None:  # it has spoken since the clock was set
                return self._next(_Push.NOTHING, self._deadline())
            gentle = self._limits.grace_s > 0
            grace = self._loop.time() + (self._limits.grace_s if gentle else PATIENCE_S)
            return self._next(_Push.TERMINATE if gentle else _Push.KILL, grace)
        harder = _Push.KILL if self._last_push is _Push.TERMINATE else _Push.DESTROY
        return self._next(harder, self._loop.time() + PATIENCE_S)

    def _next(self, push: _Push, look_again: float) -> _Push:
        self._last_push = push
        self._timer.cancel()
        self._timer = self._loop.call_at(look_again, self._poke)
        return push

    def _deadline(self) -> float:
        deadline = self._started + self._limits.timeout_s
        if self._limits.idle_timeout_s > 0:
            deadline = min(deadline, self._heard + self._limits.idle_timeout_s)
        return deadline

    def _why(self) -> Verdict | None:
        now = self._loop.time()
        if self._wanted is not None:
            return self._wanted
        if now >= self._started + self._limits.timeout_s:
            return Verdict.TIMEOUT
        return Verdict.IDLE_TIMEOUT if now >= self._deadline() else None


class _Collector:
    """Takes files off the wire, and believes no count but its own."""

    def __init__(self, link: Link, stream: int, files_left: int, bytes_left: int, skips_left: int) -> None:
        self._link = link
        self._stream = stream
        self._files_left = files_left
        self._bytes_left = bytes_left
        self._skips_left = skips_left
        self._artifacts: list[Artifact] = []
        self._skipped: list[Skipped] = []

    async def run(self) -> Collected:
        while True:
            frame = await self._link.next(self._stream)
            if frame.kind == protocol.END:
                return Collected(tuple(self._artifacts), tuple(self._skipped))
            try:
                await self._take(frame.json())
            except (protocol.ProtocolError, KeyError, ValueError) as error:
                self._link.fail(f"the guest broke the rules of collecting: {error}")

    async def _take(self, note: Mapping[str, Any]) -> None:
        if "skipped" in note:
            self._skips_left -= 1
            self._skipped.append(Skipped(_shown(note["skipped"]), SkipReason(note["reason"])))
        else:
            self._files_left -= 1
            await self._take_file(_shown(note["file"]))
        if self._files_left < 0 or self._skips_left < 0:
            raise protocol.ProtocolError("too many files")

    async def _take_file(self, path: str) -> None:
        body = bytearray()
        while (frame := await self._link.next(self._stream)).kind == protocol.DATA:
            self._bytes_left -= len(frame.payload)
            if self._bytes_left < 0:
                raise protocol.ProtocolError("too many bytes")
            body += frame.payload
        if frame.kind == protocol.EOF:
            content = bytes(body)
            digest = hashlib.sha256(content).hexdigest()
            self._artifacts.append(Artifact(path, len(content), digest, mime_of(path), content))
        else:  # it could not be read to its end
            await self._take(frame.json())


def _shown(path: object) -> str:
    return tree.display_name(os.fsencode(str(path)))
