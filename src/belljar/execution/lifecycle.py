"""The life of a run in the service: decided, accepted on disk, queued, run, written down, answered.

    submit ─► policy ─► place in the queue ─► accepted row ─► turn ─► jar … ─► folder ─► final row, receipt
                  └─► accepted row ─► a person's yes ─┘

The order is the promise: no resource exists before its row, nobody gets an answer before the receipt.
A run belongs to the service, not to the caller who happens to wait for it: from the accepted row on it is
a task of its own, and a caller that goes away changes nothing. A process that is killed leaves rows that
are not final; the next one finds them, removes what was written for them, and calls them lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import ParamSpec, TypeVar

from belljar.audit.records import NOTHING_ASKED, AuditStore, ExecRecord, NetworkAccount, Status
from belljar.audit.trail import Trail
from belljar.engines.base import Engine, Jar
from belljar.errors import (
    ApprovalDenied,
    BadRequest,
    BelljarError,
    EngineUnavailable,
    NotFound,
    Refused,
    ShuttingDown,
    StoreUnavailable,
)
from belljar.execution import recording, runs
from belljar.execution.approvals import Approvals, digest_of
from belljar.execution.events import RunEvent
from belljar.execution.keeping import write_down
from belljar.execution.keptwork import KeptWork
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.packages import Packages
from belljar.execution.pending import Pending
from belljar.execution.requests import plan, script_of
from belljar.execution.retention import sweep
from belljar.execution.risks import risk_of, tier_to_approve
from belljar.execution.stock import Installed
from belljar.execution.submissions import Submission
from belljar.execution.turns import Turns
from belljar.execution.upkeep import kept_up
from belljar.execution.waiting import WaitingRoom
from belljar.execution.workspace import Workspace, check_project_id
from belljar.metrics import Metrics
from belljar.models import Contacted, Event, Network, Owner, RunRequest, RunResult, Verdict
from belljar.policy.decisions import Decision, PolicySet, decide
from belljar.policy.layers import Layer
from belljar.policy.patterns import allows_work
from belljar.tracing import Tracing, Untraced

__all__ = ["Lifecycle"]

logger = logging.getLogger(__name__)

SWEEP_S = 3600.0
RETRY_S = 0.2
"""First pause before the store is tried again with an outcome."""
MAX_RETRY_S = 5.0
LAST_WORDS_S = 5.0
"""At the end of the service, for outcomes to be written once the programs are dead."""
SOON_S = 0.1
"""A run that is over by then is not written down as running."""
READ_AT_ONCE_CHARS = 4096
"""A longer program is read in a thread, so that others have their turn meanwhile."""

P = ParamSpec("P")
T = TypeVar("T")


class Lifecycle:
    def __init__(
        self,
        *,
        engine: Engine,
        policies: PolicySet,
        store: AuditStore,
        workspace: Workspace,
        turns: Turns,
        metrics: Metrics,
        trail: Trail,
        approvals: Approvals,
        pending: Pending,
        packages: Packages,
        refresh: Callable[[Submission], Submission],
        secrets_within: Callable[[Network, Owner], Sequence[str]],
        accept_weaker_limits: bool,
        epoch: str,
        tracing: Tracing | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.engine = engine
        self.policies = policies
        self.store = store
        self.workspace = workspace
        self.turns = turns
        self.metrics = metrics
        self.approvals = approvals
        self.pending = pending
        self._packages = packages
        self._refresh = refresh
        self._secrets_within = secrets_within
        self._waiting = WaitingRoom(store, approvals, pending, turns, refresh, self._admit)
        self._trail = trail
        self._accept_weaker_limits = accept_weaker_limits
        self.epoch = epoch
        self._tracing = tracing or Untraced()
        self._now = now
        self._live: dict[str, LiveRun] = {}
        self._closing = False
        self._gave_up = False

    async def submit(self, submission: Submission, session: Engine | None = None) -> LiveRun | Outcome:
        """Take a run, or find the one that this request already is. In a session, that makes its jar.

        Raises:
            BadRequest, Refused: it cannot or may not be run; written down as refused.
            Conflict: the request_id is another request's.
            QueueFull, Unavailable: not now.
        """
        try:
            return await self._take(submission, session or self.engine)
        except BelljarError as error:
            self.metrics.refused(error.code)
            raise

    def live(self, exec_id: str) -> LiveRun | None:
        return self._live.get(exec_id)

    @property
    def live_runs(self) -> tuple[LiveRun, ...]:
        return tuple(self._live.values())

    @property
    def live_ids(self) -> frozenset[str]:
        return frozenset(self._live)

    async def events(self, record: ExecRecord, after: int) -> AsyncIterator[RunEvent]:
        """During the run and after it."""
        live = self._live.get(record.exec_id)
        if live is not None:
            async for event in live.log.follow(after):
                yield event
            return
        lines = await asyncio.to_thread(
            lambda: list(self.workspace.events(record.project_id, record.exec_id))
        )
        stored = [RunEvent.from_line(line) for line in lines]
        # Of a run that never began nothing is stored: whoever heard something before goes on from there.
        last = RunEvent((len(stored) or after) + 1, "finished", recording.last_event(record))
        for event in (*stored, last):
            if event.number > after:
                yield event

    async def check_waiting(self, exec_id: str) -> None:
        """
        Raises:
            ApprovalDenied: the run that waits is not what was shown any more.
        """
        live = self._live.get(exec_id)
        if live is not None:
            await self._waiting.check(live)

    async def cancel(self, exec_id: str) -> None:
        live = self._live.get(exec_id)
        if live is None:
            raise NotFound("this run is over, or there is none of that id", field="exec_id")
        live.cancel()

    async def recover(self, is_alive: Callable[[str], bool]) -> int:
        """At the start: runs that a process which is gone had taken and not finished are lost. How many.

        Those that wait for a person go on waiting.
        """
        left = [record for record in await self.store.unfinished() if not is_alive(record.epoch)]
        lost = [record for record in left if not await self._goes_on_waiting(record)]
        why = EngineUnavailable("the service ended while the run was in flight")
        for record in lost:
            # First: as long as the row is not final, the next start would try again.
            await asyncio.to_thread(self.workspace.remove, record.project_id, record.exec_id)
            self._tell(await self.store.finish(recording.ended(record, Verdict.LOST, self._now(), why)))
        await self._waiting.tidy()
        return len(lost)

    async def _goes_on_waiting(self, record: ExecRecord) -> bool:
        if record.status is not Status.PENDING:
            return False
        submission = await asyncio.to_thread(self.pending.load, record.exec_id)
        if submission is None or submission.in_session:  # no session outlives the service
            return False
        try:
            grant = self.decide_for(self._refresh(submission)).grant
        except BelljarError:
            return False
        live = LiveRun(record, submission, grant, self.engine)
        if not await self._waiting.enter_again(live):
            return False
        self._begin(live, _already())
        return True

    async def forget_old(self, keep_days: float, keep_gb: float) -> None:
        """Every hour, from the start on: what runs left goes by age and size. Until it is cancelled."""

        async def forget() -> None:
            removed = await asyncio.to_thread(
                sweep,
                self.workspace.root / "projects",
                live=self.live_ids,
                now=self._now().timestamp(),
                keep_days=keep_days,
                keep_gb=keep_gb,
            )
            if removed:
                logger.info("removed what %d old runs had left", len(removed))

        await kept_up("what old runs have left", forget, every_s=SWEEP_S)

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let what runs finish for a while, then end it; all of it is written down.

        Takes bounded time: what the store does not take by then is left to the next start, as lost.
        """
        self._closing = True
        await asyncio.sleep(0)  # what was begun just now gets to where it waits
        self._leave_waiting()
        await self._settled(grace_s)
        self._leave_waiting()
        for live in list(self._live.values()):
            if live.waiting is None:
                live.cancel()
        longest = max((live.grant.limits.grace_s for live in self._live.values()), default=0.0)
        await self._settled(longest + LAST_WORDS_S)
        self._gave_up = True
        for live in self._live.values():
            if live.task is not None:
                live.task.cancel()
        await self._settled(LAST_WORDS_S)

    def _leave_waiting(self) -> None:
        """What a person has not answered yet goes on waiting when the service is back."""
        for live in self._live.values():
            if live.waiting is not None and live.task is not None:
                live.task.cancel()

    async def _settled(self, patience_s: float) -> None:
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)

    # Before a run

    async def _take(self, submission: Submission, engine: Engine) -> LiveRun | Outcome:
        if self._closing:
            raise ShuttingDown("the service is about to end; nothing new is taken")
        check_project_id(submission.project_id)
        submission = replace(submission, in_session=engine is not self.engine)
        record = recording.asked(
            submission,
            exec_id=f"ex-{secrets.token_hex(16)}",
            request_id=submission.request_id or secrets.token_hex(16),
            epoch=self.epoch,
            at=self._now(),
        )
        if submission.request_id is not None:
            known = await self.store.find_request(submission.project_id, submission.request_id)
            if known is not None:
                return self._known(await self.store.accept(replace(record, exec_id=known.exec_id)))
        try:
            decision, submission = await self._admit(submission, engine)
            usable = self._secrets_within(
                decision.grant.network, Owner(submission.project_id, submission.role)
            )
            risk = await _aside(submission.request, risk_of, submission.request, decision.grant, usable)
            tier = tier_to_approve(decision.grant, risk)
            if tier is not None:
                submission = await self._waiting.bound(submission, engine)
        except BelljarError as error:
            error.exec_id = await self._refuse(record, error)
            raise
        record = recording.granted(record, submission, decision, risk)
        live = LiveRun(record, submission, decision.grant, engine)
        approval = await self.approvals.standing(digest_of(submission, decision.grant)) if tier else None
        if tier is None or approval is not None:
            live.record = replace(record, approval=approval or {})
            live.place = self.turns.take_place(submission.project_id)
            live.log.add("queued", exec_id=record.exec_id, waiting=self.turns.waiting)
            accepting = self._accept(live)
        else:
            live.record = replace(record, status=Status.PENDING)
            accepting = self._waiting.enter(live, tier, recording.shown(submission, decision, risk))
        self._begin(live, accepting)
        accepted = await live.accepted()
        return live if accepted.exec_id == record.exec_id else self._known(accepted)

    def decide(
        self,
        *,
        role: str | None = None,
        tool: str | None = None,
        skill: Layer | None = None,
        overrides: Mapping[str, object],
    ) -> Decision:
        """What a request would be granted here, or the refusal that it would meet."""
        decision = decide(self.policies, role=role, tool=tool, skill=skill, overrides=overrides)
        grant = replace(decision.grant, accept_weaker_limits=self._accept_weaker_limits)
        return replace(decision, grant=grant)

    def decide_for(self, submission: Submission) -> Decision:
        return self.decide(
            role=submission.role,
            tool=submission.tool,
            skill=submission.skill,
            overrides=submission.overrides,
        )

    async def _admit(self, submission: Submission, engine: Engine) -> tuple[Decision, Submission]:
        decision = self.decide_for(submission)
        if submission.request.context is not None and engine is self.engine:
            raise BadRequest("a context lives in a session; start one first", field="context")
        request = submission.request
        decision = replace(decision, grant=await engine.fit(decision.grant, request.language))
        if submission.persist_work:
            work = KeptWork(self.workspace.work_folder(submission.project_id))
            kept = await asyncio.to_thread(work.load, decision.grant.limits)
            given = {file.path for file in request.files}
            if (script := script_of(request)) is not None:
                given.add(script)
            shown = (file for file in kept if file.path not in given)
            rules = self.policies.operators_word(submission.role, submission.tool).grant.paths
            files = (*(file for file in shown if allows_work(file.path, rules)), *request.files)
            request = replace(request, files=files)
        await _aside(request, plan, request, decision.grant, engine.interpreters(), engine.name)
        return decision, replace(submission, request=request)

    async def _refuse(self, record: ExecRecord, error: BelljarError) -> str:
        """Its id, under which the refusal can be looked up."""
        if isinstance(error, Refused):
            self.metrics.violation(record.tool, error.code)
        refused = await self.store.accept(recording.refused(record, error, self._now()))
        self._trail.append(refused)
        return refused.exec_id

    def _known(self, record: ExecRecord) -> LiveRun | Outcome:
        live = self._live.get(record.exec_id)
        return live if live is not None else Outcome(record, None)

    # A run

    def _begin(self, live: LiveRun, accepting: Awaitable[bool]) -> None:
        # Known before it is accepted: whoever sees the row can listen to the run and cancel it.
        self._live[live.record.exec_id] = live
        live.task = asyncio.create_task(self._live_through(live, accepting), name=live.record.exec_id)

    async def _live_through(self, live: LiveRun, accepting: Awaitable[bool]) -> None:
        """The run's own task. Once it is accepted it ends in exactly one outcome, whatever happens."""
        try:
            if await accepting:
                await self._settle(live, *await self._to_its_end(live))
        except Exception:
            logger.exception("%s: a fault of ours", live.record.exec_id)
            live.fail(BelljarError("a fault of the service"))
        finally:
            error = ShuttingDown("the service ended before this could be written down")
            live.decline(error)
            live.fail(error)
            live.log.close()
            if live.place is not None:
                live.place.leave()
            del self._live[live.record.exec_id]

    async def _accept(self, live: LiveRun) -> bool:
        """Whether there is a run: its row is durable, and the request is not another run already."""
        try:
            accepted = await self.store.accept(live.record)
        except Exception as error:
            live.decline(error)
            return False
        live.accept(accepted)
        return accepted.exec_id == live.record.exec_id

    # Running

    async def _to_its_end(self, live: LiveRun) -> tuple[ExecRecord, RunResult | None]:
        try:
            if live.record.status is Status.PENDING:
                await self._waiting.leave(live)
            assert live.place is not None
            async with live.place:
                if live.cancelled:
                    return recording.ended(live.record, Verdict.CANCELLED, self._now()), None
                try:
                    packages = await self._installed(live)
                except (BadRequest, Refused) as error:
                    return self._turned_down(live, error)
                async with self._waiting.still(live, self.live_runs):
                    return await self._run(live, packages)
        except asyncio.CancelledError:
            if live.record.status is Status.PENDING and not live.cancelled:
                raise  # the service ends; whoever starts next goes on waiting
            return recording.ended(live.record, Verdict.CANCELLED, self._now()), None
        except ApprovalDenied as error:
            return self._turned_down(live, error)
        except BelljarError as error:
            return recording.ended(live.record, Verdict.LOST, self._now(), error), None
        except Exception:
            logger.exception("%s: a fault of ours", live.record.exec_id)
            fault = BelljarError("a fault of the service")
            return recording.ended(live.record, Verdict.LOST, self._now(), fault), None

    def _turned_down(self, live: LiveRun, error: BelljarError) -> tuple[ExecRecord, None]:
        if isinstance(error, Refused):
            self.metrics.violation(live.record.tool, error.code)
        return recording.refused(live.record, error, self._now()), None

    async def _installed(self, live: LiveRun) -> Installed | None:
        """The packages it asks for. That takes a jar of its own, so it is done in the run's turn."""
        wanted = live.submission.request.packages
        if not wanted:
            return None
        live.log.reach("installing")
        preparing = self._packages.prepare(
            self.engine, live.grant, wanted, lambda event: self._heard(live, event)
        )
        live.preparing = asyncio.ensure_future(preparing)
        try:
            installed = await live.preparing
        finally:
            live.preparing = None
        live.log.add("packages", packages=list(map(asdict, installed.packages)), cached=installed.from_stock)
        return installed

    async def _run(self, live: LiveRun, packages: Installed | None) -> tuple[ExecRecord, RunResult]:
        started_at = self._now()
        engine = live.engine
        live.record = replace(live.record, status=Status.RUNNING, started_at=started_at, engine=engine.name)
        live.log.add("running")
        over = asyncio.Event()
        telling = asyncio.create_task(self._write_that_it_runs(live.record, over))
        clock = asyncio.get_running_loop().time
        asked_at = clock()

        def made(jar: Jar) -> None:
            self.metrics.jar_started(clock() - asked_at)
            live.has_jar(jar)

        writing: asyncio.Future[tuple[ExecRecord, RunResult]] | None = None
        try:
            request = live.submission.request
            async for event in runs.stream(
                engine,
                live.grant,
                request,
                made,
                packages=packages,
                keeping=live.submission.persist_work,
            ):
                if isinstance(event, RunResult):  # while its jar goes away
                    down = asyncio.to_thread(write_down, self.workspace, live, event, self._now())
                    writing = asyncio.ensure_future(down)
                else:
                    self._heard(live, event)
                    if live.cancelled:
                        live.cancel()
        finally:
            over.set()
            await telling
            if writing is not None:  # whatever becomes of its jar: nobody else has the folder meanwhile
                await asyncio.wait({writing})
        assert writing is not None
        return writing.result()

    async def _write_that_it_runs(self, record: ExecRecord, over: asyncio.Event) -> None:
        """For who lists runs: the accepted row is durable, and the final one says it again."""
        assert record.started_at is not None
        try:
            async with asyncio.timeout(SOON_S):
                await over.wait()
        except TimeoutError:
            with suppress(StoreUnavailable):
                await self.store.start(record.exec_id, record.started_at, record.engine)

    def _heard(self, live: LiveRun, event: Event) -> None:
        live.log.add_engine_event(event)
        if isinstance(event, Contacted):
            self.metrics.contacted(allowed=event.allowed)

    async def _settle(self, live: LiveRun, record: ExecRecord, result: RunResult | None) -> None:
        """Write the outcome, or at least that there was one: with a row left open nobody gets an answer."""
        try:
            written = await self._finish(live, record, live.log.contacts.account(record))
        except Exception:
            logger.exception("%s: its outcome cannot be written; it is lost", record.exec_id)
            await asyncio.to_thread(self.workspace.remove, record.project_id, record.exec_id)
            fault = BelljarError("the outcome of the run could not be written")
            written = await self._finish(live, recording.ended(live.record, Verdict.LOST, self._now(), fault))
            result = None
        if written is None:
            return
        record = written
        if live.approval is not None:
            await self._waiting.forget(record.exec_id)
        self._tell(record)
        live.finish(Outcome(record, result))
        self._tracing.run(record, live.log.reached)

    async def _finish(
        self, live: LiveRun, record: ExecRecord, account: NetworkAccount = NOTHING_ASKED
    ) -> ExecRecord | None:
        """A store that is down is tried again, and nobody waits for that. None: until the service ended."""
        pause = RETRY_S
        while True:
            try:
                return await self.store.finish(record, account)
            except StoreUnavailable as error:
                logger.warning("%s: %s", record.exec_id, error)
                live.fail(error)
                if self._gave_up:
                    return None
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)

    def _tell(self, record: ExecRecord) -> None:
        self._trail.append(record)
        self.metrics.finished(record)


async def _already() -> bool:
    return True


async def _aside(request: RunRequest, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Work whose time grows with the length of the program and what lies beside it."""
    files = sum(len(file.content) for file in (*request.files, *request.inputs))
    if files + sum(map(len, (request.code or "", *(request.command or ())))) <= READ_AT_ONCE_CHARS:
        return work(*args, **more)
    return await asyncio.to_thread(work, *args, **more)
