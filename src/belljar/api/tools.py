"""`/tools`: what an agent may use, as the API of its LLM takes it; and a call of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from belljar.api.answers import json_answer, pending_view
from belljar.api.bodies import Body, Id
from belljar.api.calls import Call
from belljar.api.execs import TaskRef
from belljar.api.outcomes import ApprovalWait, finished, still_waiting, submit
from belljar.errors import BadRequest
from belljar.execution.submissions import Submission
from belljar.flows.tools import Format, Outcome, catalogue, in_format, request_for, result_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["ToolBody", "call_tool", "listing"]


class ToolBody(Body):
    """A call of a tool, on the `work` of a project."""

    request_id: Id | None = None
    project_id: str | None = None
    arguments: dict[str, Any] = {}
    task_ref: TaskRef = Field(default_factory=TaskRef)
    approval_wait_s: ApprovalWait = 0


async def listing(call: Call) -> Response:
    asked = call.asked(("format",)).get("format", Format.BELLJAR)
    if asked not in set(Format):
        raise BadRequest(f"format must be one of {', '.join(Format)}", field="format")
    tools = catalogue(call.service.lifecycle.policies, call.caller.agent_role)
    return json_answer({"tools": [in_format(tool, Format(asked)) for tool in tools]})


async def call_tool(call: Call) -> Response:
    name, role = call.path_params["tool"], call.caller.agent_role
    body = await call.said(ToolBody)
    request, overrides = request_for(call.service.lifecycle.policies, role, name, body.arguments)
    ref = body.task_ref
    submission = Submission(
        request=request,
        project_id=call.project(body.project_id, ref.conversation_id),
        request_id=body.request_id,
        overrides=overrides,
        persist_work=True,
        token_id=call.caller.id,
        role=role,
        tool=name,
        **ref.model_dump(),
    )
    taken = await submit(call, submission)
    if (approval := await still_waiting(call, taken, body.approval_wait_s)) is not None:
        return json_answer(pending_view(taken.record, approval), 202)
    record, kept = await finished(call, taken)
    outcome = Outcome(
        record.exec_id,
        record.verdict,
        record.exit_code,
        record.duration_ms or 0,
        kept.stdout,
        kept.stderr,
        record.stdout_bytes,
        record.stderr_bytes,
        record.artifacts,
        record.error_code,
        record.error_reason,
    )
    return json_answer(result_of(name, outcome))
