"""`/policy/explain`: what a request would be granted, field by field, with the layer that set it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from belljar.api.answers import json_answer
from belljar.api.bodies import Body
from belljar.api.calls import Call
from belljar.policy.decisions import decide
from belljar.wiring import accepts_weaker_limits

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["ExplainBody", "explain", "explain_request"]


class ExplainBody(Body):
    """A request that nobody sends: who would ask, with which tool, for what."""

    role: str | None = None
    tool: str | None = None
    policy_overrides: dict[str, Any] = {}


async def explain(call: Call) -> Response:
    asked = call.asked(("role", "tool"))
    return _explained(call, ExplainBody(role=asked.get("role"), tool=asked.get("tool")))


async def explain_request(call: Call) -> Response:
    return _explained(call, await call.said(ExplainBody))


def _explained(call: Call, body: ExplainBody) -> Response:
    decision = decide(
        call.service.lifecycle.policies, role=body.role, tool=body.tool, overrides=body.policy_overrides
    )
    weaker = accepts_weaker_limits(call.service.config, person=False)
    decision = replace(decision, grant=replace(decision.grant, accept_weaker_limits=weaker))
    return json_answer(decision.as_data())
