"""The host's end of the guest protocol, over any byte stream: frames, files in, files out.

What comes out of a jar is hostile: every frame is bounded by the decoder, every count and total
here. A guest that breaks a rule is not argued with: the jar is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from belljar.engines.base import Area, Collected
from belljar.engines.collecting import MAX_DEPTH, Collector
from belljar.engines.following import PATIENCE_S
from belljar.engines.tunnels import Tunnels
from belljar.errors import EngineUnavailable, LimitExceeded, PathNotAllowed
from belljar.guest import protocol, tree
from belljar.models import InputFile, Limits

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

    def let(self, op: str, **fields: object) -> None:
        """Do it; nobody waits for the answer."""
        self.forget(self.open(op, None, **fields))

    def forget(self, stream: int) -> None:
        """What waits on it, and what still comes, is nobody's."""
        self._notice.pop(stream, None)
        unread = self._streams.pop(stream, None)
        while unread is not None and not unread.empty():
            frame = unread.get_nowait()
            self._unread -= weight(frame) if frame is not None else 0

    def __contains__(self, stream: int) -> bool:
        """Whether its last frame is yet to be read."""
        return stream in self._streams

    def notice(self, stream: int, tell: Callable[[protocol.Frame], None]) -> None:
        self._notice[stream] = tell

    async def write_body(self, stream: int, content: bytes, patience_s: float | None = None) -> None:
        """The rest of a body that was too large to go with `open`. TimeoutError when the guest takes nothing
        more for so long."""
        if len(content) > protocol.CHUNK:
            for frame in protocol.encode_body(stream, content):
                async with asyncio.timeout(patience_s):
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
        self._unread -= weight(frame)
        if frame.kind == protocol.END:
            self.forget(stream)
        return frame

    async def answer(self, stream: int) -> protocol.Frame:
        """The next frame of a guest that has no reason to take its time. TimeoutError when none comes."""
        async with asyncio.timeout(4 * PATIENCE_S):
            return await self.next(stream)

    def broken(self, error: Exception) -> EngineUnavailable:
        """To be raised: the guest broke the rules, and is not listened to any more."""
        self.fail(f"the guest broke the rules: {str(error) or 'it does not answer'}")
        return EngineUnavailable(f"the jar was lost: {self.lost}")

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
            self._unread += weight(frame)
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


def weight(frame: protocol.Frame) -> int:
    return len(frame.payload) + 200  # the frame itself is not nothing


async def put(link: Link, area: Area, files: Sequence[InputFile], limits: Limits, mode: int = 0o644) -> None:
    memory = limits.memory_mb << 20
    if sum(len(file.content) for file in files) > max(memory - GUEST_BYTES, memory // 2):
        raise LimitExceeded(
            f"{files[0].path}: the inputs do not fit into {limits.memory_mb} MB of memory, files included",
            field="input_files",
        )
    streams: dict[int, InputFile] = {}
    try:
        for file in files:
            stream = link.open("put", file.content, area=area.value, path=file.path, mode=mode)
            streams[stream] = file
            await link.write_body(stream, file.content, 4 * PATIENCE_S)
        for stream, file in streams.items():
            error = (await link.answer(stream)).json().get("error")
            if error == tree.TOO_LARGE:
                raise LimitExceeded(
                    f"{file.path}: the inputs do not fit into a workspace of "
                    f"{limits.workspace_mb} MB and {limits.workspace_files} files",
                    field="input_files",
                )
            if error:
                raise PathNotAllowed(f"{file.path}: cannot be written ({error})", reason=str(error))
    except (TimeoutError, protocol.ProtocolError) as error:
        raise link.broken(error) from error
    finally:
        for stream in streams:
            link.forget(stream)


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
    try:
        while not collector.done:
            collector.take(await link.answer(stream))
    except (TimeoutError, protocol.ProtocolError, LookupError, TypeError, ValueError) as error:
        raise link.broken(error) from error
    finally:
        link.forget(stream)
    return collector.collected()
