"""From a submission to its outcome: taken here, found again, or waited for because another process has it.

A caller that goes away changes nothing: the run goes on, and the same `request_id` finds its answer. A run
that waits for a person is not waited for, unless the caller says how long.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from belljar.api.answers import Kept, kept_of
from belljar.api.calls import Call
from belljar.api.errors import Recorded, is_private
from belljar.audit.records import NEXT, ExecRecord, Status
from belljar.errors import ApprovalNeeded, Unavailable
from belljar.execution.approvals import Approval
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.session import Session
from belljar.execution.submissions import Submission
from belljar.models import Verdict

__all__ = ["ApprovalWait", "Taken", "finished", "here_or_over", "still_waiting", "submit"]

_LOOK_AGAIN_S = 0.1
_NOT_KEPT = "not all that the run left could be kept; the operator of the service can look up why"

ApprovalWait = Annotated[float, Field(ge=0, le=3600)]
"""How long a caller waits for a person, in seconds."""

Taken = LiveRun | Outcome
"""A run of this process; or what its record says, which is final unless another process has it."""


async def submit(call: Call, submission: Submission, session: Session | None = None) -> Taken:
    """
    Raises:
        BelljarError: it is not run; for a request that was refused before, as it was then.
    """
    async with call.desk.admission:
        if session is None:
            taken = await call.service.lifecycle.submit(submission)
        else:
            taken = await call.service.sessions.submit(session, submission)
    if isinstance(taken, LiveRun):
        if taken.task is not None and taken.approval is None:  # what waits for a person waits on disk
            call.keep_until(taken.task)
    elif taken.record.status is Status.REFUSED:
        raise _recorded(taken.record)
    return taken


async def here_or_over(call: Call, record: ExecRecord) -> Taken:
    """The run of this record, once it can be listened to here or is over.

    Raises:
        Unavailable: another process has it, and takes longer than we wait for that.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + call.desk.patience.elsewhere_s
    while True:
        live = call.service.lifecycle.live(record.exec_id)
        if live is not None:
            return live
        if not NEXT[record.status]:
            return Outcome(record, None)
        if loop.time() > until:
            raise Unavailable("another process of the service still has this run; ask again later")
        await asyncio.sleep(_LOOK_AGAIN_S)
        record = await call.record(record.exec_id)


async def still_waiting(call: Call, taken: Taken, wait_s: float = 0) -> Approval | None:
    """What a run waits for after so long; None if it waits for nobody, or somebody has decided."""
    if isinstance(taken, LiveRun):
        await taken.accepted()  # of one that somebody else has just sent, too
    try:
        async with asyncio.timeout(wait_s):
            await _decided(call, taken)
    except TimeoutError:
        return await call.service.lifecycle.approvals.of(taken.record.exec_id)
    return None


async def _decided(call: Call, taken: Taken) -> None:
    record = taken.record
    if isinstance(taken, LiveRun):
        if record.status is Status.PENDING:
            async for event in taken.log.follow():
                if event.kind != Status.PENDING:
                    return
        return
    while record.status is Status.PENDING:
        await asyncio.sleep(_LOOK_AGAIN_S)
        record = await call.record(record.exec_id)


async def finished(call: Call, taken: Taken) -> tuple[ExecRecord, Kept]:
    """How it ended and what it left. Where that could not be kept, the record has an error.

    Raises:
        ApprovalNeeded: it waits for a person, which can take days.
        BelljarError: it was refused, or lost by a failure of ours; or `here_or_over` raises it.
    """
    if (approval := await still_waiting(call, taken)) is not None:
        message = f"risk {approval.tier} needs a person's yes: approval {approval.id}"
        raise ApprovalNeeded(message, exec_id=approval.exec_id, approval_id=approval.id)
    if isinstance(taken, Outcome):
        taken = await here_or_over(call, taken.record)
    outcome = await taken.outcome() if isinstance(taken, LiveRun) else taken
    record = outcome.record
    lost = record.verdict == Verdict.LOST and record.error_code is not None
    if outcome.result is None and (lost or record.status is Status.REFUSED):
        raise _recorded(record)
    if is_private(record.error_code) and not call.is_operator:
        record = replace(record, error_reason=_NOT_KEPT)
    if outcome.result is not None:
        return record, kept_of(outcome, call.service.workspace)
    return record, await asyncio.to_thread(kept_of, outcome, call.service.workspace)


def _recorded(record: ExecRecord) -> Recorded:
    return Recorded(record.error_code, record.error_reason, record.error_field, record.exec_id)
