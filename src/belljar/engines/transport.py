"""A connected socket as a transport, ready at once.

asyncio's own takes several turns of the event loop to set up and to close; a jar lives for a few
milliseconds, so they are felt.
"""

from __future__ import annotations

import asyncio
import socket

_READ_BYTES = 1 << 18
_HIGH_WATER = 1 << 20


class SocketTransport(asyncio.WriteTransport):
    """Only what `Link` uses. The protocol hears of data, of the end, and when to stop and go on writing."""

    def __init__(self, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._sock = sock
        self._fd = sock.fileno()  # asyncio asks after a socket by its repr, which takes system calls
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._paused = False
        self._closed = False
        sock.setblocking(False)
        protocol.connection_made(self)
        self._loop.add_reader(self._fd, self._readable)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closed:
            return
        if not self._unsent:
            try:
                data = memoryview(data)[self._sock.send(data) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self._end(error)
                return
            if not data:
                return
            self._loop.add_writer(self._fd, self._writable)
        self._unsent += data
        if len(self._unsent) > _HIGH_WATER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def abort(self) -> None:
        self._end(None)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._end(None)

    def _writable(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            if self._paused:
                self._paused = False
                self._protocol.resume_writing()

    def _end(self, error: OSError | None) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._sock.close()
            self._protocol.connection_lost(error)
