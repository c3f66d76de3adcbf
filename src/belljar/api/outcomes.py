"""From a submission to its outcome: taken here, found again, or waited for because another process has it.

A caller that goes away changes nothing: the run goes on, and the same `request_id` finds its answer.
"""

from __future__ import annotations

import asyncio

from belljar.api.answers import Kept, kept_of
from belljar.api.calls import Call
from belljar.api.errors import Recorded
from belljar.audit.records import NEXT, ExecRecord, Status
from belljar.errors import Unavailable
from belljar.execution.lifecycle import LiveRun, Outcome
from belljar.execution.submissions import Submission
from belljar.models import Verdict

__all__ = ["Taken", "finished", "here_or_over", "submit"]

_LOOK_AGAIN_S = 0.1

Taken = LiveRun | Outcome
"""A run of this process; or what its record says, which is final unless another process has it."""


async def submit(call: Call, submission: Submission) -> Taken:
    """
    Raises:
        BelljarError: it is not run; for a request that was refused before, as it was then.
    """
    async with call.desk.admission:
        taken = await call.service.lifecycle.submit(submission)
    if isinstance(taken, LiveRun):
        if taken.task is not None:
            call.keep_until(taken.task)
    elif taken.record.status is Status.REFUSED:
        raise Recorded(taken.record.error_code, taken.record.error_reason)
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


async def finished(call: Call, taken: Taken) -> tuple[ExecRecord, Kept]:
    """How it ended and what it left.

    Raises:
        BelljarError: it was lost, by a failure of ours; or `here_or_over` raises it.
    """
    if isinstance(taken, Outcome):
        taken = await here_or_over(call, taken.record)
    outcome = await taken.outcome() if isinstance(taken, LiveRun) else taken
    record = outcome.record
    if outcome.result is not None:
        return record, kept_of(outcome, call.service.workspace)
    if record.verdict == Verdict.LOST and record.error_code is not None:
        raise Recorded(record.error_code, record.error_reason)
    return record, await asyncio.to_thread(kept_of, outcome, call.service.workspace)
