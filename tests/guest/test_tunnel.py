"""The jar's end of its way out, with real sockets; the host is played by the tests, frame by frame."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from belljar.guest import protocol
from belljar.guest.tunnel import MAX_LINGERING, Tunnels

MOST = 4


class Jar:
    """The guest's loop, one turn at a time."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.sent = bytearray()
        self.tunnels = Tunnels(self.poll, self.sent.extend)
        self.tunnels.listen(0, MOST)
        assert self.tunnels._listener is not None
        self.port = self.tunnels._listener.getsockname()[1]

    def close(self) -> None:
        """A guest never does: it ends."""
        for connection in list(self.tunnels._by_fd.values()):
            connection.close()
        assert self.tunnels._listener is not None
        self.tunnels._listener.close()

    def turn(self) -> int:
        ready = self.poll.poll(20)
        for fd, events in ready:
            self.tunnels.ready(fd, events)
        return len(ready)

    def frames(self, turns: int = 50) -> list[protocol.Frame]:
        """What it has said, when nothing happens any more."""
        while turns and self.turn():
            turns -= 1
        assert turns, "it never comes to rest"
        found = list(protocol.Decoder().feed(bytes(self.sent)))
        self.sent.clear()
        return found

    def hear(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self.tunnels.hear(protocol.Frame(kind, stream, payload))

    def room(self, stream: int, count: int) -> None:
        [frame] = protocol.Decoder().feed(protocol.encode_room(stream, count))
        self.tunnels.hear(frame)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), 5)
        sock.settimeout(5)
        return sock


@pytest.fixture
def jar() -> Iterator[Jar]:
    one = Jar()
    yield one
    one.close()


def kinds(frames: list[protocol.Frame]) -> list[tuple[int, int]]:
    return [(frame.kind, frame.stream) for frame in frames]


def test_each_connection_is_an_odd_stream(jar: Jar) -> None:
    with jar.connect(), jar.connect():
        assert kinds(jar.frames()) == [(protocol.OPEN, 1), (protocol.OPEN, 3)]


def test_bytes_pass_in_both_directions(jar: Jar) -> None:
    with jar.connect() as program:
        program.sendall(b"question")
        assert jar.frames()[1:] == [protocol.Frame(protocol.DATA, 1, b"question")]
        jar.hear(protocol.DATA, 1, b"answer")
        assert program.recv(100) == b"answer"


def test_no_more_is_sent_than_the_host_has_room_for(jar: Jar) -> None:
    with jar.connect() as program:
        program.setblocking(False)
        sent = 0
        for _ in range(100):
            try:
                sent += program.send(bytes(1 << 16))
            except BlockingIOError:
                jar.turn()
        frames = jar.frames()
        assert sum(len(frame.payload) for frame in frames if frame.kind == protocol.DATA) == protocol.WINDOW
        assert sent > protocol.WINDOW
        jar.room(1, 1000)
        assert sum(len(frame.payload) for frame in jar.frames()) == 1000


def test_a_connection_that_is_not_read_stops_alone(jar: Jar) -> None:
    with jar.connect() as lazy, jar.connect() as keen:
        jar.frames()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(2):
            jar.hear(protocol.DATA, 1, bytes(protocol.WINDOW // 2))
        jar.hear(protocol.DATA, 3, b"through")
        assert keen.recv(100) == b"through"


def test_the_host_is_told_of_room_once_there_is_some(jar: Jar) -> None:
    with jar.connect():
        jar.frames()
        jar.hear(protocol.DATA, 1, bytes(protocol.WINDOW // 4))
        [frame] = jar.frames()
        assert (frame.kind, frame.room()) == (protocol.ROOM, protocol.WINDOW // 4)


def test_half_a_connection_can_end(jar: Jar) -> None:
    with jar.connect() as program:
        program.shutdown(socket.SHUT_WR)
        assert kinds(jar.frames()) == [(protocol.OPEN, 1), (protocol.EOF, 1)]
        jar.hear(protocol.DATA, 1, b"still")
        jar.hear(protocol.EOF, 1)
        assert program.recv(100) == b"still"
        assert program.recv(100) == b""
        assert kinds(jar.frames()) == [(protocol.END, 1)]


def test_a_refusal_is_read_although_the_program_still_talks(jar: Jar) -> None:
    with jar.connect() as program:
        program.sendall(bytes(200_000))
        jar.frames()
        jar.hear(protocol.DATA, 1, b"refused")
        jar.hear(protocol.END, 1)
        jar.frames()
        program.sendall(bytes(100_000))
        jar.frames()
        assert program.recv(100) == b"refused"
        assert program.recv(100) == b""


def test_a_program_that_hangs_up_ends_its_stream(jar: Jar) -> None:
    program = jar.connect()
    jar.frames()
    program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    program.close()
    assert kinds(jar.frames()) == [(protocol.END, 1)]


def test_more_than_the_most_wait_until_one_is_over(jar: Jar) -> None:
    programs = [jar.connect() for _ in range(MOST + 2)]
    assert [kind for kind, _ in kinds(jar.frames())].count(protocol.OPEN) == MOST
    jar.hear(protocol.END, 1)
    assert (protocol.OPEN, 2 * MOST + 1) in kinds(jar.frames())
    for program in programs:
        program.close()


def test_programs_that_never_hang_up_hold_no_more_than_a_few(jar: Jar) -> None:
    programs = []
    for number in range(3 * MAX_LINGERING):
        programs.append(jar.connect())
        assert (protocol.OPEN, 2 * number + 1) in kinds(jar.frames())
        jar.hear(protocol.END, 2 * number + 1)
    jar.frames()
    assert len(jar.tunnels._by_fd) <= MAX_LINGERING
    for program in programs:
        program.close()


def test_what_was_for_a_program_is_still_there_when_it_reads_late(jar: Jar) -> None:
    """The host has ended more streams than may linger, and their programs have not read a byte."""
    programs = []
    for number in range(2 * MAX_LINGERING):
        programs.append(jar.connect())
        jar.frames()
        for _ in range(2):
            jar.hear(protocol.DATA, 2 * number + 1, bytes(protocol.WINDOW // 2))
        jar.hear(protocol.END, 2 * number + 1)
        jar.frames()
    for program in programs:
        left = protocol.WINDOW
        while left:
            jar.frames()
            left -= len(program.recv(left))
        program.close()


def test_a_program_that_has_said_all_may_still_read(jar: Jar) -> None:
    with jar.connect() as program:
        jar.frames()
        for _ in range(2):
            jar.hear(protocol.DATA, 1, bytes(protocol.WINDOW // 2))
        jar.hear(protocol.END, 1)
        program.shutdown(socket.SHUT_WR)
        left = protocol.WINDOW
        while left:
            jar.frames()
            left -= len(program.recv(left))
        jar.frames()
    assert not jar.tunnels._by_fd


def test_a_port_that_is_taken_is_an_error(jar: Jar) -> None:
    with pytest.raises(OSError, match="in use"):
        Tunnels(jar.poll, jar.sent.extend).listen(jar.port, MOST)


def test_it_rests_when_nothing_happens(jar: Jar) -> None:
    """A connection whose end has been heard of is not told again and again."""
    with jar.connect() as program:
        program.shutdown(socket.SHUT_WR)
        jar.frames()
        assert jar.turn() == 0
