"""A person's yes to one run: asked for, bound to exactly what will run, given once.

    waiting ─► approved   the run goes on, if what would run is still what was shown
       ├─────► denied     a person said no
       ├─────► expired    nobody answered in time
       └─────► void       the run was cancelled, or is not what was shown any more

The digest covers every byte of the request, the files of the session it is in, and the whole grant: other
code, another file, another limit or another policy is another digest. A person may also say yes to one digest
for some days; a run of that very digest then does not wait.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from belljar.audit.records import AuditStore, ExecRecord, Matter
from belljar.errors import BadRequest, Conflict, Forbidden, NotFound, QueueFull
from belljar.execution.submissions import Submission
from belljar.execution.upkeep import kept_up
from belljar.models import Grant, RiskTier

__all__ = ["Answer", "Approval", "ApprovalState", "Approvals", "Approver", "digest_of"]

KIND = "approval"
STANDING = "standing"
ACTIVE = "active"
MAX_WAITING = 1000
MAX_WAITING_PER_PROJECT = 100
MAX_REMEMBER_DAYS = 365
MAX_REASON = 2000
REVIEW_S = 1.0


class ApprovalState(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Approver:
    """Who decides: a token's id and its role."""

    token_id: str
    role: str


@dataclass(frozen=True, slots=True)
class Answer:
    state: ApprovalState
    by: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    id: str
    exec_id: str
    project_id: str
    digest: str
    tier: RiskTier
    asked_by: str
    asked_at: datetime
    expires_at: datetime
    answer: Answer | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    """What a person needs to decide: findings, grant with provenance, inputs with digests."""

    @property
    def state(self) -> ApprovalState:
        return self.answer.state if self.answer else ApprovalState.WAITING

    @property
    def facts(self) -> dict[str, Any]:
        """What a record and its receipt say of it."""
        said = self.answer
        return {
            "approval_id": self.id,
            "digest": self.digest,
            "tier": self.tier,
            "decision": self.state,
            **({"by": said.by, "reason": said.reason, "at": said.at.isoformat()} if said else {}),
        }


@dataclass(frozen=True, slots=True)
class _Waiting:
    approval: Approval
    answer: asyncio.Future[Answer]

    def hear(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


def digest_of(submission: Submission, grant: Grant) -> str:
    return hashlib.sha256(f"{submission.digest} {grant.digest}".encode()).hexdigest()


class Approvals:
    def __init__(
        self,
        store: AuditStore,
        *,
        expires_s: float,
        approvers: Mapping[RiskTier, frozenset[str]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._expires_s = expires_s
        self._approvers = approvers or {}
        self._now = now
        self._waiting: dict[str, _Waiting] = {}
        self._asking: list[str] = []
        """Projects, once for each run that is about to wait."""

    @contextmanager
    def room(self, project_id: str) -> Iterator[None]:
        """For one more, until it is asked.

        Raises:
            QueueFull: as many wait as may.
        """
        waiting = [*self._asking, *(one.approval.project_id for one in self._waiting.values())]
        if len(waiting) >= MAX_WAITING or waiting.count(project_id) >= MAX_WAITING_PER_PROJECT:
            raise QueueFull("too many runs wait for a person already", retry_after_s=60)
        self._asking.append(project_id)
        try:
            yield
        finally:
            self._asking.remove(project_id)

    async def ask(
        self, record: ExecRecord, digest: str, tier: RiskTier, shown: Mapping[str, Any]
    ) -> Approval:
        """Durable when it returns."""
        now = self._now()
        approval = Approval(
            id=_id_for(record.exec_id),
            exec_id=record.exec_id,
            project_id=record.project_id,
            digest=digest,
            tier=tier,
            asked_by=record.token_id,
            asked_at=now,
            expires_at=now + timedelta(seconds=self._expires_s),
            shown=shown,
        )
        await self._store.open_matter(_matter(approval))
        self._await(approval)
        return approval

    async def resume(self, exec_id: str) -> Approval | None:
        """After a restart: what was asked of a run, to be waited for again."""
        matter = await self._store.matter(KIND, _id_for(exec_id))
        if matter is None:
            return None
        approval = _approval(matter)
        if approval.answer is None:
            self._await(approval)
        return approval

    def _await(self, approval: Approval) -> None:
        self._waiting[approval.id] = _Waiting(approval, asyncio.get_running_loop().create_future())

    def answer_to(self, approval: Approval) -> asyncio.Future[Answer]:
        """There when somebody has decided, or nobody in time. Who asked calls `wait_no_more` afterwards."""
        if approval.answer is None:
            return self._waiting[approval.id].answer
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answered.set_result(approval.answer)
        return answered

    def wait_no_more(self, approval: Approval) -> None:
        self._waiting.pop(approval.id, None)

    async def standing(self, digest: str) -> Mapping[str, Any] | None:
        """A yes that was given to this very digest for some days, if it still holds."""
        matter = await self._store.matter(STANDING, digest)
        if matter is None or matter.state != ACTIVE:
            return None
        if datetime.fromisoformat(matter.body["until"]) <= self._now():
            return None
        return {**matter.body["approval"], "standing_until": matter.body["until"]}

    async def get(self, approval_id: str, projects: frozenset[str] | None = None) -> Approval:
        matter = await self._store.matter(KIND, approval_id)
        if matter is None or (projects is not None and matter.project_id not in projects):
            raise NotFound("there is no approval of that id", field="approval_id")
        return _approval(matter)

    async def of(self, exec_id: str) -> Approval:
        """What was asked of this run."""
        return await self.get(_id_for(exec_id))

    async def known(
        self, projects: frozenset[str] | None = None, *states: ApprovalState
    ) -> Sequence[Approval]:
        """Newest first; those that wait, if nothing else is asked for."""
        found = await self._store.matters(KIND, *(states or (ApprovalState.WAITING,)), projects=projects)
        return [_approval(matter) for matter in found]

    async def decide(
        self, approval: Approval, who: Approver, *, approve: bool, reason: str = "", remember_days: float = 0
    ) -> Approval:
        """
        Raises:
            Forbidden: this is not theirs to decide.
            Conflict: it is decided already.
        """
        self._check(approval, who)
        if len(reason) > MAX_REASON:
            raise BadRequest(f"a reason has at most {MAX_REASON} characters", field="reason")
        if not 0 <= remember_days <= MAX_REMEMBER_DAYS or (remember_days and not approve):
            message = f"a yes can be remembered for up to {MAX_REMEMBER_DAYS} days, a no cannot"
            raise BadRequest(message, field="remember_days")
        state = ApprovalState.APPROVED if approve else ApprovalState.DENIED
        decided = await self._answer(approval, Answer(state, who.token_id, reason, self._now()))
        if remember_days:
            await self._remember(decided, self._now() + timedelta(days=remember_days))
        return decided

    def may_decide(self, approval: Approval, who: Approver) -> bool:
        try:
            self._check(approval, who)
        except Forbidden:
            return False
        return True

    def _check(self, approval: Approval, who: Approver) -> None:
        if who.role not in ("operator", "approver"):
            raise Forbidden(f"a token of role {who.role} decides nothing; a person's token does")
        allowed = self._approvers.get(approval.tier)
        if allowed is not None and not {who.role, who.token_id} & allowed:
            names = ", ".join(sorted(allowed)) or "nobody"
            raise Forbidden(f"policy lets only {names} decide on risk {approval.tier}")

    async def void(self, approval: Approval, reason: str) -> None:
        if approval.answer is None:
            with suppress(Conflict):  # somebody was faster, and it does not matter any more
                await self._answer(approval, Answer(ApprovalState.VOID, "", reason, self._now()))

    async def watch(self) -> None:
        """Until it is cancelled: lets those expire that nobody answered, and hears what others decided."""
        await kept_up("approvals", self._review, every_s=REVIEW_S)

    async def _review(self) -> None:
        if not self._waiting:
            return
        undecided = {approval.id for approval in await self.known()}
        for id, waiting in list(self._waiting.items()):
            # It may have been decided through another process of the service.
            answer = None if id in undecided else (await self.get(id)).answer
            if answer is not None:
                waiting.hear(answer)
            elif waiting.approval.expires_at <= self._now():
                nobody = Answer(ApprovalState.EXPIRED, "", "nobody answered in time", self._now())
                with suppress(Conflict):  # somebody did, just now
                    await self._answer(waiting.approval, nobody)

    async def _answer(self, approval: Approval, answer: Answer) -> Approval:
        decided = replace(approval, answer=answer)
        await self._store.move_matter(_matter(decided), ApprovalState.WAITING)
        if approval.id in self._waiting:
            self._waiting[approval.id].hear(answer)
        return decided

    async def _remember(self, approval: Approval, until: datetime) -> None:
        matter = Matter(
            kind=STANDING,
            id=approval.digest,
            project_id=approval.project_id,
            state=ACTIVE,
            created_at=self._now(),
            body={"until": until.isoformat(), "approval": approval.facts},
        )
        try:
            await self._store.open_matter(matter)
        except Conflict:
            known = await self._store.matter(STANDING, approval.digest)
            await self._store.move_matter(matter, known.state if known else ACTIVE)


def _id_for(exec_id: str) -> str:
    return f"ap-{exec_id.removeprefix('ex-')}"


def _matter(approval: Approval) -> Matter:
    answer = asdict(approval.answer) if approval.answer else None
    if answer:
        answer["at"] = answer["at"].isoformat()
    return Matter(
        kind=KIND,
        id=approval.id,
        project_id=approval.project_id,
        state=approval.state,
        created_at=approval.asked_at,
        body={
            "exec_id": approval.exec_id,
            "digest": approval.digest,
            "tier": approval.tier,
            "asked_by": approval.asked_by,
            "expires_at": approval.expires_at.isoformat(),
            "answer": answer,
            "shown": dict(approval.shown),
        },
    )


def _approval(matter: Matter) -> Approval:
    body = matter.body
    said = body["answer"]
    answer = None
    if said:
        at = datetime.fromisoformat(said["at"])
        answer = Answer(ApprovalState(said["state"]), said["by"], said["reason"], at)
    return Approval(
        id=matter.id,
        exec_id=body["exec_id"],
        project_id=matter.project_id,
        digest=body["digest"],
        tier=RiskTier(body["tier"]),
        asked_by=body["asked_by"],
        asked_at=matter.created_at,
        expires_at=datetime.fromisoformat(body["expires_at"]),
        answer=answer,
        shown=body["shown"],
    )
