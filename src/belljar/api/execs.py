"""`/sandbox/execs`: submit, list, show, listen to and cancel runs; their code, network, receipts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from belljar import paths
from belljar.api.answers import exec_view, json_answer, page_row, pending_view
from belljar.api.bodies import Body, Id, Text
from belljar.api.calls import Call
from belljar.api.files import FileBody, input_files
from belljar.api.outcomes import ApprovalWait, finished, here_or_over, still_waiting, submit
from belljar.api.streams import EventStream, Message, last_event_id
from belljar.audit import receipts
from belljar.audit.records import NEXT, ExecRecord, Filter, Status
from belljar.errors import BadRequest, Forbidden, NotFound
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest
from belljar.policy.roles import tool_of
from belljar.tokens import Role

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "ExecBody",
    "Program",
    "TaskRef",
    "cancel",
    "code",
    "create",
    "events",
    "network",
    "page",
    "page_limit",
    "receipt",
    "show",
]

INPUTS = "/workspace/inputs"
FILTERS = ("task_id", "project_id", "status", "skill_id", "since", "limit", "cursor")
PAGE = 50
MAX_PAGE = 200

_LANGUAGE = {"shell": Language.BASH, "python": Language.PYTHON}
_OWN_NAMES = {"shell": ("bash",), "python": ("python", "python3")}
_BEFORE_CODE = {"shell": ("-lc", "-c"), "python": ("-c",)}
"""The interpreter's options for code as an argument; the first is ours."""


class Program(Body):
    """A script, or with `command` left out (or the interpreter's own name) the interpreter's arguments."""

    kind: Literal["shell", "python"]
    command: Text | None = None
    args: list[Text] = []
    cwd: Text = ""
    env: dict[Text, Text] = {}


class TaskRef(Body):
    """In which context a run was asked for."""

    task_id: Id | None = None
    conversation_id: Id | None = None
    session_id: Id | None = None
    agent_id: Id | None = None
    org_id: Id | None = None


class ExecBody(Body):
    """Something to run. Paths of `inputs` are relative to `/workspace/inputs`, `cwd` to `/workspace/work`."""

    request_id: Id | None = None
    project_id: str | None = None
    skill_id: Id | None = None
    exec: Program
    inputs: list[FileBody] = []
    output_files: list[Text] | None = None
    packages: list[Text] = []
    policy_overrides: dict[str, Any] = {}
    task_ref: TaskRef = Field(default_factory=TaskRef)
    persist_work: bool = False
    wait: bool = True
    approval_wait_s: ApprovalWait = 0


async def create(call: Call) -> Response:
    body = await call.said(ExecBody)
    ref = body.task_ref
    skill = call.service.skills.get(body.skill_id) if body.skill_id is not None else None
    request = RunRequest(
        **_program(body),
        inputs=input_files(body.inputs, field="inputs", max_bytes=call.desk.max_input_bytes),
        output_files=None if body.output_files is None else tuple(body.output_files),
        working_dir=body.exec.cwd and paths.validate(body.exec.cwd, field="exec.cwd"),
        env=body.exec.env,
        packages=tuple(body.packages),
    )
    submission = Submission(
        request=request,
        # Where there are no projects, a conversation is one.
        project_id=call.project(body.project_id, ref.conversation_id),
        request_id=body.request_id,
        overrides=body.policy_overrides,
        persist_work=body.persist_work,
        token_id=call.caller.id,
        role=call.caller.agent_role,
        tool=tool_of(request),
        skill_id=body.skill_id,
        skill=skill.layer if skill is not None else None,
        skill_digest=skill.digest if skill is not None else None,
        task_id=ref.task_id,
        conversation_id=ref.conversation_id,
        session_id=ref.session_id,
        agent_id=ref.agent_id,
        org_id=ref.org_id,
    )
    taken = await submit(call, submission)
    approval = await still_waiting(call, taken, body.approval_wait_s if body.wait else 0)
    if approval is not None:
        view = exec_view(taken.record, operator=call.is_operator) | pending_view(taken.record, approval)
        return json_answer(view, 202)
    if not body.wait and NEXT[taken.record.status]:
        return _shown(call, taken.record, 202)
    record, kept = await finished(call, taken)
    return json_answer(exec_view(record, operator=call.is_operator, kept=kept))


def _program(body: ExecBody) -> dict[str, Any]:
    """What of a request is the program. All of it is given to the interpreter; nothing is written for it."""
    kind, command, args = body.exec.kind, body.exec.command, tuple(body.exec.args)
    options: tuple[str, ...] = ()
    code = None
    if command is None or command in _OWN_NAMES[kind]:
        if len(args) > 1 and args[0] in _BEFORE_CODE[kind]:
            options, code, args = args[:1], args[1], args[2:]
    elif kind == "python" and (path := _input(body, command)) is not None:
        args = (path, *args)
    else:
        options, code = _BEFORE_CODE[kind][:1], command
        if kind == "shell" and args:
            args = ("bash", *args)  # the first one is `$0`
    return {"language": _LANGUAGE[kind], "code": code, "inline": options, "args": args}


def _input(body: ExecBody, command: str) -> str | None:
    name = command.removeprefix(f"{INPUTS}/")
    return f"{INPUTS}/{name}" if any(file.path == name for file in body.inputs) else None


async def page(call: Call) -> Response:
    asked = call.asked(FILTERS)
    own = call.caller.projects
    wanted = Filter(
        projects=None if own is None else frozenset(own),
        project_id=asked.get("project_id"),
        task_id=asked.get("task_id"),
        status=_status(asked.get("status")),
        skill_id=asked.get("skill_id"),
        since=_since(asked.get("since")),
    )
    found = await call.service.store.page(
        wanted, limit=page_limit(asked.get("limit")), cursor=asked.get("cursor") or None
    )
    rows = [page_row(record, operator=call.is_operator) for record in found.records]
    return json_answer({"execs": rows, "cursor": found.cursor})


async def show(call: Call) -> Response:
    return _shown(call, await call.record())


async def events(call: Call) -> Response:
    after = last_event_id(call.headers.get("last-event-id"))
    taken = await here_or_over(call, await call.record())
    return EventStream(_told(call, taken.record, after), call.desk.patience.heartbeat_s)


async def _told(call: Call, record: ExecRecord, after: int) -> AsyncGenerator[Message, None]:
    async for event in call.service.lifecycle.events(record, after):
        yield event


async def cancel(call: Call) -> Response:
    """However often it is called: the run ends, or has ended."""
    await call.no_body()
    record = await call.record()
    try:
        await call.service.lifecycle.cancel(record.exec_id)
    except NotFound:
        return _shown(call, await call.record())
    return _shown(call, record, 202)


async def network(call: Call) -> Response:
    """What was decided of its way out; written down when it is over, and told as events before."""
    record = await call.record()
    said = record.network_decisions
    rows = [asdict(one) for one in await call.service.store.network_decisions(record.exec_id)]
    answer = {"exec_id": record.exec_id, "total": said.get("total", 0), "refused": said.get("refused", 0)}
    return json_answer({**answer, "decisions": rows})


async def code(call: Call) -> Response:
    """For whoever ran it, and for people: an agent does not read what others ran in its project."""
    record = await call.record()
    if call.caller.role is Role.AGENT and call.caller.id != record.token_id:
        raise Forbidden("the code of a run is told to whoever ran it, and to people's tokens")
    text = await asyncio.to_thread(call.service.workspace.code, record)
    return json_answer({"exec_id": record.exec_id, "code_hash": record.code_hash, "code": text})


async def receipt(call: Call) -> Response:
    record = await call.record()
    found = await call.service.store.receipt_of(record.exec_id)
    if found is None:
        raise NotFound("there is no receipt of this run; it gets one when it is over", field="exec_id")
    return json_answer(receipts.export(found))


def _shown(call: Call, record: ExecRecord, status: int = 200) -> Response:
    return json_answer(exec_view(record, operator=call.is_operator), status)


def _status(given: str | None) -> Status | None:
    try:
        return None if given is None else Status(given)
    except ValueError:
        raise BadRequest(f"status must be one of {', '.join(Status)}", field="status") from None


def _since(given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest("since must be a time such as 2026-01-31T12:00:00Z", field="since") from None


def page_limit(given: str | None) -> int:
    if given is None:
        return PAGE
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 1 <= int(given) <= MAX_PAGE):
        raise BadRequest(f"limit must be a number from 1 to {MAX_PAGE}", field="limit")
    return int(given)
