"""The sessions of this service: each a jar kept for several runs of one project, until it is closed, too old
or idle for too long.

    start ─► ready ◄─► paused
               └────────┴─► ended   closed, idle, too old, or its jar died: the reason says which
                        └─► lost    the service ended before it
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from belljar import paths
from belljar.audit.records import AuditStore, Matter
from belljar.engines.base import Area, Engine
from belljar.engines.guestjar import GuestJar
from belljar.engines.kept import KeptJar
from belljar.errors import BadRequest, BelljarError, LimitExceeded, NotFound
from belljar.execution.lifecycle import Lifecycle
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.requests import check_environment
from belljar.execution.session import OPEN, Session, State
from belljar.execution.shapes import check_shape
from belljar.execution.snapshots import Snapshot, Snapshots
from belljar.execution.submissions import Submission
from belljar.execution.upkeep import kept_up
from belljar.execution.workspace import check_project_id
from belljar.models import Grant, InputFile
from belljar.policy.decisions import Decision, narrower

__all__ = ["SessionRules", "Sessions"]

logger = logging.getLogger(__name__)

KIND = "session"
REVIEW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    idle_s: float
    max_age_s: float
    per_project: int


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
        decision = self._decide(role, overrides or {})
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
                max_age_s=max_age_s,
                token_id=token_id,
                role=role,
                env=dict(env or {}),
                working_dir=working_dir,
                kept=await self._keep(grant, files),
                last_used=self._now(),  # the making of its jar is no idle time
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

    def _decide(self, role: str | None, overrides: Mapping[str, object]) -> Decision:
        """What all tools that programs are run by in it give, so that each of them may be used."""
        decide = self._lifecycle.decide
        tools = self._lifecycle.policies.runners(role) or (None,)
        return reduce(narrower, (decide(role=role, tool=tool, overrides=overrides) for tool in tools))

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
        """A run in it. What the session asked of policy, the run asks too.

        Raises what `Lifecycle.submit` raises, and:
            BadRequest: it asks for another shape than the session has.
            Conflict: the session is not ready.
        """
        session.check(State.READY)
        check_shape(submission.overrides, session.grant)
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
        """Let it live at least so long from now, within the longest that is allowed."""
        session.check()
        if not seconds > 0:
            raise BadRequest("a session is extended by more than 0 seconds", field="seconds")
        until = self._now() + timedelta(seconds=seconds)
        if until > session.created_at + timedelta(seconds=self._rules.max_age_s):
            raise LimitExceeded(
                f"a session lives at most {self._rules.max_age_s:g} s (sandbox.session.max_age_s)",
                field="seconds",
            )
        session.ends_at = max(session.ends_at, until)
        session.idle_s = max(session.idle_s, seconds)
        session.used()

    async def pause(self, session: Session) -> None:
        async with session.moving:
            session.check(State.READY)
            session.check_free()
            await self._move(session, State.PAUSED)
            await session.kept.signal_all(signal.SIGSTOP)

    async def resume(self, session: Session) -> None:
        async with session.moving:
            session.check(State.PAUSED)
            await self._move(session, State.READY)
            await session.kept.signal_all(signal.SIGCONT)
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
                        role=session.role,
                        env=session.env,
                        working_dir=session.working_dir,
                        idle_s=min(session.idle_s, self._rules.idle_s),  # it may have been extended
                        max_age_s=session.max_age_s,
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
        async with session.moving:
            if session.state not in OPEN:
                return
            session.reason = reason
            was, session.state = session.state, State.ENDED  # whatever the store says: its jar goes
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
        for matter in await self._store.matters(KIND, *OPEN):
            if not is_alive(str(matter.body.get("epoch", ""))):
                body = {**matter.body, "state": State.LOST, "reason": "the service ended"}
                await self._store.move_matter(replace(matter, state=State.LOST, body=body), matter.state)
                lost += 1
        return lost

    async def watch(self) -> None:
        """Ends those whose time is over or whose jar is gone, until it is cancelled."""
        await kept_up("sessions", self._review, every_s=REVIEW_S)

    async def _review(self) -> None:
        for session in list(self._open.values()):
            if not session.kept.alive:
                await self.end(session, "its jar died")
            elif self._now() >= session.ends_at:
                await self.end(session, "it reached its greatest age")
            elif self._now() >= session.expires_at:
                await self.end(session, f"nobody used it for {session.idle_s:g} s")

    async def close(self) -> None:
        for session in list(self._open.values()):
            await self.end(session, "the service was stopped")

    async def _move(self, session: Session, state: State) -> None:
        """The row first: what the store did not take has not happened."""
        matter = self._matter(session)
        moved = replace(matter, state=state, body={**matter.body, "state": state})
        await self._store.move_matter(moved, matter.state)
        session.state = state

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
