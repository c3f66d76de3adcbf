"""`/skills`: which there are, and a call of one; as one answer, or as events that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from belljar.api.answers import json_answer, pending_view, run_view
from belljar.api.bodies import Body, Id
from belljar.api.calls import Call
from belljar.api.errors import error_body
from belljar.api.execs import TaskRef
from belljar.api.files import FileBody, input_files
from belljar.api.outcomes import ApprovalWait, Taken, finished, here_or_over, still_waiting, submit
from belljar.api.streams import EventStream, Message, last_event_id
from belljar.errors import BelljarError, ToolNotAllowed
from belljar.execution.submissions import Submission
from belljar.flows.skills import Skill
from belljar.models import RunRequest
from belljar.policy.decisions import PolicySet
from belljar.policy.patterns import allows
from belljar.policy.roles import tool_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["InvokeBody", "invoke", "listing", "show"]

_OF_A_RUN = (
    "verdict",
    "exit_code",
    "signal",
    "timed_out",
    "stdout",
    "stderr",
    "truncated",
    "duration_ms",
    "error_code",
    "error_reason",
)


class InvokeBody(Body):
    """A call of a skill. `digest` pins what is meant: another version of the skill is a CONFLICT."""

    request_id: Id | None = None
    project_id: str | None = None
    inputs: dict[str, Any] = {}
    files: list[FileBody] = []
    digest: str | None = None
    policy_overrides: dict[str, Any] = {}
    task_ref: TaskRef = Field(default_factory=TaskRef)
    approval_wait_s: ApprovalWait = 0


async def listing(call: Call) -> Response:
    policies, role = call.service.lifecycle.policies, call.caller.agent_role
    return json_answer(
        {"skills": [_view(one) for one in call.service.skills if _may_use(policies, role, one)]}
    )


async def show(call: Call) -> Response:
    call.asked(())
    return json_answer(_view(_found(call)))


async def invoke(call: Call) -> Response:
    body = await call.said(InvokeBody)
    streamed = "text/event-stream" in call.headers.get("accept", "")
    after = last_event_id(call.headers.get("last-event-id")) if streamed else 0
    skill = _found(call, body.digest)
    policies, role = call.service.lifecycle.policies, call.caller.agent_role
    files = input_files(body.files, field="files", max_bytes=call.desk.max_input_bytes)
    request = await asyncio.to_thread(skill.request, body.inputs, files)
    tool = _tool_of(policies, skill, request)
    skill.check_files(files, policies.operators_word(role, tool).grant.paths)
    ref = body.task_ref
    submission = Submission(
        request=request,
        project_id=call.project(body.project_id, ref.conversation_id),
        request_id=body.request_id,
        overrides=body.policy_overrides,
        token_id=call.caller.id,
        role=role,
        tool=tool,
        skill_id=skill.id,
        skill=skill.layer,
        skill_digest=skill.digest,
        **ref.model_dump(),
    )
    taken = await submit(call, submission)
    if streamed:
        taken = await here_or_over(call, taken.record)
        return EventStream(_told(call, skill, taken, after), call.desk.patience.heartbeat_s)
    if (approval := await still_waiting(call, taken, body.approval_wait_s)) is not None:
        return json_answer(pending_view(taken.record, approval), 202)
    return json_answer(await _answered(call, skill, taken))


async def _told(call: Call, skill: Skill, taken: Taken, after: int) -> AsyncGenerator[Message, None]:
    async for event in call.service.lifecycle.events(taken.record, after):
        yield event
    try:
        answer = await _answered(call, skill, taken)
    except BelljarError as error:
        yield "error", error_body(error, request_id=taken.record.request_id, operator=call.is_operator)
    else:
        yield "result", answer


async def _answered(call: Call, skill: Skill, taken: Taken) -> dict[str, Any]:
    record, kept = await finished(call, taken)
    answer = await asyncio.to_thread(skill.answer, record.exit_code, kept.stdout, kept.stderr, kept.files)
    run = run_view(record, kept)
    rules = skill.layer.policy.paths
    artifacts = [row for row in record.artifacts if allows(_in_jar(row["path"]), rules)]
    fault = answer.fault or (record.error_reason if artifacts else None)
    return {
        "exec_id": record.exec_id,
        "request_id": record.request_id,
        "skill_id": skill.id,
        "digest": skill.digest,
        "status": "failed" if fault is not None else "ok",
        "reason": fault,
        "outputs": answer.outputs,
        **{name: run[name] for name in _OF_A_RUN},
        "artifacts": artifacts,
        "skipped": record.skipped,
        "receipt": record.receipt_hash,
    }


def _found(call: Call, digest: str | None = None) -> Skill:
    skill = call.service.skills.get(call.path_params["skill_id"], digest)
    role = call.caller.agent_role
    if not _may_use(call.service.lifecycle.policies, role, skill):
        raise ToolNotAllowed(f"role `{role}` may not use skill `{skill.id}`", field="skill_id")
    return skill


def _in_jar(path: str) -> str:
    """Where a program sees what is reported by this path."""
    return f"/workspace/{path}" if path.startswith("artifacts/") else f"/workspace/work/{path}"


def _tool_of(policies: PolicySet, skill: Skill, request: RunRequest) -> str | None:
    """A policy may speak of a skill as of a tool; else one that runs its caller's program is what that is."""
    if (name := f"skill.{skill.id}") in policies.tools:
        return name
    return tool_of(request) if skill.runs_what_it_is_given else None


def _may_use(policies: PolicySet, role: str | None, skill: Skill) -> bool:
    """Who has a list of tools may use the skills on it, and no other."""
    policies.operators_word(role, None)  # a role that policy does not have is an error
    listed = None if role is None else policies.roles[role].tools
    return listed is None or f"skill.{skill.id}" in listed


def _view(skill: Skill) -> dict[str, Any]:
    limits = {name: value for name, value in skill.layer.policy.stated().items() if name != "paths"}
    return {
        "id": skill.id,
        "name": skill.name,
        "description": skill.description,
        "digest": skill.digest,
        "inputs": skill.inputs.document,
        "outputs": skill.outputs.document,
        "entrypoint": skill.entrypoint,
        "packages": skill.packages,
        "limits": limits,
    }
