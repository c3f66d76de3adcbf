"""What every jar that is in use takes right now, looked at once a second, and a word when that is much.

One task looks at all of them, in a thread, because it reads a handful of files for each. A run's own events
tell of an alert when it begins, not for as long as it lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from belljar.execution.lifecycle import Lifecycle
from belljar.execution.live import LiveRun
from belljar.execution.sessions import Sessions
from belljar.execution.upkeep import kept_up
from belljar.metrics import Metrics
from belljar.models import Limits

__all__ = ["Alert", "Sampler", "Usage"]

EVERY_S = 1.0
CPU_ALERT = 0.8
"""Of the cores that were granted, and so many times in a row."""
CPU_IN_A_ROW = 3
MEMORY_ALERT = 0.9


class Alert(StrEnum):
    CPU = "cpu"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one jar, as it was when it was last looked at. The names are seed 003's."""

    kind: str
    """`run` or `session`."""
    id: str
    project_id: str
    cpu_usage_percent: float
    """100 is one core."""
    cpu_cores: float
    memory_usage_mb: float
    memory_limit_mb: int
    pids_current: int
    pids_limit: int
    network_tx_bytes: int
    network_rx_bytes: int
    alerts: tuple[Alert, ...]


class _Place(NamedTuple):
    """A jar in use, and the runs in it."""

    kind: str
    id: str
    project_id: str
    limits: Limits
    counters: Callable[[], Mapping[str, int]]
    runs: tuple[LiveRun, ...]


@dataclass(slots=True)
class _Track:
    """What is remembered of a jar from one look to the next."""

    at: float
    cpu_us: int
    busy: int = 0
    """Looks in a row at which it used nearly all of its cores."""
    alerts: tuple[Alert, ...] = ()


class Sampler:
    def __init__(
        self, lifecycle: Lifecycle, sessions: Sessions, metrics: Metrics, *, every_s: float = EVERY_S
    ) -> None:
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._metrics = metrics
        self._every_s = every_s
        self._tracks: dict[str, _Track] = {}
        self._seen: list[Usage] = []

    def usage(self, projects: frozenset[str] | None = None) -> list[Usage]:
        return [one for one in self._seen if projects is None or one.project_id in projects]

    async def watch(self) -> None:
        """Until it is cancelled."""
        await kept_up("the look at what jars take", self.look, every_s=self._every_s)

    async def look(self) -> None:
        places = list(self._places())
        if not places:
            self._tracks, self._seen = {}, []
            return
        found = await asyncio.to_thread(lambda: [_counted(place) for place in places])
        now = asyncio.get_running_loop().time()
        tracks = {place.id: self._tracks.get(place.id) for place in places}
        self._tracks = {}
        self._seen = []
        for place, counted in zip(places, found, strict=True):
            if counted is not None:
                self._seen.append(self._weigh(place, counted, tracks[place.id], now))

    def _places(self) -> Iterator[_Place]:
        for session in self._sessions.all_open:
            jar = session.kept.jar
            runs = tuple(session.live.values())
            yield _Place("session", session.id, session.project_id, session.grant.limits, jar.counters, runs)
        for live in self._lifecycle.live_runs:
            counters = getattr(live.jar, "counters", None)
            if counters is not None and live.engine is self._lifecycle.engine:
                record = live.record
                yield _Place("run", record.exec_id, record.project_id, live.grant.limits, counters, (live,))

    def _weigh(self, place: _Place, counted: Mapping[str, int], track: _Track | None, now: float) -> Usage:
        limits = place.limits
        cores = 0.0
        if track is None:
            track = _Track(now, counted["cpu_us"])
        elif now > track.at:
            cores = max(0, counted["cpu_us"] - track.cpu_us) / 1e6 / (now - track.at)
            track.at, track.cpu_us = now, counted["cpu_us"]
        track.busy = track.busy + 1 if cores >= CPU_ALERT * limits.cpu_cores else 0
        memory = counted.get("memory_now", 0)
        alerts = {
            Alert.CPU: track.busy >= CPU_IN_A_ROW,
            Alert.MEMORY: memory >= MEMORY_ALERT * (limits.memory_mb << 20),
        }
        raised = tuple(alert for alert, is_so in alerts.items() if is_so)
        usage = Usage(
            kind=place.kind,
            id=place.id,
            project_id=place.project_id,
            cpu_usage_percent=round(100 * cores, 1),
            cpu_cores=limits.cpu_cores,
            memory_usage_mb=round(memory / (1 << 20), 1),
            memory_limit_mb=limits.memory_mb,
            pids_current=max(0, counted.get("pids_now", 1) - 1),  # without the guest
            pids_limit=limits.pids,
            network_tx_bytes=counted.get("network_sent", 0),
            network_rx_bytes=counted.get("network_received", 0),
            alerts=raised,
        )
        for alert in set(raised) - set(track.alerts):
            self._metrics.alert(alert)
            for run in place.runs:
                run.tell("alert", **_alert(alert, usage))
        track.alerts = raised
        self._tracks[place.id] = track
        return usage


def _counted(place: _Place) -> Mapping[str, int] | None:
    try:
        return place.counters()
    except OSError:
        return None  # it is just going away


def _alert(alert: Alert, usage: Usage) -> dict[str, Any]:
    if alert is Alert.CPU:
        return {"resource": alert, "percent": usage.cpu_usage_percent, "cores": usage.cpu_cores}
    return {"resource": alert, "memory_mb": usage.memory_usage_mb, "limit_mb": usage.memory_limit_mb}
