"""One session: a jar that is kept, and to the runs in it an engine, which gives each a seat there.

So a run in a session has its turn, its record and its receipt like any other. What the session is made of
(memory, network, image) was granted when it began: a run in it has that, if policy lets it have so much, and
can only ask for other clocks and caps.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from belljar.engines.base import WORK, Engine, Jar, Probe
from belljar.engines.kept import KeptJar
from belljar.errors import ApprovalDenied, BadRequest, BelljarError, Conflict
from belljar.execution.live import LiveRun
from belljar.execution.shapes import shaped
from belljar.execution.surroundings import Surroundings, files_of
from belljar.models import Grant, Language

__all__ = ["OPEN", "Session", "State"]


class State(StrEnum):
    READY = "ready"
    PAUSED = "paused"  # every process in it stands still
    ENDED = "ended"
    LOST = "lost"  # the service died first


OPEN = (State.READY, State.PAUSED)


@dataclass(eq=False, kw_only=True)
class Session:
    """One session that this process holds."""

    id: str
    project_id: str
    grant: Grant
    image: str | None
    """As policy named it."""
    overrides: Mapping[str, object]
    created_at: datetime
    idle_s: float
    ends_at: datetime
    """At the latest, however much it is used."""
    max_age_s: float
    token_id: str = ""
    role: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    state: State = State.READY
    reason: str = ""
    """Why it ended."""
    last_used: datetime = datetime.min.replace(tzinfo=UTC)
    runs: int = 0
    live: dict[str, LiveRun] = field(default_factory=dict, repr=False)
    """Runs that go on in it, by id."""
    watchers: int = 0
    """Who are told of changes to its files."""
    kept: KeptJar = field(repr=False)
    engine: Engine = field(repr=False)
    now: Callable[[], datetime] = field(repr=False)
    begun: int = field(default=0, init=False)
    """Programs, terminals among them."""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    """Held while its state changes."""
    _holder: asyncio.Task[Any] | None = field(default=None, init=False, repr=False)
    """Of the run that has it to itself."""
    _changes: int = field(default=0, init=False, repr=False)
    """To its files, that are under way and no run's."""

    # As an engine, to the runs in it

    @property
    def name(self) -> str:
        return self.engine.name

    async def probe(self) -> Probe:
        return await self.engine.probe()

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        return self.engine.interpreters()

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        """In the shape of the session. The image was chosen when it began, whatever the language.

        Raises:
            BadRequest: it has more than a run of this grant may have.
            Conflict: another run has it to itself.
        """
        self.check_free()
        if grant.image != self.image:
            message = "the session has another image than policy gives this run; start one with that"
            raise BadRequest(message, field="image")
        return shaped(grant, self.grant)

    async def create(self, grant: Grant) -> Jar:
        self.check(State.READY)
        self.check_free()
        self.begun += 1
        cwd = f"{WORK}/{self.working_dir}" if self.working_dir else WORK
        return self.kept.seat(grant, env=self.env, cwd=cwd)

    async def close(self) -> None:
        """A run does not end the session it is in."""

    # For its owner

    @property
    def expires_at(self) -> datetime:
        """If nobody uses it any more."""
        return (
            self.ends_at if self.live else min(self.ends_at, self.last_used + timedelta(seconds=self.idle_s))
        )

    def used(self) -> None:
        self.last_used = self.now()

    def check(self, *states: State) -> None:
        if self.state not in (states or OPEN):
            why = f" ({self.reason})" if self.reason else ""
            raise Conflict(f"session {self.id} is {self.state}{why}", field="session_id")

    def check_free(self) -> None:
        if self._holder not in (None, asyncio.current_task()):
            message = "a run that a person approved has the session to itself; try again when it is over"
            raise Conflict(message, field="session_id")

    @contextmanager
    def changing(self) -> Iterator[KeptJar]:
        """For who changes its files and is no run in it.

        Raises:
            Conflict: it is over, or a run has it to itself.
        """
        self.check()
        self.check_free()
        self.used()
        self._changes += 1
        try:
            yield self.kept
        finally:
            self._changes -= 1

    async def surroundings(self) -> Surroundings:
        """
        Raises:
            Refused: not all that lies in it can be told by its bytes.
        """
        begun = self.begun  # before: what is begun while this looks may come too late to be seen
        return Surroundings(await files_of(self.kept), begun)

    @asynccontextmanager
    async def alone(self, seen: Surroundings, *, still: bool) -> AsyncIterator[None]:
        """For a run that a person approved: it finds what was seen, and nobody else changes anything.

        With `still`, all processes that are there stand still meanwhile.

        Raises:
            ApprovalDenied: it is not that any more, or somebody is about to change it.
        """
        if self._holder is not None or self._changes:
            raise ApprovalDenied("somebody else changes the session; ask again")
        self._holder = asyncio.current_task()
        try:
            if still:
                await self.kept.signal_all(signal.SIGSTOP)
            if await self.surroundings() != seen:
                raise ApprovalDenied("what lies in the session is not what was approved any more; ask again")
            yield
        finally:
            self._holder = None
            with suppress(BelljarError):  # it is gone
                await self.kept.signal_all(signal.SIGCONT)

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of it and kept."""
        return {
            "session_id": self.id,
            "project_id": self.project_id,
            "state": self.state,
            "reason": self.reason,
            "engine": self.name,
            "created_at": self.created_at.isoformat(),
            "last_used": self.last_used.isoformat(),
            "expires_at": self.expires_at.isoformat(),
            "ends_at": self.ends_at.isoformat(),
            "idle_s": self.idle_s,
            "runs": self.runs,
            "running": list(self.live),
            "contexts": list(self.kept.contexts),
            "env_keys": sorted(self.env),
            "working_dir": self.working_dir,
            "grant_digest": self.grant.digest,
            "token_id": self.token_id,
        }
