"""`/sandbox/sessions`: begin one, run in it, stop the clock or move it on, keep its files, and end it.

Its files have a module of their own (`sessionfiles`), what one types at it too (`terminals`).
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from belljar.api.answers import Kept, json_answer, run_view
from belljar.api.bodies import Body, Id, Text
from belljar.api.calls import Call
from belljar.api.runs import ProgramBody, answered, overrides_of, request_of
from belljar.audit.records import ExecRecord
from belljar.errors import BadRequest, Conflict, NotFound
from belljar.execution.session import Session
from belljar.execution.submissions import Submission
from belljar.policy.roles import tool_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "ExtendBody",
    "ForkBody",
    "InterruptBody",
    "SessionBody",
    "SessionRunBody",
    "close",
    "close_context",
    "contexts",
    "create",
    "extend",
    "fork",
    "interrupt",
    "listing",
    "open_session",
    "own_projects",
    "pause",
    "remove_snapshot",
    "resume",
    "run",
    "show",
    "snapshot",
    "snapshots",
]


class SessionBody(Body):
    """A session. What it may use is asked of policy here; `env` and `working_dir` are its runs' defaults."""

    project_id: str | None = None
    policy_overrides: dict[str, Any] = {}
    env: dict[Text, Text] = {}
    working_dir: Text = ""
    idle_s: float | None = None
    max_age_s: float | None = None
    snapshot: str | None = None


class SessionRunBody(ProgramBody):
    """Something to run in a session; `code` in a `context` has the variables of what ran there before."""

    context: Id | None = None
    stdin_open: bool = False


class ExtendBody(Body):
    seconds: float


class ForkBody(Body):
    count: int = 1


class InterruptBody(Body):
    exec_id: str | None = None


async def create(call: Call) -> Response:
    body = await call.said(SessionBody)
    session = await call.service.sessions.start(
        call.project(body.project_id),
        overrides=body.policy_overrides,
        role=call.caller.agent_role,
        env=body.env,
        working_dir=body.working_dir,
        idle_s=body.idle_s,
        max_age_s=body.max_age_s,
        snapshot=body.snapshot,
        token_id=call.caller.id,
    )
    return json_answer(session.facts)


async def listing(call: Call) -> Response:
    asked = call.asked(("project_id", "ended"))
    if asked.get("ended", "false") not in ("true", "false"):
        raise BadRequest("ended is true or false", field="ended")
    projects = own_projects(call)
    if "project_id" in asked:
        wanted = frozenset({asked["project_id"]})
        projects = wanted if projects is None else wanted & projects
    found = await call.service.sessions.known(projects, ended=asked.get("ended") == "true")
    return json_answer({"sessions": found})


async def show(call: Call) -> Response:
    return json_answer(await call.service.sessions.facts(call.path_params["session_id"], own_projects(call)))


async def close(call: Call) -> Response:
    """However often it is called: the session ends, or has ended."""
    await call.no_body()
    sessions = call.service.sessions
    try:
        await sessions.end(sessions.get(call.path_params["session_id"], own_projects(call)))
    except NotFound:
        pass  # or it ended by itself; else the next line says so again
    return await show(call)


async def run(call: Call) -> Response:
    body = await call.said(SessionRunBody)
    session = await open_session(call)
    request = await request_of(call, body, session.project_id)
    request = replace(request, context=body.context, stdin_open=body.stdin_open)
    submission = Submission(
        request=request,
        request_id=body.request_id,
        overrides=overrides_of(body),
        token_id=call.caller.id,
        role=call.caller.agent_role,
        tool=tool_of(request),
    )

    def view(record: ExecRecord, kept: Kept) -> dict[str, Any]:
        return run_view(record, kept) | {"session_id": session.id, "results": kept.shown}

    return await answered(call, submission, view, session, body.approval_wait_s)


async def extend(call: Call) -> Response:
    body = await call.said(ExtendBody)
    session = await open_session(call)
    call.service.sessions.extend(session, body.seconds)
    return json_answer(session.facts)


async def pause(call: Call) -> Response:
    await call.no_body()
    session = await open_session(call)
    await call.service.sessions.pause(session)
    return json_answer(session.facts)


async def resume(call: Call) -> Response:
    await call.no_body()
    session = await open_session(call)
    await call.service.sessions.resume(session)
    return json_answer(session.facts)


async def snapshot(call: Call) -> Response:
    await call.no_body()
    return json_answer(asdict(await call.service.sessions.snapshot(await open_session(call))))


async def fork(call: Call) -> Response:
    body = await call.said(ForkBody)
    session = await open_session(call)
    made = await call.service.sessions.fork(session, body.count, call.caller.id)
    return json_answer({"sessions": [one.facts for one in made]})


async def interrupt(call: Call) -> Response:
    """As by Ctrl-C: a context hears SIGINT and lives on if it heeds; any other program is asked to end."""
    body = await call.said(InterruptBody)
    session = await open_session(call)
    if body.exec_id is not None and body.exec_id not in session.live:
        raise NotFound("no such run goes on in this session", field="exec_id")
    interrupted = [body.exec_id] if body.exec_id is not None else list(session.live)
    for exec_id in interrupted:
        session.live[exec_id].cancel()
    return json_answer({"interrupted": interrupted})


async def contexts(call: Call) -> Response:
    session = await open_session(call)
    return json_answer({"contexts": session.kept.contexts})


async def close_context(call: Call) -> Response:
    await call.no_body()
    session = await open_session(call)
    await session.kept.close_context(call.path_params["name"])
    return json_answer({"contexts": session.kept.contexts})


async def snapshots(call: Call) -> Response:
    project_id = call.project(call.asked(("project_id",)).get("project_id"))
    found = await asyncio.to_thread(call.service.sessions.snapshots.all_of, project_id)
    return json_answer({"snapshots": [asdict(one) for one in found]})


async def remove_snapshot(call: Call) -> Response:
    await call.no_body()
    project_id = call.project(call.asked(("project_id",)).get("project_id"))
    digest = call.path_params["digest"]
    await asyncio.to_thread(call.service.sessions.snapshots.remove, project_id, digest)
    return json_answer({"removed": digest})


async def open_session(call: Call) -> Session:
    """That of the path.

    Raises:
        NotFound: there is none, or it is not the caller's.
        Conflict: it is over; says why.
    """
    sessions, session_id, own = call.service.sessions, call.path_params["session_id"], own_projects(call)
    try:
        return sessions.get(session_id, own)
    except NotFound:
        past = await sessions.facts(session_id, own)
        raise Conflict(f"the session is {past['state']}: {past['reason']}", field="session_id") from None


def own_projects(call: Call) -> frozenset[str] | None:
    own = call.caller.projects
    return None if own is None else frozenset(own)
