"""What a run tells while it goes on, numbered, for any number of listeners from any point.

Bounded by the run's own output caps. When the run is over the events lie beside its artifacts, and
a listener that comes late reads the same lines from there.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from belljar.execution.contacts import Contacts
from belljar.models import Carried, Contacted, Ended, Event, Output, Shown, Started


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
        self.contacts = Contacts()
        self._news = asyncio.Event()
        self.closed = False

    def add(self, kind: str, **data: Any) -> None:
        self._events.append(RunEvent(len(self._events) + 1, kind, data))
        self._announce()

    def add_engine_event(self, event: Event) -> None:
        if isinstance(event, Output):
            text = base64.b64encode(event.data).decode("ascii")
            self.add(event.stream, text=event.data.decode("utf-8", "replace"), data_b64=text)
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
        self.closed = True
        self._announce()

    def lines(self) -> list[bytes]:
        return [event.line() for event in self._events]

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Every event after that number, as they come, until the run is over."""
        while True:
            news = self._news
            while after < len(self._events):
                event = self._events[max(0, after)]
                after = event.number
                yield event
            if self.closed:
                return
            await news.wait()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
