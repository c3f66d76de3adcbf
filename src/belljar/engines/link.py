"""The host's end of the guest protocol, over any byte stream, and the jar that is built on it.

What comes out of a jar is hostile: every frame is bounded by the decoder, every count and total
here. A guest that breaks a rule is not argued with: the jar is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from belljar.engines.base import Area, Collected, Command
from belljar.engines.collecting import Collector
from belljar.engines.following import PATIENCE_S, Following
from belljar.engines.proxies import PORT, certificates_environment, proxy_environment, proxy_files
from belljar.engines.tunnels import MAX_OPEN, NO_WAY_OUT, Tunnels, WayOut
from belljar.engines.watch import Push
from belljar.errors import EngineUnavailable, GrantNotEnforceable, LimitExceeded, PathNotAllowed
from belljar.guest import protocol, tree
from belljar.models import Event, Grant, InputFile, Limits, Owner

MAX_DEPTH = 64
GUEST_BYTES = 6 << 20
"""Of a jar's memory, what is not free for files: a guest that runs out of it can say nothing any more."""
MAX_UNREAD = 32 << 20
"""Bytes of frames that may wait for their reader, beside the output that was granted."""


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
        self._max_unread = MAX_UNREAD
        self._writable = asyncio.Event()
        self._writable.set()
        self.tunnels: Tunnels | None = None
        """Of a jar that has a way out; from any other a stream that its guest opens is the end."""
        self.lost: str | None = None
        """Why nothing more can be heard."""

    def open(self, op: str, body: bytes | None = None, **fields: object) -> int:
        """Start an operation. A small body goes with it: each write wakes the guest."""
        stream = self._next_stream
        self._next_stream += 2
        self._streams[stream] = asyncio.Queue()
        if self.lost:
            self._streams[stream].put_nowait(None)
        frames = [protocol.encode_request(stream, op=op, **fields)]
        if body is not None and len(body) <= protocol.CHUNK:
            frames += protocol.encode_body(stream, body)
        self.write(b"".join(frames))
        return stream

    def expect(self, output: int) -> None:
        """So many bytes were granted, and may all be there before anyone reads them."""
        self._max_unread = MAX_UNREAD + output

    def forget(self, stream: int) -> None:
        """What still comes on it is nobody's."""
        self._streams.pop(stream, None)
        self._notice.pop(stream, None)

    def __contains__(self, stream: int) -> bool:
        """Whether its last frame is yet to be read."""
        return stream in self._streams

    def notice(self, stream: int, tell: Callable[[protocol.Frame], None]) -> None:
        self._notice[stream] = tell

    async def write_body(self, stream: int, content: bytes) -> None:
        """The rest of a body that was too large to go with `open`."""
        if len(content) > protocol.CHUNK:
            for frame in protocol.encode_body(stream, content):
                await self._writable.wait()
                self.write(frame)

    async def writable(self) -> None:
        await self._writable.wait()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    async def next(self, stream: int) -> protocol.Frame:
        """The next frame of a stream. EngineUnavailable when the guest is gone."""
        frame = await self._streams[stream].get()
        if frame is None:
            raise EngineUnavailable(f"the jar was lost: {self.lost}")
        self._unread -= _weight(frame)
        if frame.kind == protocol.END:
            self.forget(stream)
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
                if frame.stream in self._notice:
                    self._notice[frame.stream](frame)
                if frame.stream % 2:
                    self._hear_tunnel(frame)
                else:
                    self.insert(frame)
            if self._unread > self._max_unread:
                self.fail("the guest sends more than is read")
        except protocol.ProtocolError as error:
            self.fail(str(error))

    def insert(self, frame: protocol.Frame) -> None:
        """To be read in its turn."""
        if frame.stream in self._streams:
            self._unread += _weight(frame)
            self._streams[frame.stream].put_nowait(frame)

    def _hear_tunnel(self, frame: protocol.Frame) -> None:
        if self.tunnels is not None:
            self.tunnels.hear(frame)
        elif frame.kind == protocol.OPEN:
            raise protocol.ProtocolError("a way out that was not granted")

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
            if self.tunnels is not None:
                self.tunnels.close()
            self.close()


def _weight(frame: protocol.Frame) -> int:
    return len(frame.payload) + 200  # the frame itself is not nothing


async def put(link: Link, area: Area, files: Sequence[InputFile], limits: Limits, mode: int = 0o644) -> None:
    memory = limits.memory_mb << 20
    if sum(len(file.content) for file in files) > max(memory - GUEST_BYTES, memory // 2):
        raise LimitExceeded(
            f"{files[0].path}: the inputs do not fit into {limits.memory_mb} MB of memory, files included",
            field="input_files",
        )
    streams = []
    for file in files:
        stream = link.open("put", file.content, area=area.value, path=file.path, mode=mode)
        streams.append((stream, file))
        await link.write_body(stream, file.content)
    for stream, file in streams:
        try:
            error = (await link.next(stream)).json().get("error")
        except protocol.ProtocolError as broken:
            link.fail(f"the guest broke the rules: {broken}")
            raise EngineUnavailable(f"the jar was lost: {link.lost}") from broken
        if error == tree.TOO_LARGE:
            raise LimitExceeded(
                f"{file.path}: the inputs do not fit into a workspace of "
                f"{limits.workspace_mb} MB and {limits.workspace_files} files",
                field="input_files",
            )
        if error:
            raise PathNotAllowed(f"{file.path}: cannot be written ({error})", reason=str(error))


async def collect(
    link: Link, paths: Sequence[str] | None, limits: Limits, *, kept: bool = False, all_of_it: bool = False
) -> Collected:
    max_bytes = limits.artifact_mb << 20
    stream = link.open(
        "collect",
        paths=None if paths is None else list(paths),
        max_files=limits.artifact_files,
        max_bytes=max_bytes,
        max_depth=MAX_DEPTH,
        kept=kept,
        all_of_it=all_of_it,
    )
    # Both areas may be listed to twice the cap and some more; see the guest's `_Sender`.
    skips = len(paths) if paths is not None else 2 * (2 * limits.artifact_files + 1001)
    collector = Collector(limits.artifact_files, max_bytes, skips)
    while not collector.done:
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                frame = await link.next(stream)
            collector.take(frame)
        except (TimeoutError, protocol.ProtocolError, LookupError, TypeError, ValueError) as error:
            link.fail(f"the guest broke the rules of collecting: {error!r}")
            raise EngineUnavailable(f"the jar was lost: {link.lost}") from error
    return collector.collected()


class GuestJar:
    owner: Owner | None = None

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
        way_out: WayOut | None = None,
    ) -> None:
        self.link = link
        self.assign(grant)
        self._base_env = base_env
        self.held_by = held_by
        self._way_out = way_out
        self._counters = counters
        self._kill = kill
        self._kill_programs = kill_programs
        self._destroy = destroy
        self._following: Following | None = None
        self.posture = ""
        """Digest of what the live jar was found to be; set by the engine before anything is run."""
        self.timings = timings
        """Seconds that each part of making it took."""
        self._destroyed: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self.link.lost is None and self._destroyed is None

    def assign(self, grant: Grant) -> None:
        self.grant = grant
        self.link.expect((grant.limits.stdout_kb + grant.limits.stderr_kb) << 10)

    def counters(self) -> Mapping[str, int]:
        carried = self.link.tunnels.counters() if self.link.tunnels is not None else {}
        return {**self._counters(), **carried}

    async def settle(self) -> None:
        """When its guest is gone: until `counters` tell why, where that takes more than to read them."""

    async def open_network(self) -> None:
        """Where the grant has one: the guest listens, and what it hears comes to a gate of the grant's rules.

        After the jar was checked and before anything is run in it.
        """
        if not self.grant.network.enabled:
            return
        if self._way_out is None:
            raise GrantNotEnforceable(NO_WAY_OUT, field="network")
        limits = self.grant.limits
        # A quarter of the guest's descriptors, and with full windows an eighth of the jar's memory.
        most = max(1, min(MAX_OPEN, limits.nofile // 4, limits.memory_mb))
        gate = self._way_out.gate(self.grant.network)
        certificate = gate.certificate
        self.link.tunnels = Tunnels(self.link, gate, most)
        stream = self.link.open("network", port=PORT, most=most, files=proxy_files(), certificate=certificate)
        try:
            async with asyncio.timeout(PATIENCE_S):
                error = (await self.link.next(stream)).json().get("error")
        except (TimeoutError, protocol.ProtocolError) as broken:
            raise EngineUnavailable("the jar did not open its way out") from broken
        if error:
            raise GrantNotEnforceable(f"the jar has no way out: {error}", field="network")
        trust = certificates_environment() if certificate else {}
        self._base_env = {**self._base_env, **proxy_environment(), **trust}

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        await put(self.link, area, files, self.grant.limits)

    async def exec(self, command: Command) -> AsyncIterator[Event]:
        if self._destroyed is not None:
            raise EngineUnavailable("the jar was destroyed")
        before = self.counters()
        stream = self.link.open("exec", command.stdin, **self.order(command, self.grant.limits))
        following = self._following = Following(
            self, stream, command.stdin, before, self._push, self.link.tunnels
        )
        try:
            async for event in following.events():
                yield event
        finally:
            self._following = None
            if not following.ended:
                await self.destroy()

    def order(self, command: Command, limits: Limits) -> dict[str, Any]:
        """What the guest is told of a program."""
        return {
            "argv": command.argv,
            "warm": command.warm,
            "env": {**self._base_env, **command.env},
            "cwd": command.cwd,
            "stdout_cap": limits.stdout_kb << 10,
            "stderr_cap": limits.stderr_kb << 10,
        }

    def cancel(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def collect(self, paths: Sequence[str] | None) -> Collected:
        return await collect(self.link, paths, self.grant.limits)

    async def destroy(self) -> None:
        if self._destroyed is None:
            self._destroyed = asyncio.create_task(self._take_away())
        await asyncio.shield(self._destroyed)

    async def _take_away(self) -> None:
        self._kill()
        self.link.close()
        await self._destroy()

    def _push(self, how: Push) -> None:
        """Called by a clock, whether anyone reads the events or not."""
        if how is Push.DESTROY:
            self._kill()
            self.link.fail("the guest does not answer")
        else:
            if how is Push.KILL:
                self._kill_programs()  # the guest may be starved by what it is to kill
            self.link.open("signal", signal=how.value)
