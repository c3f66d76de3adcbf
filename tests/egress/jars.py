"""Programs in real jars that have a way out, and what their runs were told of it."""

from __future__ import annotations

import textwrap
from typing import Any

from belljar.egress.gate import Egress
from belljar.engines.base import Engine
from belljar.engines.jail.engine import JailEngine
from belljar.execution import runs
from belljar.models import Contacted, Grant, Language, Limits, Network, RunRequest, RunResult


def jail(way_out: Egress | None) -> JailEngine:
    return JailEngine(way_out=way_out)


async def run(
    engine: Engine,
    allowed: Network,
    code: str,
    language: Language = Language.BASH,
    *,
    limits: Limits | None = None,
    **request: Any,
) -> tuple[RunResult, list[Contacted]]:
    grant = Grant(limits=limits or Limits(), network=allowed, accept_weaker_limits=True)
    asked = RunRequest(language=language, code=textwrap.dedent(code), **request)
    contacts: list[Contacted] = []
    async for event in runs.stream(engine, grant, asked):
        if isinstance(event, Contacted):
            contacts.append(event)
        elif isinstance(event, RunResult):
            return event, contacts
    raise AssertionError("the last event is the result")
