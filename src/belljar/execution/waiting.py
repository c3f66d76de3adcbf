"""Runs that wait for a person: kept on disk, asked about, and let go once the answer is there.

    bytes ─► row ─► question ─► answer ─► still the same? ─► place in the queue ─► row ─► turn ─► still?
                        └─ a restart goes on here

The last look is for a run in a session only, at the files that it shares with others.

Each step is durable before the next, so a service that is killed in between finds all it needs to go on. The
bytes go last, when the run has its end or its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from belljar.audit.records import AuditStore, Status
from belljar.engines.base import Engine
from belljar.errors import (
    ApprovalDenied,
    BadRequest,
    BelljarError,
    Conflict,
    NotFound,
    QueueFull,
    Refused,
    StoreUnavailable,
)
from belljar.execution.approvals import Approval, Approvals, ApprovalState, digest_of
from belljar.execution.live import LiveRun
from belljar.execution.pending import Pending
from belljar.execution.submissions import Submission
from belljar.execution.surroundings import Shared
from belljar.execution.turns import Place, Turns
from belljar.models import RiskTier, RunRequest
from belljar.policy.decisions import Decision

__all__ = ["WaitingRoom"]

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Before the store is tried again with a run that was let go."""


@dataclass(frozen=True, slots=True)
class WaitingRoom:
    store: AuditStore
    approvals: Approvals
    pending: Pending
    turns: Turns
    refresh: Callable[[Submission], Submission]
    """A submission as its skill would make it now."""
    admit: Callable[[Submission, Engine], Awaitable[tuple[Decision, Submission]]]

    async def bound(self, submission: Submission, engine: Engine) -> Submission:
        """With all that a yes to it has to be bound to.

        Raises:
            Refused: something that it would run cannot be shown to a person.
        """
        if submission.request.stdin_open:
            message = "a person has to see this run first, and what is typed at it later cannot be shown"
            raise Refused(message, field="stdin_open")
        if isinstance(engine, Shared):
            return replace(submission, surroundings=await engine.surroundings())
        return submission

    async def enter(self, live: LiveRun, tier: RiskTier, shown: Mapping[str, Any]) -> bool:
        """Whether there is a run now. What a person sees can always be run: its bytes come first."""
        exec_id = live.record.exec_id
        try:
            with self.approvals.room(live.record.project_id):
                await asyncio.to_thread(self.pending.save, exec_id, live.submission)
                accepted = await self.store.accept(live.record)
                if accepted.exec_id == exec_id:
                    await self._ask(live, tier, shown)
        except Exception as error:
            await self.forget(exec_id)
            live.decline(error)
            return False
        if live.approval is None:
            await self.forget(exec_id)
        live.accept(accepted)
        return accepted.exec_id == exec_id

    async def _ask(self, live: LiveRun, tier: RiskTier, shown: Mapping[str, Any]) -> None:
        digest = digest_of(live.submission, live.grant)
        try:
            live.approval = await self.approvals.ask(live.record, digest, tier, shown)
            _tell(live, live.approval)
        except BelljarError as error:  # `leave` says so again
            logger.warning("%s: nobody could be asked: %s", live.record.exec_id, error)

    async def enter_again(self, live: LiveRun) -> bool:
        """After a restart: whether it can go on waiting."""
        live.approval = await self.approvals.resume(live.record.exec_id)
        if live.approval is None:
            return False
        _tell(live, live.approval)
        live.accept(live.record)
        return True

    async def leave(self, live: LiveRun) -> None:
        """When a person has said yes, it is still what was shown, and it has a place in the queue.

        Raises:
            ApprovalDenied: a person said no, nobody answered, or it is something else now.
            BelljarError: it cannot be run.
        """
        # It may take days: meanwhile the bytes lie on disk only.
        live.submission = replace(live.submission, request=RunRequest())
        try:
            live.submission = await self._as_shown(live, await self._yes(live))
            live.place = await self._place(live)
            await self._release(live)
        except asyncio.CancelledError:
            if live.cancelled and live.approval is not None:
                with suppress(StoreUnavailable):  # the next start voids what is asked of runs that are over
                    await self.approvals.void(live.approval, "the run was cancelled")
            raise

    async def check(self, live: LiveRun) -> None:
        """
        Raises:
            ApprovalDenied: a yes would come too late.
        """
        if live.waiting is not None and live.approval is not None:
            await self._as_shown(live, live.approval)

    @asynccontextmanager
    async def still(self, live: LiveRun, runs: Iterable[LiveRun]) -> AsyncIterator[None]:
        """While it runs: in a session, what a person said yes to is what lies there, and nobody changes it.

        Raises:
            ApprovalDenied: it is not, or somebody might.
        """
        seen = live.submission.surroundings
        if seen is None or not isinstance(live.engine, Shared):
            yield
            return
        if any(one.engine is live.engine and one.jar is not None and one is not live for one in runs):
            raise ApprovalDenied("another run goes on in the session; ask again when it is over")
        async with live.engine.alone(seen, still=live.submission.request.context is None):
            yield

    async def forget(self, exec_id: str) -> None:
        await asyncio.to_thread(self.pending.remove, exec_id)

    async def tidy(self) -> None:
        """At the start: what is left of waits whose runs are over."""
        for exec_id in await asyncio.to_thread(self.pending.known):
            if not await self._waits(exec_id):
                await self.forget(exec_id)
        for approval in await self.approvals.known():
            if not await self._waits(approval.exec_id):
                await self.approvals.void(approval, "the run is over")

    async def _waits(self, exec_id: str) -> bool:
        record = await self.store.get(exec_id)
        return record is not None and record.status is Status.PENDING

    async def _yes(self, live: LiveRun) -> Approval:
        if live.approval is None:
            raise StoreUnavailable("nobody could be asked: the records could not be written")
        try:
            if live.cancelled:
                raise asyncio.CancelledError
            live.waiting = self.approvals.answer_to(live.approval)
            approval = live.approval = replace(live.approval, answer=await live.waiting)
        finally:
            live.waiting = None
            self.approvals.wait_no_more(live.approval)
        live.record = replace(live.record, approval=approval.facts)
        live.log.add(approval.state, **approval.facts)
        if approval.state is not ApprovalState.APPROVED:
            said = approval.answer.reason if approval.answer else ""
            raise ApprovalDenied(f"the approval is {approval.state}: {said or 'no reason was given'}")
        return approval

    async def _as_shown(self, live: LiveRun, approval: Approval) -> Submission:
        """What would run now, if it is what was shown then, to the byte; else a yes is to something else.

        Raises:
            ApprovalDenied: it is not.
        """
        waited = await asyncio.to_thread(self.pending.load, live.record.exec_id)
        if waited is not None:
            with suppress(BadRequest, Refused, NotFound, Conflict):
                decision, admitted = await self.admit(self.refresh(waited), live.engine)
                now = await self.bound(admitted, live.engine)
                same = digest_of(now, decision.grant) == approval.digest
                if same and now.surroundings == live.submission.surroundings:
                    return now
        raise ApprovalDenied("code, files, limits or policy are not what was shown any more; ask again")

    async def _place(self, live: LiveRun) -> Place:
        """It was taken long ago: a queue that is full now only makes it wait longer."""
        while True:
            if live.cancelled:
                raise asyncio.CancelledError
            try:
                return self.turns.take_place(live.record.project_id)
            except QueueFull as full:
                await asyncio.sleep(full.retry_after_s)

    async def _release(self, live: LiveRun) -> None:
        while True:
            try:
                await self.store.release(live.record)
                break
            except StoreUnavailable as error:
                logger.warning("%s: %s", live.record.exec_id, error)
                await asyncio.sleep(RETRY_S)
                if live.cancelled:
                    raise asyncio.CancelledError from error
        live.record = replace(live.record, status=Status.QUEUED)


def _tell(live: LiveRun, approval: Approval) -> None:
    live.log.add(
        "pending_approval",
        exec_id=live.record.exec_id,
        approval_id=approval.id,
        tier=approval.tier,
        expires_at=approval.expires_at.isoformat(),
    )
