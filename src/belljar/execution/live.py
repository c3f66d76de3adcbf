"""One run that this process has taken, for everybody who waits for it, listens to it or ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from belljar.audit.records import ExecRecord
from belljar.engines.base import Engine, Jar
from belljar.errors import BelljarError
from belljar.execution.approvals import Answer, Approval
from belljar.execution.events import EventLog
from belljar.execution.recording import last_event
from belljar.execution.stock import Installed
from belljar.execution.submissions import Submission
from belljar.execution.turns import Place
from belljar.models import Grant, Owner, RunResult

__all__ = ["LiveRun", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a caller gets when a run is over. `result` is None when only the record is left of it."""

    record: ExecRecord
    result: RunResult | None


class LiveRun:
    def __init__(
        self,
        record: ExecRecord,
        submission: Submission,
        grant: Grant,
        engine: Engine,
        place: Place | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.record = record
        self.submission = submission
        self.grant = grant
        self.place = place
        """None while it waits for a person: it takes nobody's place meanwhile."""
        self.approval: Approval | None = None
        self.waiting: asyncio.Future[Answer] | None = None
        """For a person's answer."""
        self.preparing: asyncio.Future[Installed] | None = None
        """Its packages are being installed."""
        self.engine = engine
        """What makes its jar: the service's, or the session it is in."""
        self.log = EventLog()
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self._accepted: asyncio.Future[ExecRecord] = loop.create_future()
        self._done: asyncio.Future[Outcome] = loop.create_future()
        self._jar: Jar | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._jar is not None:
            self._jar.cancel()
        elif self.preparing is not None:
            self.preparing.cancel()
        elif self.place is not None:
            self.place.forgo()
        elif self.waiting is not None:
            self.waiting.cancel()

    def has_jar(self, jar: Jar) -> None:
        jar.owner = Owner(self.record.project_id, self.record.role)
        self._jar = jar

    @property
    def jar(self) -> Jar | None:
        """Where it runs, once it does."""
        return self._jar

    def tell(self, kind: str, **data: Any) -> None:
        """Something that its listeners should know, unless it is over."""
        if not self.log.closed:
            self.log.add(kind, **data)

    def when_done(self, call: Callable[[], None]) -> None:
        """However it ends."""
        self._done.add_done_callback(lambda _: call())

    # For those who wait: however often they are cancelled, the run goes on.

    async def accepted(self) -> ExecRecord:
        """The record once it is durable; another run's, if this request is that run already.

        Raises what `AuditStore.accept` raises.
        """
        return await asyncio.shield(self._accepted)

    async def outcome(self) -> Outcome:
        """
        Raises:
            StoreUnavailable: it is over, but could not be written down yet.
        """
        return await asyncio.shield(self._done)

    # For its own task

    def accept(self, record: ExecRecord) -> None:
        self._accepted.set_result(record)

    def decline(self, error: BaseException) -> None:
        _fail(self._accepted, error)

    def finish(self, outcome: Outcome) -> None:
        self.record = outcome.record
        self.log.add("finished", **last_event(outcome.record))
        self.log.close()
        if not self._done.done():
            self._done.set_result(outcome)

    def fail(self, error: BelljarError) -> None:
        _fail(self._done, error)


def _fail(future: asyncio.Future[ExecRecord] | asyncio.Future[Outcome], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: perhaps nobody waits
