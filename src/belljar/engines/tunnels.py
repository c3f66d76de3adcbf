"""The host's end of the streams that a guest opens: each is a connection of a program to its way out.

Frames and room for them are handled here; what a program may reach is for the gate that it is handed to.
The guest is hostile: it may have so many streams open, send so much ahead, and not one more of either.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Protocol

from belljar.guest import protocol
from belljar.models import Carried, Contacted, Network, Owner

__all__ = ["MAX_OPEN", "NO_WAY_OUT", "TOLD", "Channel", "Gate", "Tunnel", "Tunnels", "WayOut", "told"]

NO_WAY_OUT = "this engine was made without egress, so nothing would decide what may be reached"
MAX_OPEN = 128
"""Connections of a jar at once; more wait in the jar until one is over."""

TOLD = 0
"""A kind of frame that the decoder lets nobody send: what the host itself has to tell a run, in its turn."""

Told = Contacted | Carried
Tell = Callable[[Told], None]


def told(frame: protocol.Frame) -> Told:
    """What a frame of that kind says."""
    said = frame.json()
    return Carried(**said) if "sent" in said else Contacted(**said)


class Gate(Protocol):
    """One jar's gate to the network: decides, tells, connects and counts."""

    sent: int
    received: int
    owners: frozenset[Owner | None]
    """Of the runs that are under way: it cannot be known which of them a connection is of."""

    @property
    def certificate(self) -> str: ...
    def open(self, tell: Tell) -> None: ...
    def shut(self) -> None: ...
    async def carry(self, client: Tunnel) -> None: ...


class WayOut(Protocol):
    """What an engine needs to hold a grant with a network; `belljar.egress` has it."""

    def gate(self, network: Network) -> Gate: ...


class Channel(Protocol):
    """What is needed of a link."""

    def write(self, data: bytes) -> None: ...
    async def writable(self) -> None: ...
    def insert(self, frame: protocol.Frame) -> None: ...


class Tunnel:
    """One connection. Reading and writing raise ConnectionResetError once the program's end is gone."""

    def __init__(self, link: Channel, stream: int) -> None:
        self._link = link
        self._stream = stream
        self._arrived = bytearray()
        self._taken = 0
        """Bytes handed out last: passed on when the next are asked for."""
        self._unsaid = 0
        """Bytes that were passed on, and the guest not told so."""
        self._room = protocol.WINDOW
        self._done = False
        self._gone = False
        self._said_end = False
        self._news = asyncio.Event()

    async def read(self) -> bytes:
        self._make_room()
        while not self._arrived:
            if self._done:
                return b""
            if self._gone:
                raise ConnectionResetError
            await self._wait()
        data = bytes(self._arrived)
        self._arrived.clear()
        self._taken = len(data)
        return data

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            while self._room == 0 and not self._gone:
                await self._wait()
            await self._link.writable()
            if self._gone or self._said_end:
                raise ConnectionResetError
            piece = view[: min(self._room, protocol.CHUNK)]
            self._room -= len(piece)
            self._link.write(protocol.encode(protocol.DATA, self._stream, bytes(piece)))
            view = view[len(piece) :]

    async def write_eof(self) -> None:
        if not self._gone and not self._said_end:
            self._link.write(protocol.encode(protocol.EOF, self._stream))

    def close(self) -> None:
        if not self._said_end:
            self._said_end = True
            if not self._gone:
                self._link.write(protocol.encode(protocol.END, self._stream))
            self.lose()

    def lose(self) -> None:
        self._gone = True
        self._news.set()

    @property
    def was_cut(self) -> bool:
        """Whether the program's end is gone before it had said all that it had to say."""
        return self._gone and not self._done

    def hear(self, frame: protocol.Frame) -> None:
        """ProtocolError for what an honest guest does not say."""
        if frame.kind == protocol.DATA:
            self._arrived += frame.payload
            if self._done or len(self._arrived) + self._taken + self._unsaid > protocol.WINDOW:
                raise protocol.ProtocolError("a tunnel that sends more than there is room for")
        elif frame.kind == protocol.EOF:
            self._done = True
        elif frame.kind == protocol.ROOM:
            self._room += frame.room()
            if self._room > protocol.WINDOW:
                raise protocol.ProtocolError("a tunnel that has more room than there is")
        elif frame.kind == protocol.END:
            self.lose()
        else:
            raise protocol.ProtocolError("a frame that is not a tunnel's")
        self._news.set()

    def _make_room(self) -> None:
        """For what was handed out last: whoever asks for more has passed it on."""
        self._unsaid += self._taken
        self._taken = 0
        if self._unsaid >= protocol.WINDOW // 4 and not self._gone:
            self._link.write(protocol.encode_room(self._stream, self._unsaid))
            self._unsaid = 0

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()


class Tunnels:
    """All of one jar. Nothing gets through unless somebody listens to what is decided."""

    def __init__(self, link: Channel, gate: Gate, most: int) -> None:
        self._link = link
        self._gate = gate
        self._most = most
        self._last_stream = -1
        self._tunnels: dict[int, Tunnel] = {}
        self._carrying: dict[int, asyncio.Task[None]] = {}
        self._runs: dict[int, Owner | None] = {}

    def begin(self, run: int, owner: Owner | None = None) -> None:
        """A run is under way, by the number of its stream; what is decided meanwhile is told there."""
        if not self._runs:
            self._gate.open(self._tell)
        self._runs[run] = owner
        self._gate.owners = frozenset(self._runs.values())

    def end(self, run: int) -> None:
        """With the last run every tunnel ends. May be said twice."""
        if self._runs.keys() == {run}:
            self._gate.shut()  # while it can still be told what its tunnels have moved
            self.close()
        self._runs.pop(run, None)
        self._gate.owners = frozenset(self._runs.values())

    def close(self) -> None:
        for task in self._carrying.values():
            task.cancel()

    def counters(self) -> Mapping[str, int]:
        return {"network_sent": self._gate.sent, "network_received": self._gate.received}

    def hear(self, frame: protocol.Frame) -> None:
        if frame.kind == protocol.OPEN:
            self._open(frame.stream)
        elif frame.stream in self._tunnels:  # else it is over, and the guest had not heard
            self._tunnels[frame.stream].hear(frame)
            if self._tunnels[frame.stream].was_cut:
                self._carrying[frame.stream].cancel()

    def _open(self, stream: int) -> None:
        if stream <= self._last_stream:
            raise protocol.ProtocolError("a tunnel that was there before")
        self._last_stream = stream
        # Twice: what the guest has done with may still be on its way to a slow server.
        if not self._runs or len(self._tunnels) >= 2 * self._most:
            self._link.write(protocol.encode(protocol.END, stream))
            return
        self._tunnels[stream] = Tunnel(self._link, stream)
        task = asyncio.create_task(self._gate.carry(self._tunnels[stream]))
        self._carrying[stream] = task
        task.add_done_callback(lambda _: self._carried(stream))

    def _carried(self, stream: int) -> None:
        del self._carrying[stream]
        self._tunnels.pop(stream).close()

    def _tell(self, news: Told) -> None:
        payload = json.dumps(asdict(news)).encode()
        for run in self._runs:
            self._link.insert(protocol.Frame(TOLD, run, payload))
