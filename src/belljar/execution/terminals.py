"""A terminal in a session: a shell that a person types at, for as long as the line holds.

It is no run: it has no turn, no clock but the session's and nothing to hand back. That it was there, whose it
was and how it ended is written down as a matter. What policy wants to see before it runs cannot be seen at a
shell, so a grant that lists commands or asks a person gives none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from belljar.audit.records import Matter
from belljar.engines.base import WORK, Command
from belljar.engines.kept import Terminal
from belljar.errors import BadRequest, BelljarError, Refused, UnsupportedLanguage
from belljar.execution.lifecycle import Lifecycle
from belljar.execution.pool import shape_of
from belljar.execution.sessions import Session, State
from belljar.models import Language

__all__ = ["KIND", "terminal"]

logger = logging.getLogger(__name__)

KIND = "terminal"


@asynccontextmanager
async def terminal(
    lifecycle: Lifecycle,
    session: Session,
    *,
    rows: int,
    columns: int,
    kind: str,
    role: str | None = None,
    tool: str | None = None,
    token_id: str = "",
) -> AsyncIterator[Terminal]:
    """
    Raises:
        Refused, BadRequest: there may be none, or not of this session.
        Conflict: the session is not ready.
    """
    session.check(State.READY)
    decision = lifecycle.decide(role=role, tool=tool, overrides=session.overrides)
    grant = await session.fit(decision.grant, Language.BASH)
    if shape_of(grant) != shape_of(session.grant):
        raise BadRequest("this session was granted more than a shell may have", field="session_id")
    if grant.commands or grant.approve_at is not None:
        raise Refused("policy wants to see each command before it runs; a terminal cannot show them")
    shell = session.interpreters().get(Language.BASH)
    if shell is None or Language.BASH not in grant.languages:
        raise UnsupportedLanguage("there is no shell here", field="language")
    cwd = f"{WORK}/{session.working_dir}" if session.working_dir else WORK
    command = Command(argv=shell, env={**session.env, "TERM": kind}, cwd=cwd)
    matter = Matter(
        kind=KIND,
        id=f"te-{secrets.token_hex(12)}",
        project_id=session.project_id,
        state="open",
        created_at=datetime.now(UTC),
        body={"session_id": session.id, "token_id": token_id},
    )
    await lifecycle.store.open_matter(matter)
    opened = session.kept.terminal(command, rows, columns)
    session.used()
    try:
        await opened.begin()
        yield opened
    finally:
        await opened.close()
        session.used()
        ended = {"ended_at": datetime.now(UTC).isoformat(), "exit_code": opened.exit_code}
        over = replace(matter, state="ended", body={**matter.body, **ended})
        try:
            await lifecycle.store.move_matter(over, "open")
        except BelljarError as error:
            logger.warning("the end of terminal %s is not written down: %s", matter.id, error)
