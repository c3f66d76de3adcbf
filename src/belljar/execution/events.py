"""What a run tells while it goes on, numbered, for any number of listeners from any point.

Bounded by the run's own output caps: what a program writes in small pieces is told in larger ones, unless
somebody listens who would have to wait for that. Nothing that somebody has heard ever changes. When the run
is over the events lie beside its artifacts, and a listener that comes late reads the same lines from there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from belljar.execution.contacts import Contacts
from belljar.models import Carried, Contacted, Ended, Event, Output, Shown, Started, Stream

PIECE_BYTES = 4096
"""As long as nobody has heard it, output is added to the piece before it, up to this."""
MANY = 1000
"""Events after which a listener is told small pieces of output only now and then."""
PAUSE_S = 0.1


class RunEvent(NamedTuple):
    number: int
    """From 1, without gaps: what `Last-Event-ID` counts in."""
    kind: str
    """queued, packages, running, started, stdout, stderr, shown, network, alert, ended, finished."""
    data: Mapping[str, Any]

    def line(self) -> bytes:
        return json.dumps([self.number, self.kind, self.data]).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> RunEvent:
        return cls(*json.loads(line))


class EventLog:
    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self.reached: dict[str, int] = {}
        """When the run came to what for the first time, in nanoseconds of the clock on the wall."""
        self._growing: dict[Stream, bytearray] = {}
        """Output that nobody has heard yet: of one stream, or of both where there are many events."""
        self._since = 0.0
        """When it began to grow."""
        self.contacts = Contacts()
        self._news = asyncio.Event()
        self.closed = False

    def reach(self, point: str) -> None:
        self.reached.setdefault(point, time.time_ns())

    def add(self, kind: str, **data: Any) -> None:
        self.reach(kind)
        self._settle()
        self._events.append(RunEvent(len(self._events) + 1, kind, data))
        self._announce()

    def add_engine_event(self, event: Event) -> None:
        if isinstance(event, Output):
            self._add_output(event.stream, event.data)
        elif isinstance(event, Started):
            self.add("started", posture=event.posture)
        elif isinstance(event, Shown):
            self.add("shown", forms=event.forms)
        elif isinstance(event, Contacted):
            self.add("network", **asdict(self.contacts.decided(event)))
        elif isinstance(event, Carried):
            self.contacts.carried(event)
        elif isinstance(event, Ended):
            self.add("ended", verdict=event.verdict, exit_code=event.exit_code, signal=event.signal)

    def close(self) -> None:
        self._settle()
        self.closed = True
        self._announce()

    def lines(self) -> list[bytes]:
        self._settle()
        return [event.line() for event in self._events]

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Every event after that number, as they come, until the run is over."""
        while True:
            news = self._news
            wait_s = self._held_back_s()
            if wait_s is None:
                self._settle()
            while after < len(self._events):
                event = self._events[max(0, after)]
                after = event.number
                yield event
            if self.closed:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await news.wait()

    @property
    def _crowded(self) -> bool:
        return len(self._events) >= MANY

    def _held_back_s(self) -> float | None:
        """How long what grows is still kept from listeners; None if it is not."""
        left = self._since + PAUSE_S - time.monotonic()
        return left if self._growing and self._crowded and left > 0 else None

    def _add_output(self, stream: Stream, data: bytes) -> None:
        piece = self._growing.get(stream)
        if piece is not None and len(piece) + len(data) <= PIECE_BYTES:
            piece += data
            return
        if piece is not None or not self._crowded:  # the order of both streams is kept while they are few
            self._settle()
        if not self._growing:
            self._since = time.monotonic()
        self._growing[stream] = bytearray(data)
        self._announce()

    def _settle(self) -> None:
        """What has grown is an event from now on."""
        for stream, data in self._growing.items():
            told = {
                "text": data.decode("utf-8", "replace"),
                "data_b64": base64.b64encode(data).decode("ascii"),
            }
            self._events.append(RunEvent(len(self._events) + 1, stream, told))
        self._growing.clear()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
