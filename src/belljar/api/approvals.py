"""`/approvals`: what waits for a person, all that a person needs to decide, and the decision.

The program itself is shown as long as it waits, from the very bytes that would run; afterwards only its hash.
An agent is shown what it asked for itself, and no other's program.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from belljar.api.answers import json_answer
from belljar.api.bodies import Body
from belljar.api.calls import Call
from belljar.api.sessions import own_projects
from belljar.errors import ApprovalDenied, BadRequest, Conflict
from belljar.execution.approvals import Approval, ApprovalState, Approver
from belljar.tokens import Role

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["DecisionBody", "decide", "listing", "show"]

MAX_SHOWN_CHARS = 256 << 10
"""Of a program or of its input; nobody reads more."""
_REASONS = 3


class DecisionBody(Body):
    """A person's word. With `digest`, it holds only if what waits is what the person saw."""

    decision: Literal["approve", "deny"]
    reason: str = ""
    remember_days: float = 0
    digest: str | None = None


async def listing(call: Call) -> Response:
    asked = call.asked(("state", "project_id"))
    state = asked.get("state", ApprovalState.WAITING)
    if state not in set(ApprovalState):
        raise BadRequest(f"state must be one of {', '.join(ApprovalState)}", field="state")
    projects = own_projects(call)
    if "project_id" in asked:
        wanted = frozenset({asked["project_id"]})
        projects = wanted if projects is None else wanted & projects
    found = await call.service.lifecycle.approvals.known(projects, ApprovalState(state))
    return json_answer({"approvals": [_row(approval) for approval in found]})


async def show(call: Call) -> Response:
    call.asked(())
    return json_answer(await _view(call, await _approval(call)))


async def decide(call: Call) -> Response:
    """However often it is said: the same word of the same person counts once."""
    body = await call.said(DecisionBody)
    approval = await _approval(call)
    if body.digest is not None and body.digest != approval.digest:
        raise Conflict("what waits is not what was seen; look at it again", field="digest")
    if body.decision == "approve":
        await _check_waiting(call, approval)
    who = Approver(call.caller.id, call.caller.role)
    try:
        decided = await call.service.lifecycle.approvals.decide(
            approval,
            who,
            approve=body.decision == "approve",
            reason=body.reason,
            remember_days=body.remember_days,
        )
    except Conflict:
        decided = await _approval(call)
        if body.remember_days or not _said_already(decided, who, body):
            raise
    return json_answer(await _view(call, decided))


async def _check_waiting(call: Call, approval: Approval) -> None:
    """Nobody is told that something will run which will not."""
    try:
        await call.service.lifecycle.check_waiting(approval.exec_id)
    except ApprovalDenied as error:
        raise Conflict(error.message, field="decision") from error


def _said_already(approval: Approval, who: Approver, body: DecisionBody) -> bool:
    state = ApprovalState.APPROVED if body.decision == "approve" else ApprovalState.DENIED
    said = approval.answer
    return said is not None and (said.state, said.by, said.reason) == (state, who.token_id, body.reason)


async def _approval(call: Call) -> Approval:
    """That the path names. One that is not the caller's is as absent as none."""
    return await call.service.lifecycle.approvals.get(call.path_params["approval_id"], own_projects(call))


def _row(approval: Approval) -> dict[str, Any]:
    findings = approval.shown["findings"]
    return {
        "id": approval.id,
        "exec_id": approval.exec_id,
        "project_id": approval.project_id,
        "state": approval.state,
        "tier": approval.tier,
        "digest": approval.digest,
        "asked_by": approval.asked_by,
        "asked_at": approval.asked_at,
        "expires_at": approval.expires_at,
        "answer": asdict(approval.answer) if approval.answer else None,
        "reasons": [f"line {one['line']}: {one['reason']}" for one in findings[:_REASONS]],
    }


async def _view(call: Call, approval: Approval) -> dict[str, Any]:
    record = await call.service.store.get(approval.exec_id)
    waiting = None
    others = call.caller.role is Role.AGENT and call.caller.id != approval.asked_by
    if approval.answer is None and not others:
        waiting = await asyncio.to_thread(call.service.lifecycle.pending.load, approval.exec_id)
    code = waiting.request.code if waiting else None
    stdin = waiting.request.stdin.decode("utf-8", "replace") if waiting else None
    who = Approver(call.caller.id, call.caller.role)
    return {
        **_row(approval),
        **approval.shown,
        "may_decide": call.service.lifecycle.approvals.may_decide(approval, who),
        "code": code and code[:MAX_SHOWN_CHARS],
        "code_hash": record.code_hash if record else None,
        "stdin": stdin and stdin[:MAX_SHOWN_CHARS],
        "complete": waiting is not None and max(len(code or ""), len(stdin or "")) <= MAX_SHOWN_CHARS,
    }
