"""The attached streams of a container as a transport: stdin is written, stdout and stderr are told apart.

    stream (1 byte) │ 0 0 0 │ length (4 bytes) │ that many bytes of it

The engine speaks HTTP until the connection is upgraded; from then on it is a plain stream, and the
protocol below takes the place of the HTTP client's on the very same transport.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2


class Attached(asyncio.WriteTransport):
    """The stream once it is ours; letting go of it is the HTTP client's affair."""

    def __init__(self, stream: asyncio.WriteTransport, let_go: Callable[[], None]) -> None:
        super().__init__()
        self._stream = stream
        self._let_go = let_go

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._stream.write(data)

    def write_eof(self) -> None:
        self._stream.write_eof()

    def abort(self) -> None:
        self._stream.abort()  # the client would first wait until what was written is read
        self._let_go()


class Demultiplexer(asyncio.Protocol):
    """Passes stdout on to `target`, with all else that a transport has to say, and stderr to `aside`."""

    def __init__(self, target: asyncio.Protocol, aside: Callable[[bytes], None]) -> None:
        self._target = target
        self._aside = aside
        self._header = bytearray()
        self._stream = 0
        self._left = 0
        """Bytes of the current message that are still to come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._target.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) < _HEADER.size:
                    return
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()
                continue
            piece = bytes(view[: self._left])
            view = view[len(piece) :]
            self._left -= len(piece)
            if self._stream == _STDERR:
                self._aside(piece)
            else:
                self._target.data_received(piece)

    def pause_writing(self) -> None:
        self._target.pause_writing()

    def resume_writing(self) -> None:
        self._target.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._target.connection_lost(error)
