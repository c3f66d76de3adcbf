"""The host's end of a jar's tunnels, against a guest that a program has taken over, frame by frame."""

from __future__ import annotations

import asyncio
import random
import select
from collections.abc import Awaitable, Callable

import pytest

from belljar.engines.link import Link
from belljar.engines.tunnels import TOLD, Tell, Tunnel, Tunnels, told
from belljar.guest import protocol, tunnel
from belljar.models import Carried, Contacted, Owner

MOST = 2
RUN = 2


class Gate:
    """Hands each tunnel to the test."""

    certificate = ""
    owners: frozenset[Owner | None] = frozenset()

    def __init__(self, carry: Callable[[Tunnel], Awaitable[None]]) -> None:
        self._carry = carry
        self.sent = self.received = 0
        self.tell: Tell | None = None

    def open(self, tell: Tell) -> None:
        self.tell = tell

    def shut(self) -> None:
        self.tell = None

    async def carry(self, client: Tunnel) -> None:
        try:
            await self._carry(client)
        except OSError:
            pass


class Guest(asyncio.Transport):
    """What the host says to it, and what it says to the host."""

    def __init__(self, carry: Callable[[Tunnel], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self.heard: list[protocol.Frame] = []
        self._decoder = protocol.Decoder()
        self.link = Link()
        self.link.connection_made(self)
        if carry is not None:
            self.gate = Gate(carry)
            self.tunnels = self.link.tunnels = Tunnels(self.link, self.gate, MOST)

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.heard += self._decoder.feed(data)

    def abort(self) -> None:
        pass

    async def say(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self.link.data_received(protocol.encode(kind, stream, payload))
        for _ in range(5):
            await asyncio.sleep(0)


async def forever(tunnel: Tunnel) -> None:
    await asyncio.Event().wait()


async def echo(tunnel: Tunnel) -> None:
    while data := await tunnel.read():
        await tunnel.write(data)
    await tunnel.write_eof()


async def test_a_stream_of_a_jar_without_network_is_the_end_of_it() -> None:
    guest = Guest()
    await guest.say(protocol.OPEN, 1)
    assert guest.link.lost == "a way out that was not granted"


async def test_a_tunnel_carries_bytes_and_ends_of_both_directions() -> None:
    guest = Guest(echo)
    guest.tunnels.begin(RUN)
    await guest.say(protocol.OPEN, 1)
    await guest.say(protocol.DATA, 1, b"hello")
    await guest.say(protocol.EOF, 1)
    assert guest.heard == [
        protocol.Frame(protocol.DATA, 1, b"hello"),
        protocol.Frame(protocol.EOF, 1, b""),
        protocol.Frame(protocol.END, 1, b""),
    ]


async def test_no_more_is_sent_than_the_guest_has_room_for() -> None:
    async def flood(tunnel: Tunnel) -> None:
        await tunnel.write(bytes(2 * protocol.WINDOW))

    guest = Guest(flood)
    guest.tunnels.begin(RUN)
    await guest.say(protocol.OPEN, 1)
    assert sum(len(frame.payload) for frame in guest.heard) == protocol.WINDOW
    guest.heard.clear()
    await guest.say(protocol.ROOM, 1, (1000).to_bytes(4, "big"))
    assert sum(len(frame.payload) for frame in guest.heard) == 1000
    guest.tunnels.close()


async def test_room_is_given_back_when_bytes_were_passed_on() -> None:
    guest = Guest(echo)
    guest.tunnels.begin(RUN)
    await guest.say(protocol.OPEN, 1)
    await guest.say(protocol.DATA, 1, bytes(protocol.WINDOW // 2))
    assert [frame.room() for frame in guest.heard if frame.kind == protocol.ROOM] == [protocol.WINDOW // 2]
    guest.tunnels.close()


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([(protocol.DATA, bytes(protocol.WINDOW + 1))], id="more-than-there-is-room-for"),
        pytest.param([(protocol.DATA, bytes(protocol.WINDOW // 2))] * 3, id="more-in-pieces"),
        pytest.param([(protocol.ROOM, (1).to_bytes(4, "big"))], id="more-room-than-there-is"),
        pytest.param([(protocol.ROOM, b"12345")], id="room-that-is-no-number"),
        pytest.param([(protocol.EOF, b""), (protocol.DATA, b"x")], id="bytes-after-the-end"),
        pytest.param([(protocol.OUT, b"x")], id="a-programs-output"),
        pytest.param([(protocol.NOTE, b"{}")], id="a-note"),
        pytest.param([(protocol.OPEN, b"")], id="opened-twice"),
    ],
)
async def test_a_guest_that_breaks_the_rules_of_tunnels_is_lost(frames: list[tuple[int, bytes]]) -> None:
    guest = Guest(forever)
    guest.tunnels.begin(RUN)
    await guest.say(protocol.OPEN, 1)
    for kind, payload in frames:
        await guest.say(kind, 1, payload)
    assert guest.link.lost


async def test_frames_of_tunnels_that_are_over_are_dropped() -> None:
    guest = Guest(forever)
    await guest.say(protocol.DATA, 7, b"x")
    assert guest.link.lost is None


async def test_a_tunnel_that_is_cut_ends_at_once() -> None:
    guest = Guest(forever)
    guest.tunnels.begin(RUN)
    for stream in range(1, 201, 2):
        await guest.say(protocol.OPEN, stream)
        await guest.say(protocol.END, stream)
    assert not guest.heard
    assert not guest.tunnels._tunnels


async def test_there_are_never_more_tunnels_than_twice_the_most() -> None:
    guest = Guest(forever)
    guest.tunnels.begin(RUN)
    for stream in range(1, 21, 2):
        await guest.say(protocol.OPEN, stream)
    assert [frame.stream for frame in guest.heard if frame.kind == protocol.END] == list(range(9, 21, 2))
    guest.tunnels.close()


async def test_nothing_is_opened_when_no_run_is_under_way() -> None:
    guest = Guest(forever)
    await guest.say(protocol.OPEN, 1)
    assert guest.heard == [protocol.Frame(protocol.END, 1, b"")]


async def test_tunnels_end_with_the_last_run() -> None:
    guest = Guest(forever)
    guest.tunnels.begin(RUN)
    guest.tunnels.begin(RUN + 2)
    await guest.say(protocol.OPEN, 1)
    guest.tunnels.end(RUN)
    await asyncio.sleep(0)
    assert not guest.heard
    guest.tunnels.end(RUN + 2)
    for _ in range(3):
        await asyncio.sleep(0)
    assert guest.heard == [protocol.Frame(protocol.END, 1, b"")]
    assert guest.gate.tell is None


def test_a_gate_knows_whose_runs_are_under_way() -> None:
    guest = Guest(forever)
    guest.tunnels.begin(RUN, Owner("shop", "clerk"))
    guest.tunnels.begin(RUN + 2)
    assert guest.gate.owners == {Owner("shop", "clerk"), None}
    guest.tunnels.end(RUN)
    assert guest.gate.owners == {None}
    guest.tunnels.end(RUN + 2)
    assert not guest.gate.owners


async def test_what_is_decided_is_told_to_the_run_in_its_turn() -> None:
    guest = Guest(forever)
    run = guest.link.open("exec")
    guest.tunnels.begin(run)
    assert guest.gate.tell is not None
    news: list[Contacted | Carried] = [
        Contacted(number=1, at="", host="a.test", port=80, allowed=True, rule="x"),
        Carried(number=1, sent=2, received=3),
    ]
    for one in news:
        guest.gate.tell(one)
    frames = [await guest.link.next(run) for _ in news]
    assert {frame.kind for frame in frames} == {TOLD}
    assert [told(frame) for frame in frames] == news


async def test_a_lost_jar_ends_its_tunnels() -> None:
    ended = asyncio.Event()

    async def wait(tunnel: Tunnel) -> None:
        try:
            await tunnel.read()
        finally:
            ended.set()

    guest = Guest(wait)
    guest.tunnels.begin(RUN)
    await guest.say(protocol.OPEN, 1)
    guest.link.fail("gone")
    await asyncio.wait_for(ended.wait(), 30)


class Both:
    """The guest's end and the host's, with nothing in between but their frames."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._said = bytearray()
        self.guest = tunnel.Tunnels(self._poll, self._said.extend)
        self.guest.listen(0, 8)
        assert self.guest._listener is not None
        self.port = self.guest._listener.getsockname()[1]
        self.host = Guest(echo)
        self.host.tunnels._most = 8
        self.host.tunnels.begin(RUN)

    async def turn(self) -> None:
        for fd, events in self._poll.poll(0):
            self.guest.ready(fd, events)
        said, self._said[:] = bytes(self._said), b""
        self.host.link.data_received(said)
        await asyncio.sleep(0)
        heard, self.host.heard[:] = list(self.host.heard), []
        for frame in heard:
            self.guest.hear(frame)

    def close(self) -> None:
        self.host.tunnels.close()
        for connection in list(self.guest._by_fd.values()):
            connection.close()
        assert self.guest._listener is not None
        self.guest._listener.close()


@pytest.mark.parametrize("seed", range(5))
async def test_bytes_arrive_as_they_were_sent_however_they_are_cut(seed: int) -> None:
    """More connections than there may be at once, of all sizes, written and read in pieces of all sizes."""
    chance = random.Random(seed)
    ends = Both()

    async def echoed(content: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", ends.port, limit=chance.randrange(1, 100_000)
        )
        writing = asyncio.create_task(write(writer, memoryview(content)))
        heard = await reader.read()
        await writing
        writer.close()
        return heard

    async def write(writer: asyncio.StreamWriter, content: memoryview) -> None:
        while content:
            piece = chance.randrange(1, 100_000)
            writer.write(content[:piece])
            content = content[piece:]
            await writer.drain()
        writer.write_eof()

    sent = [chance.randbytes(chance.choice((0, 1, 70_000, 700_000))) for _ in range(20)]
    asking = asyncio.gather(*map(echoed, sent))
    while not asking.done():
        await ends.turn()
    ends.close()
    assert ends.host.link.lost is None
    assert await asking == sent
