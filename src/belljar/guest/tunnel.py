"""The jar's end of its way out: a listener on its own loopback, and a stream to the host for each connection.

Bytes pass as they are. What they mean (a proxy's protocol, a name, TLS) is for the host to read and to judge:
in here nobody could be believed anyway. Neither end sends more than the other has room for, so a
connection that is not read stops alone. Standard library only, nothing blocks.
"""

from __future__ import annotations

import select

from belljar.guest import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

MAX_LINGERING = 16
"""Connections that are over, but whose program has not hung up yet; of more, the oldest is cut."""
_SHUT_WR = 1


class Tunnels:
    def __init__(self, poll: select.poll, send: Callable[[bytes], None]) -> None:
        self._poll = poll
        self._send = send
        self._listener: socket.socket | None = None
        self._most = 0
        self._accepting = False
        self._next_stream = 1
        self._by_fd: dict[int, _Connection] = {}
        self._by_stream: dict[int, _Connection] = {}
        self._lingering: list[_Connection] = []

    def listen(self, port: int, most: int) -> None:
        """At most so many connections at once; more wait until one is over. OSError if the port is taken."""
        import socket  # few jars have a way out

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        self._listener, self._most = listener, most
        self._watch_listener()

    def ready(self, fd: int, events: int) -> None:
        """Something happened to a descriptor that may be one of ours."""
        connection = self._by_fd.get(fd)
        if connection is None:
            if self._listener is not None and fd == self._listener.fileno():
                self._accept(self._listener)
            return
        if events & select.POLLOUT:
            connection.push()
        if events & ~select.POLLOUT and connection.fd == fd:
            connection.pull()

    def hear(self, frame: protocol.Frame) -> None:
        connection = self._by_stream.get(frame.stream)
        if connection is not None:  # else it is over, and the host had not heard
            connection.hear(frame)

    # What a connection asks for

    def send(self, frame: bytes) -> None:
        self._send(frame)

    def watch(self, connection: _Connection, events: int) -> None:
        """No events at all is no watching: a hang-up would be told again and again."""
        if events:
            self._poll.register(connection.fd, events)
        elif connection.watched:
            self._poll.unregister(connection.fd)
        connection.watched = events

    def linger(self, connection: _Connection) -> None:
        """It has all that was for it; to close it now could take that away again. tcp(7)"""
        self._by_stream.pop(connection.stream, None)
        self._lingering.append(connection)
        while len(self._lingering) > MAX_LINGERING:
            self._lingering[0].close()
        self._watch_listener()

    def forget(self, connection: _Connection) -> None:
        self._by_stream.pop(connection.stream, None)
        del self._by_fd[connection.fd]
        if connection in self._lingering:
            self._lingering.remove(connection)
        self._watch_listener()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is left: nobody is let in before one that is in goes
            self._watch_listener(full=bool(self._by_fd))
            return
        sock.setblocking(False)
        stream = self._next_stream
        self._next_stream += 2
        self._by_fd[sock.fileno()] = self._by_stream[stream] = connection = _Connection(self, sock, stream)
        self._send(protocol.encode(protocol.OPEN, stream))
        connection.begin()
        self._watch_listener()

    def _watch_listener(self, *, full: bool = False) -> None:
        assert self._listener is not None
        wanted = not full and len(self._by_stream) < self._most
        if wanted and not self._accepting:
            self._poll.register(self._listener.fileno(), select.POLLIN)
        elif not wanted and self._accepting:
            self._poll.unregister(self._listener.fileno())
        self._accepting = wanted


class _Connection:
    """One program's connection; its stream."""

    def __init__(self, tunnels: Tunnels, sock: socket.socket, stream: int) -> None:
        self._tunnels = tunnels
        self._sock = sock
        self.fd = sock.fileno()
        self.stream = stream
        self.watched = 0
        self._room = protocol.WINDOW
        self._pending = bytearray()
        self._passed_on = 0
        """Bytes that the host has not been told yet that there is room for again."""
        self._read_all = False
        self._host_done = False
        self._over = False
        """The host has ended the stream; what the program still says is nobody's."""

    def begin(self) -> None:
        self._watch()

    def pull(self) -> None:
        """Read a piece from the program and send it on."""
        wanted = protocol.CHUNK if self._over else min(self._room, protocol.CHUNK)
        if wanted == 0 or self._read_all:
            return
        try:
            data = self._sock.recv(wanted)
        except BlockingIOError:
            return
        except OSError:
            self._cut()
            return
        if not data:
            self._read_all = True
            if not self._over:
                self._tunnels.send(protocol.encode(protocol.EOF, self.stream))
            self._settle()
        elif not self._over:
            self._room -= len(data)
            self._tunnels.send(protocol.encode(protocol.DATA, self.stream, data))
            self._watch()

    def hear(self, frame: protocol.Frame) -> None:
        if frame.kind == protocol.DATA:
            self._pending += frame.payload
            self.push()
        elif frame.kind == protocol.ROOM:
            self._room += frame.room()
            self._watch()
        elif frame.kind == protocol.EOF:
            self._host_done = True
            self.push()
        elif frame.kind == protocol.END:
            self._host_done = self._over = True
            self.push()

    def push(self) -> None:
        """Write what fits of what came from the host."""
        try:
            while self._pending:
                written = self._sock.send(memoryview(self._pending)[: protocol.CHUNK])
                del self._pending[:written]
                self._passed_on += written
        except BlockingIOError:
            pass
        except OSError:  # the program hung up
            self._cut()
            return
        if self._passed_on >= protocol.WINDOW // 4 and not self._over:
            self._tunnels.send(protocol.encode_room(self.stream, self._passed_on))
            self._passed_on = 0
        if self._host_done and not self._pending:
            self._say_end()
        else:
            self._watch()

    def close(self) -> None:
        if self.fd >= 0:
            self._tunnels.watch(self, 0)
            self._tunnels.forget(self)
            self._sock.close()
            self.fd = -1

    def _say_end(self) -> None:
        try:
            self._sock.shutdown(_SHUT_WR)
        except OSError:
            self._cut()
            return
        self._settle()

    def _settle(self) -> None:
        """One direction is done: perhaps both are."""
        told_all = self._host_done and not self._pending
        if told_all and self._read_all:
            self._cut()
            return
        if told_all and self._over:
            self._tunnels.linger(self)
        self._watch()

    def _cut(self) -> None:
        """It is over on this side; the host is told, unless it was first."""
        if not self._over:
            self._tunnels.send(protocol.encode(protocol.END, self.stream))
        self.close()

    def _watch(self) -> None:
        reading = not self._read_all and (self._over or self._room > 0)
        events = (select.POLLIN if reading else 0) | (select.POLLOUT if self._pending else 0)
        if events != self.watched:
            self._tunnels.watch(self, events)
