"""A terminal in a session: a shell that a person types at, for as long as the line holds.

It is no run: it has no turn, no clock but the session's and nothing to hand back. That it was there, whose it
was and how it ended is written down as a matter. What policy wants to see before it runs cannot be seen at a
shell, so a grant that lists commands or asks a person gives none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from belljar.audit.records import AuditStore, Matter
from belljar.engines.base import WORK, Command
from belljar.engines.kept import Terminal
from belljar.errors import BelljarError, Refused, UnsupportedLanguage
from belljar.execution.lifecycle import Lifecycle
from belljar.execution.session import Session, State
from belljar.models import Language

__all__ = ["KIND", "recover", "terminal"]

logger = logging.getLogger(__name__)

KIND = "terminal"
OPEN = "open"
ENDED = "ended"


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
        state=OPEN,
        created_at=datetime.now(UTC),
        body={"session_id": session.id, "token_id": token_id, "epoch": lifecycle.epoch},
    )
    await lifecycle.store.open_matter(matter)
    opened: Terminal | None = None
    try:
        session.check(State.READY)  # it may have changed while that was written
        session.check_free()
        opened = session.kept.terminal(command, rows, columns)
        session.begun += 1
        session.used()
        await opened.begin()
        yield opened
    finally:
        if opened is not None:
            await opened.close()
            session.used()
        try:
            await _end(lifecycle.store, matter, exit_code=opened.exit_code if opened else None)
        except BelljarError as error:
            logger.warning("the end of terminal %s is not written down: %s", matter.id, error)


async def recover(store: AuditStore, is_alive: Callable[[str], bool]) -> None:
    """At the start: those of a process that is gone have ended with it."""
    for matter in await store.matters(KIND, OPEN):
        epoch = matter.body.get("epoch")  # none: of a version that did not say whose it was
        if epoch is None or not is_alive(epoch):
            await _end(store, matter, exit_code=None)


async def _end(store: AuditStore, matter: Matter, *, exit_code: int | None) -> None:
    ended = {"ended_at": datetime.now(UTC).isoformat(), "exit_code": exit_code}
    await store.move_matter(replace(matter, state=ENDED, body={**matter.body, **ended}), OPEN)
