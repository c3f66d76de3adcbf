"""Sessions: a jar kept for several runs of one project, until it is closed, too old or idle for too long.

    start ─► ready ◄─► paused
               └────────┴─► ended   closed, idle, too old, or its jar died: the reason says which
                        └─► lost    the service ended before it

To a run a session is an engine: `create` gives it a seat in the jar that is there already. So a run in a
session has its turn, its record and its receipt like any other. What the session is made of (memory, network,
image) was granted when it began; a run in it can only ask for other clocks and caps.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from belljar import paths
from belljar.audit.records import AuditStore, Matter
from belljar.engines.base import WORK, Area, Engine, Jar, Probe
from belljar.engines.kept import KeptJar
from belljar.engines.link import GuestJar
from belljar.errors import BadRequest, BelljarError, Conflict, LimitExceeded, NotFound
from belljar.execution.lifecycle import Lifecycle
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.pool import shape_of
from belljar.execution.requests import check_environment
from belljar.execution.snapshots import Snapshot, Snapshots
from belljar.execution.submissions import Submission
from belljar.execution.workspace import check_project_id
from belljar.models import Grant, InputFile, Language

__all__ = ["Session", "SessionRules", "Sessions", "State"]

logger = logging.getLogger(__name__)

KIND = "session"
REVIEW_S = 1.0


class State(StrEnum):
    READY = "ready"
    PAUSED = "paused"  # every process in it stands still
    ENDED = "ended"
    LOST = "lost"  # the service died first


_OPEN = (State.READY, State.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    idle_s: float
    max_age_s: float
    per_project: int


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
    token_id: str = ""
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

    # As an engine, to the runs in it

    @property
    def name(self) -> str:
        return self.engine.name

    async def probe(self) -> Probe:
        return await self.engine.probe()

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        return self.engine.interpreters()

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        """The image was chosen when it began, whatever the language."""
        return replace(grant, image=self.grant.image) if grant.image == self.image else grant

    async def create(self, grant: Grant) -> Jar:
        if shape_of(grant) != shape_of(self.grant):
            raise BadRequest(
                "memory, cpu, network and image of a session are fixed at its start", field="limits"
            )
        self.check(State.READY)
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
        if self.state not in (states or _OPEN):
            why = f" ({self.reason})" if self.reason else ""
            raise Conflict(f"session {self.id} is {self.state}{why}", field="session_id")

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


class Sessions:
    def __init__(
        self,
        lifecycle: Lifecycle,
        engine: Engine,
        store: AuditStore,
        rules: SessionRules,
        *,
        epoch: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._lifecycle = lifecycle
        self._engine = engine
        self._store = store
        self._rules = rules
        self._epoch = epoch
        self._now = now
        self._open: dict[str, Session] = {}
        self._starting: list[str] = []
        """Projects, once for each session that is being made."""
        self.snapshots = Snapshots(lifecycle.workspace)

    async def start(
        self,
        project_id: str,
        *,
        overrides: Mapping[str, object] | None = None,
        role: str | None = None,
        env: Mapping[str, str] | None = None,
        working_dir: str = "",
        idle_s: float | None = None,
        max_age_s: float | None = None,
        snapshot: str | None = None,
        token_id: str = "",
    ) -> Session:
        """
        Raises:
            Refused, BadRequest: it may not or cannot be had.
            LimitExceeded: the project has as many as it may have.
            NotFound: there is no such snapshot.
        """
        check_project_id(project_id)
        files = await asyncio.to_thread(self.snapshots.load, project_id, snapshot) if snapshot else ()
        decision = self._lifecycle.decide(role=role, overrides=overrides or {})
        check_environment(env or {}, decision.grant)
        if working_dir:
            paths.validate(working_dir, field="working_dir")
        idle_s = _within(idle_s, self._rules.idle_s, "idle_s")
        max_age_s = _within(max_age_s, self._rules.max_age_s, "max_age_s")
        created_at = self._now()
        matter = Matter(
            kind=KIND,
            id=f"se-{secrets.token_hex(12)}",
            project_id=project_id,
            state=State.READY,
            created_at=created_at,
            body={"epoch": self._epoch},
        )
        self._take_room(project_id)
        try:
            await self._store.open_matter(matter)
            grant = await self._engine.fit(decision.grant, None)
            session = Session(
                id=matter.id,
                project_id=project_id,
                grant=grant,
                image=decision.grant.image,
                overrides=dict(overrides or {}),
                created_at=created_at,
                idle_s=idle_s,
                ends_at=created_at + timedelta(seconds=max_age_s),
                token_id=token_id,
                env=dict(env or {}),
                working_dir=working_dir,
                last_used=created_at,
                kept=await self._keep(grant, files),
                engine=self._engine,
                now=self._now,
            )
            self._open[session.id] = session
            await self._store.move_matter(self._matter(session), State.READY)
        except BaseException as error:
            await self._give_up(matter, error)
            raise
        finally:
            self._starting.remove(project_id)
        return session

    async def _give_up(self, matter: Matter, error: BaseException) -> None:
        """Nobody was told of it: nothing of it stays."""
        session = self._open.pop(matter.id, None)
        if session is not None:
            await session.kept.destroy()
        why = error.message if isinstance(error, BelljarError) else "it could not be begun"
        failed = replace(matter, state=State.ENDED, body={**matter.body, "reason": why})
        with suppress(BelljarError):  # perhaps it is the store that failed
            await self._store.move_matter(failed, State.READY)

    def _take_room(self, project_id: str) -> None:
        have = [one.project_id for one in self._open.values()].count(project_id)
        have += self._starting.count(project_id)
        if have >= self._rules.per_project:
            raise LimitExceeded(
                f"project {project_id} has {have} sessions; close one, or ask for more "
                "(sandbox.session.per_project)",
                field="project_id",
            )
        self._starting.append(project_id)

    async def _keep(self, grant: Grant, files: tuple[InputFile, ...]) -> KeptJar:
        jar = await self._engine.create(grant)
        try:
            if not isinstance(jar, GuestJar):
                message = "this image has no python3, so nothing in it can hold a session"
                raise BadRequest(message, field="image")
            kept = KeptJar(jar)
            for area, prefix in ((Area.ARTIFACTS, "artifacts/"), (Area.WORK, "")):
                mine = [
                    file for file in files if file.path.startswith("artifacts/") is (area is Area.ARTIFACTS)
                ]
                await kept.put(area, [replace(file, path=file.path.removeprefix(prefix)) for file in mine])
            return kept
        except BaseException:
            await jar.destroy()
            raise

    def get(self, session_id: str, projects: frozenset[str] | None = None) -> Session:
        """
        Raises:
            NotFound: there is none, or it belongs to a project that is not the caller's.
        """
        session = self._open.get(session_id)
        if session is None or (projects is not None and session.project_id not in projects):
            raise NotFound("there is no session of that id", field="session_id")
        return session

    @property
    def all_open(self) -> tuple[Session, ...]:
        return tuple(self._open.values())

    def __contains__(self, session: Session) -> bool:
        return session.id in self._open

    async def facts(self, session_id: str, projects: frozenset[str] | None = None) -> Mapping[str, Any]:
        """Of one that is open, or how one ended."""
        if session_id in self._open:
            return self.get(session_id, projects).facts
        matter = await self._store.matter(KIND, session_id)
        if matter is None or (projects is not None and matter.project_id not in projects):
            raise NotFound("there is no session of that id", field="session_id")
        return _past(matter)

    async def known(
        self, projects: frozenset[str] | None = None, *, ended: bool = False
    ) -> list[Mapping[str, Any]]:
        """Newest first."""
        mine = [one for one in self._open.values() if projects is None or one.project_id in projects]
        found: list[Mapping[str, Any]] = [one.facts for one in reversed(mine)]
        if ended:
            past = await self._store.matters(KIND, State.ENDED, State.LOST, projects=projects)
            found += map(_past, past)
        return found

    async def submit(self, session: Session, submission: Submission) -> LiveRun | Outcome:
        """A run in it. What the session asked of policy, the run asks too."""
        session.check(State.READY)
        submission = replace(
            submission,
            project_id=session.project_id,
            session_id=session.id,
            overrides={**session.overrides, **submission.overrides},
        )
        session.used()
        taken = await self._lifecycle.submit(submission, session)
        if isinstance(taken, LiveRun) and (exec_id := taken.record.exec_id) not in session.live:
            session.runs += 1
            session.live[exec_id] = taken
            taken.when_done(lambda: self._over(session, exec_id))
        return taken

    def _over(self, session: Session, exec_id: str) -> None:
        del session.live[exec_id]
        session.used()

    def extend(self, session: Session, seconds: float) -> None:
        """Let it live so much longer from now, within the longest that is allowed."""
        latest = session.created_at + timedelta(seconds=self._rules.max_age_s)
        session.check()
        if seconds <= 0 or self._now() + timedelta(seconds=seconds) > latest:
            raise LimitExceeded(
                f"a session lives at most {self._rules.max_age_s:g} s (sandbox.session.max_age_s)",
                field="seconds",
            )
        session.ends_at = self._now() + timedelta(seconds=seconds)
        session.idle_s = max(session.idle_s, seconds)
        session.used()

    async def pause(self, session: Session) -> None:
        session.check(State.READY)
        await session.kept.signal_all(signal.SIGSTOP)
        await self._move(session, State.PAUSED)

    async def resume(self, session: Session) -> None:
        session.check(State.PAUSED)
        await session.kept.signal_all(signal.SIGCONT)
        await self._move(session, State.READY)
        session.used()

    async def snapshot(self, session: Session) -> Snapshot:
        session.check()
        session.used()
        everything = await session.kept.everything()
        return await asyncio.to_thread(self.snapshots.save, session.project_id, everything.artifacts)

    async def fork(self, session: Session, count: int, token_id: str = "") -> list[Session]:
        """New sessions with the files of this one; its processes and variables stay where they are."""
        if not 1 <= count <= 100:
            raise BadRequest("a session is forked into 1 to 100", field="count")
        taken = await self.snapshot(session)
        made: list[Session] = []
        try:
            for _ in range(count):
                made.append(
                    await self.start(
                        session.project_id,
                        overrides=session.overrides,
                        env=session.env,
                        working_dir=session.working_dir,
                        idle_s=session.idle_s,
                        snapshot=taken.digest,
                        token_id=token_id,
                    )
                )
        except BaseException:
            for one in made:
                await self.end(one, "the fork it was part of failed")
            raise
        return made

    async def end(self, session: Session, reason: str = "closed") -> None:
        if session.state not in _OPEN:
            return
        session.reason = reason
        was, session.state = session.state, State.ENDED
        try:
            await session.kept.destroy()
            await self._store.move_matter(self._matter(session), was)
        except BelljarError as error:
            logger.warning("the end of session %s is not written down: %s", session.id, error)
        finally:
            del self._open[session.id]

    async def recover(self, is_alive: Callable[[str], bool]) -> int:
        """At the start: sessions of a process that is gone are lost. How many."""
        lost = 0
        for matter in await self._store.matters(KIND, *_OPEN):
            if not is_alive(str(matter.body.get("epoch", ""))):
                body = {**matter.body, "state": State.LOST, "reason": "the service ended"}
                await self._store.move_matter(replace(matter, state=State.LOST, body=body), matter.state)
                lost += 1
        return lost

    async def watch(self) -> None:
        """Ends those whose time is over or whose jar is gone, until it is cancelled."""
        while True:
            for session in list(self._open.values()):
                if not session.kept.alive:
                    await self.end(session, "its jar died")
                elif self._now() >= session.ends_at:
                    await self.end(session, "it reached its greatest age")
                elif self._now() >= session.expires_at:
                    await self.end(session, f"nobody used it for {session.idle_s:g} s")
            await asyncio.sleep(REVIEW_S)

    async def close(self) -> None:
        for session in list(self._open.values()):
            await self.end(session, "the service was stopped")

    async def _move(self, session: Session, state: State) -> None:
        was, session.state = session.state, state
        await self._store.move_matter(self._matter(session), was)

    def _matter(self, session: Session) -> Matter:
        return Matter(
            kind=KIND,
            id=session.id,
            project_id=session.project_id,
            state=session.state,
            created_at=session.created_at,
            body={**session.facts, "epoch": self._epoch},
        )


def _past(matter: Matter) -> dict[str, Any]:
    """What is told of one that is over."""
    told = {name: value for name, value in matter.body.items() if name != "epoch"}
    return {"session_id": matter.id, "project_id": matter.project_id, **told, "state": matter.state}


def _within(asked: float | None, most: float, field: str) -> float:
    if asked is None:
        return most
    if not 0 < asked <= most:
        raise LimitExceeded(f"{field} is more than 0 and at most {most:g} s here", field=field)
    return asked
