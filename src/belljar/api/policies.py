"""`/policy/explain`: what a request would be granted, field by field, with the layer that set it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar.api.answers import json_answer
from belljar.api.bodies import Body, Id, checked
from belljar.api.calls import Call

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["ExplainBody", "explain", "explain_request"]


class ExplainBody(Body):
    """A request that nobody sends: who would ask, with which tool or skill, for what."""

    role: str | None = None
    tool: str | None = None
    skill: Id | None = None
    policy_overrides: dict[str, Any] = {}


async def explain(call: Call) -> Response:
    return _explained(call, checked(ExplainBody, call.asked(("role", "tool", "skill"))))


async def explain_request(call: Call) -> Response:
    return _explained(call, await call.said(ExplainBody))


def _explained(call: Call, body: ExplainBody) -> Response:
    """What is not said is as in a run of the caller: its own role, and the tool that the run would be."""
    lifecycle = call.service.lifecycle
    role = body.role if body.role is not None else call.caller.agent_role
    skill = call.service.skills.get(body.skill).layer if body.skill is not None else None
    tool = body.tool if body.tool is not None else lifecycle.policies.usual_tool(role, skill)
    decision = lifecycle.decide(role=role, tool=tool, skill=skill, overrides=body.policy_overrides)
    return json_answer(decision.as_data())
