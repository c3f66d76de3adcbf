"""The life of a run in the service: decided, accepted on disk, queued, run, written down, answered.

    submit ─► policy ─► place in the queue ─► accepted row ─► turn ─► jar … ─► folder ─► final row, receipt

The order is the promise: no resource exists before its row, nobody gets an answer before the receipt.
A run belongs to the service, not to the caller who happens to wait for it: a caller that goes away
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

from belljar.audit.records import AuditStore, ExecRecord, Status
from belljar.audit.trail import Trail
from belljar.engines.base import Engine, Jar
from belljar.errors import (
    BelljarError,
    EngineUnavailable,
    NotFound,
    Refused,
    ShuttingDown,
    StoreUnavailable,
)
from belljar.execution import runs
from belljar.execution.events import EventLog, RunEvent
from belljar.execution.requests import SCRIPTS, plan, risk_of
from belljar.execution.retention import sweep
from belljar.execution.submissions import Submission, digests, sha256
from belljar.execution.turns import Place, Turns
from belljar.execution.workspace import Workspace, check_project_id, manifest
from belljar.metrics import Metrics
from belljar.models import Grant, RunResult, Verdict
from belljar.policy.decisions import Decision, PolicySet, decide

logger = logging.getLogger(__name__)

SWEEP_S = 3600.0
RETRY_S = 0.2
"""First pause before the store is tried again with an outcome."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a caller gets when a run is over. `result` is None when only the record is left of it."""

    record: ExecRecord
    result: RunResult | None


class LiveRun:
    """One run that this process has taken."""

    def __init__(self, record: ExecRecord, submission: Submission, grant: Grant) -> None:
        self.record = record
        self.submission = submission
        self.grant = grant
        self.log = EventLog()
        self._done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.place: Place | None = None
        self.result: RunResult | None = None
        self.cancelled = False
        self._jar: Jar | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._jar is not None:
            self._jar.cancel()
        elif self.place is not None:
            self.place.forgo()

    def has_jar(self, jar: Jar) -> None:
        self._jar = jar

    async def outcome(self) -> Outcome:
        """However often it is awaited and cancelled, the run goes on.

        Raises:
            StoreUnavailable: it is over, but could not be written down yet.
        """
        return await asyncio.shield(self._done)

    def finish(self, outcome: Outcome) -> None:
        self.log.add("finished", **finished(outcome.record))
        self.log.close()
        if not self._done.done():
            self._done.set_result(outcome)

    def fail(self, error: BelljarError) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # seen: perhaps nobody waits


def finished(record: ExecRecord) -> dict[str, Any]:
    """What the last event of a run says."""
    return {
        "exec_id": record.exec_id,
        "verdict": record.verdict,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "receipt": record.receipt_hash,
    }


def _as_data(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_data(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


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
        accept_weaker_limits: bool,
        epoch: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.engine = engine
        self.policies = policies
        self.store = store
        self.workspace = workspace
        self.turns = turns
        self.metrics = metrics
        self._trail = trail
        self._accept_weaker_limits = accept_weaker_limits
        self._epoch = epoch
        self._now = now
        self._live: dict[str, LiveRun] = {}
        self._closing = False

    async def submit(self, submission: Submission) -> LiveRun | Outcome:
        """Take a run, or find the one that this request already is.

        Raises:
            BadRequest, Refused: it cannot or may not be run; written down as refused.
            Conflict: the request_id is another request's.
            QueueFull, Unavailable: not now.
        """
        if self._closing:
            raise ShuttingDown("the service is about to end; nothing new is taken")
        check_project_id(submission.project_id)
        record = self._record(submission)
        if submission.request_id is not None:
            known = await self.store.find_request(submission.project_id, submission.request_id)
            if known is not None:
                return self._known(await self.store.accept(replace(record, exec_id=known.exec_id)))
        try:
            decision, submission = await self._admit(submission)
        except BelljarError as error:
            await self._refuse(record, error)
            raise
        place = self.turns.take_place(submission.project_id)
        try:
            accepted = await self.store.accept(self._granted(record, decision, submission))
        except BaseException:
            place.leave()
            raise
        if accepted.exec_id != record.exec_id:
            place.leave()
            return self._known(accepted)
        live = LiveRun(accepted, submission, decision.grant)
        live.place = place
        live.log.add("queued", exec_id=accepted.exec_id, waiting=self.turns.waiting)
        self._live[accepted.exec_id] = live
        live.task = asyncio.create_task(self._live_through(live), name=accepted.exec_id)
        return live

    def live(self, exec_id: str) -> LiveRun | None:
        return self._live.get(exec_id)

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
        last = RunEvent(len(stored) + 1, "finished", finished(record))
        for event in (*stored, last):
            if event.number > after:
                yield event

    async def cancel(self, exec_id: str) -> None:
        live = self._live.get(exec_id)
        if live is None:
            raise NotFound("this run is over, or there is none of that id", field="exec_id")
        live.cancel()

    async def recover(self, is_alive: Callable[[str], bool]) -> int:
        """At the start: runs that a process which is gone had taken and not finished are lost. How many."""
        lost = [record for record in await self.store.unfinished() if not is_alive(record.epoch)]
        why = EngineUnavailable("the service ended while the run was in flight")
        for record in lost:
            await self.store.finish(self._ended(record, Verdict.LOST, why))
        return len(lost)

    async def forget_old(self, keep_days: float, keep_gb: float) -> None:
        """Every hour, from the start on: what runs left goes by age and size. Until it is cancelled."""
        while True:
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
            await asyncio.sleep(SWEEP_S)

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let what runs finish for a while, then cancel it; everything is written down."""
        self._closing = True
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for live in list(self._live.values()):
            live.cancel()
        pending = [
            live.task for live in self._live.values() if live.task is not None and not live.task.done()
        ]
        if pending:
            await asyncio.wait(pending)

    # Before a run

    def _record(self, submission: Submission) -> ExecRecord:
        request = submission.request
        script = SCRIPTS[request.language] if request.language and request.code is not None else None
        code = (request.code or "").encode("utf-8", "surrogatepass")
        command = request.command or ((script, *request.args) if script else ())
        return ExecRecord(
            exec_id=f"ex-{secrets.token_hex(16)}",
            epoch=self._epoch,
            request_id=submission.request_id or secrets.token_hex(16),
            request_digest=submission.digest,
            project_id=submission.project_id,
            status=Status.QUEUED,
            accepted_at=self._now(),
            token_id=submission.token_id,
            role=submission.role,
            tool=submission.tool,
            skill_id=submission.skill_id,
            task_id=submission.task_id,
            conversation_id=submission.conversation_id,
            session_id=submission.session_id,
            agent_id=submission.agent_id,
            org_id=submission.org_id,
            language=request.language,
            cmd=command[0] if command else None,
            args=tuple(command[1:]),
            cwd=request.working_dir,
            env_keys=tuple(sorted(request.env)),
            code_hash=None if request.code is None else f"sha256:{sha256(code)}",
            inputs={**digests(request.files), **digests(request.inputs)},
        )

    async def _admit(self, submission: Submission) -> tuple[Decision, Submission]:
        decision = decide(
            self.policies, role=submission.role, tool=submission.tool, overrides=submission.overrides
        )
        decision = replace(
            decision, grant=replace(decision.grant, accept_weaker_limits=self._accept_weaker_limits)
        )
        request = submission.request
        if submission.persist_work:
            kept = await asyncio.to_thread(
                self.workspace.kept_work, submission.project_id, decision.grant.limits
            )
            given = {file.path for file in request.files}
            files = (*(file for file in kept if file.path not in given), *request.files)
            request = replace(request, files=files)
        plan(request, decision.grant, self.engine.interpreters(), self.engine.name)
        return decision, replace(submission, request=request)

    async def _refuse(self, record: ExecRecord, error: BelljarError) -> None:
        self.metrics.refused(error.code)
        if isinstance(error, Refused):
            self.metrics.violation(record.tool, error.code)
        refused = replace(
            record,
            status=Status.REFUSED,
            cmd=record.cmd and record.cmd[:1000],
            args=tuple(arg[:1000] for arg in record.args[:100]),  # perhaps it was refused for its size
            ended_at=self._now(),
            error_code=error.code,
            error_reason=error.message[:1000],
        )
        self._trail.append(await self.store.accept(refused))

    def _granted(self, record: ExecRecord, decision: Decision, submission: Submission) -> ExecRecord:
        snapshot: dict[str, Any] = {
            row.field: {"value": _as_data(row.value), "layer": row.layer} for row in decision.explain()
        }
        return replace(
            record,
            image=decision.grant.image,
            policy_snapshot=snapshot,
            grant_digest=decision.grant.digest,
            risk={"tool": decision.grant.risk, **asdict(risk_of(submission.request))},
        )

    def _known(self, record: ExecRecord) -> LiveRun | Outcome:
        live = self._live.get(record.exec_id)
        return live if live is not None else Outcome(record, None)

    # A run

    async def _live_through(self, live: LiveRun) -> None:
        """The run's own task. Whatever happens, it ends in exactly one outcome."""
        assert live.place is not None
        result: RunResult | None = None
        try:
            async with live.place:
                if live.cancelled:
                    record = self._ended(live.record, Verdict.CANCELLED)
                else:
                    result = await self._run(live)
                    record = await asyncio.to_thread(
                        self._write_down, live, self._outcome(live.record, result)
                    )
        except asyncio.CancelledError:
            record = self._ended(live.record, Verdict.CANCELLED)
        except BelljarError as error:
            record = self._ended(live.record, Verdict.LOST, error)
        except Exception:
            logger.exception("%s: a fault of ours", live.record.exec_id)
            record = self._ended(live.record, Verdict.LOST, BelljarError("a fault of the service"))
        await self._settle(live, record, result)

    async def _run(self, live: LiveRun) -> RunResult:
        started_at = self._now()
        await self.store.start(live.record.exec_id, started_at, self.engine.name)
        live.record = replace(
            live.record, status=Status.RUNNING, started_at=started_at, engine=self.engine.name
        )
        live.log.add("running")
        result: RunResult | None = None
        async for event in runs.stream(self.engine, live.grant, live.submission.request, on_jar=live.has_jar):
            if isinstance(event, RunResult):
                result = event
            else:
                live.log.add_engine_event(event)
                if live.cancelled:
                    live.cancel()
        assert result is not None
        live.result = result
        return result

    def _write_down(self, live: LiveRun, record: ExecRecord) -> ExecRecord:
        """The run's folder. A disk that is full costs the files, not the outcome."""
        assert live.result is not None
        try:
            folder = self.workspace.store(
                record.project_id, record.exec_id, live.result, asdict(record), live.log.lines()
            )
            if live.submission.persist_work:
                self.workspace.keep_work(record.project_id, live.result.artifacts)
        except OSError as error:
            reason = f"what the run left could not be written: {error.strerror}"
            return replace(record, error_code="STORE_UNAVAILABLE", error_reason=reason)
        return replace(record, artifacts_path=str(folder.relative_to(self.workspace.root)))

    async def _settle(self, live: LiveRun, record: ExecRecord, result: RunResult | None) -> None:
        """Write the outcome. A store that is down is tried again until it is back; nobody waits for that."""
        pause = RETRY_S
        while True:
            try:
                record = await self.store.finish(record)
                break
            except StoreUnavailable as error:
                logger.warning("%s: %s", record.exec_id, error)
                live.fail(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 30.0)
        live.record = record
        self._trail.append(record)
        self.metrics.finished(record)
        self._live.pop(record.exec_id, None)
        live.finish(Outcome(record, result))

    def _outcome(self, record: ExecRecord, result: RunResult) -> ExecRecord:
        ended_at = self._now()
        return replace(
            record,
            status=Status.FINISHED,
            posture=result.posture,
            ended_at=ended_at,
            duration_ms=round(result.usage.wall_s * 1000),
            verdict=result.verdict,
            exit_code=result.exit_code,
            signal=result.signal,
            stdout_bytes=result.stdout_bytes,
            stderr_bytes=result.stderr_bytes,
            stdout_truncated=result.stdout_truncated,
            stderr_truncated=result.stderr_truncated,
            stdout_sha256=sha256(result.stdout),
            stderr_sha256=sha256(result.stderr),
            usage=asdict(result.usage),
            artifacts=tuple(manifest(result.artifacts)),
            skipped=tuple({"path": skip.path, "reason": skip.reason} for skip in result.skipped),
            files_read=tuple(record.inputs),
            files_written=tuple(artifact.path for artifact in result.artifacts),
        )

    def _ended(self, record: ExecRecord, verdict: Verdict, error: BelljarError | None = None) -> ExecRecord:
        """The outcome of a run that has no result."""
        return replace(
            record,
            status=Status.FINISHED,
            ended_at=self._now(),
            verdict=verdict,
            error_code=getattr(error, "code", "INTERNAL") if error else None,
            error_reason=error.message if error else None,
        )
