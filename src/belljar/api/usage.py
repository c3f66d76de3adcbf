"""`/sandbox/usage`: what the jars that are in use take right now."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from belljar.api.answers import json_answer
from belljar.api.calls import Call
from belljar.api.sessions import own_projects

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["show"]


async def show(call: Call) -> Response:
    call.asked(())
    return json_answer({"usage": [asdict(one) for one in call.service.sampler.usage(own_projects(call))]})
