"""What all calls of one application share: the service, how long it waits for whom, and memory for bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from belljar.engines import ENGINES
from belljar.engines.base import Check, Probe
from belljar.errors import QueueFull
from belljar.service import Service
from belljar.wiring import choice_for

__all__ = ["Desk", "Intake", "Patience"]

BODY_SLACK_BYTES = 4 << 20
"""For what a body holds besides the content of files."""
MAX_BODY_BYTES = 128 << 20
"""Whatever policy allows: a body is held in memory. Larger inputs are put into the project's own folder."""
ADMITTED_AT_ONCE = 32
"""Deciding on a run takes a millisecond that nobody else gets; between so many, others have their turn."""
BODIES_IN_MEMORY = 4
"""So many of the largest that can be sent, all callers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the service waits for whom, in seconds."""

    headers_s: float = 10.0
    """From a connection or its first byte to the end of the request's headers."""
    body_s: float = 60.0
    stalled_s: float = 30.0
    """A reader that takes nothing for so long is dropped."""
    heartbeat_s: float = 15.0
    """Longest silence of an event stream."""
    probe_s: float = 5.0
    """How long what the engines' probes found is repeated."""
    probing_s: float = 3.0
    """An engine that has not said by then what it can do is none that can be used."""
    elsewhere_s: float = 30.0
    """For a run that another process of the service has taken."""


class Intake:
    """Memory that bodies take, from their first byte until the run that they ask for is over."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self.held = 0

    def take(self, size: int) -> None:
        if self.held + size > self._at_most:
            raise QueueFull("the bodies of other requests take all the memory there is for them; try again")
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


class Desk:
    """What all calls of one application share."""

    def __init__(self, service: Service, patience: Patience) -> None:
        self.service = service
        self.patience = patience
        terms = service.lifecycle.policies.operators_word(None, None).provenance
        self.max_input_bytes = int(terms["limits.input_mb"].ceiling) << 20
        self.max_body_bytes = min(self.max_input_bytes * 4 // 3 + BODY_SLACK_BYTES, MAX_BODY_BYTES)
        self.intake = Intake(BODIES_IN_MEMORY * self.max_body_bytes)
        self.admission = asyncio.Semaphore(ADMITTED_AT_ONCE)
        self._probing = asyncio.Lock()
        self._probed: list[Probe] = []
        self._probe_again_at = 0.0

    async def probes(self) -> list[Probe]:
        """Of every engine, that in use first; not anew for every caller, because it takes its time."""
        clock = asyncio.get_running_loop().time
        async with self._probing:
            if not self._probed or clock() > self._probe_again_at:
                own = self.service.engine
                others = (self._other(name) for name in ENGINES if name != own.name)
                self._probed = await asyncio.gather(self._in_time(own.name, own.probe()), *others)
                self._probe_again_at = clock() + self.patience.probe_s
            return self._probed

    async def _other(self, name: str) -> Probe:
        """Of an engine that nothing runs on: whatever ails it is found, and no fault of ours."""
        try:
            return await self._in_time(name, ENGINES[name](choice_for(self.service.config)).probe())
        except Exception as error:
            return _unusable(name, str(error) or type(error).__name__)

    async def _in_time(self, name: str, probing: Awaitable[Probe]) -> Probe:
        try:
            async with asyncio.timeout(self.patience.probing_s):
                return await probing
        except TimeoutError:
            return _unusable(name, f"it did not answer within {self.patience.probing_s:g} s")


def _unusable(name: str, what: str) -> Probe:
    return Probe(name, (Check("engine", False, what, "`belljar doctor` looks at it without haste"),))
