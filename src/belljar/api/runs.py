"""`POST /run`: run something and wait for it; as one answer, or as a stream of events that ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from belljar.api.answers import Kept, json_answer, pending_view, run_view
from belljar.api.bodies import Body, Id, Text
from belljar.api.calls import Call
from belljar.api.errors import error_body
from belljar.api.files import FileBody, FileOrName, decoded, input_files
from belljar.api.outcomes import ApprovalWait, Taken, finished, here_or_over, still_waiting, submit
from belljar.api.streams import EventStream, Message, last_event_id
from belljar.audit.records import ExecRecord
from belljar.errors import BadRequest, BelljarError, UnsupportedLanguage
from belljar.execution.session import Session
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest, Start
from belljar.policy.roles import tool_of
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["ProgramBody", "RunBody", "answered", "overrides_of", "request_of", "run"]

_LANGUAGES: Mapping[str, Language] = {**{str(one): one for one in Language}, "shell": Language.BASH}


class ProgramBody(Body):
    """Something to run: `code` in a `language`, or a `command`. Paths are relative to `/workspace/work`."""

    request_id: Id | None = None
    language: str | None = Field(None, json_schema_extra={"examples": [*_LANGUAGES]})
    code: str | None = None
    command: list[Text] | None = None
    args: list[Text] = []
    start: Literal["fork", "exec"] = "fork"
    working_dir: Text = ""
    env: dict[Text, Text] = {}
    stdin: str | None = None
    stdin_b64: str | None = None
    timeout_s: float | None = None
    input_files: list[FileOrName] = []
    output_files: list[Text] | None = None
    limits: dict[str, float] = {}
    on_output_limit: Literal["truncate", "kill"] | None = None
    approval_wait_s: ApprovalWait = 0


class RunBody(ProgramBody):
    """Something to run in a jar of its own."""

    project_id: str | None = None
    image: str | None = None
    packages: list[Text] = []
    persist_work: bool = False


async def run(call: Call) -> Response:
    body = await call.said(RunBody)
    project_id = call.project(body.project_id)
    request = replace(await request_of(call, body, project_id), packages=tuple(body.packages))
    submission = Submission(
        request=request,
        project_id=project_id,
        request_id=body.request_id,
        overrides=overrides_of(body),
        persist_work=body.persist_work,
        token_id=call.caller.id,
        role=call.caller.agent_role,
        tool=tool_of(request),
    )
    return await answered(call, submission, run_view, approval_wait_s=body.approval_wait_s)


async def answered(
    call: Call,
    submission: Submission,
    view: Callable[[ExecRecord, Kept], dict[str, Any]],
    session: Session | None = None,
    approval_wait_s: float = 0,
) -> Response:
    """Run it, and answer with the view of its end; or as a stream, if that is what the caller takes."""
    streamed = "text/event-stream" in call.headers.get("accept", "")
    after = last_event_id(call.headers.get("last-event-id")) if streamed else 0
    taken = await submit(call, submission, session)
    if streamed:
        taken = await here_or_over(call, taken.record)
        return EventStream(_told(call, taken, after, view), call.desk.patience.heartbeat_s)
    if (approval := await still_waiting(call, taken, approval_wait_s)) is not None:
        return json_answer(pending_view(taken.record, approval), 202)
    return json_answer(view(*await finished(call, taken)))


async def _told(
    call: Call, taken: Taken, after: int, view: Callable[[ExecRecord, Kept], dict[str, Any]]
) -> AsyncGenerator[Message, None]:
    async for event in call.service.lifecycle.events(taken.record, after):
        yield event
    try:
        record, kept = await finished(call, taken)
    except BelljarError as error:
        yield "error", error_body(error, request_id=taken.record.request_id, operator=call.is_operator)
    else:
        yield "result", view(record, kept)


async def request_of(call: Call, body: ProgramBody, project_id: str) -> RunRequest:
    given, cap = body.input_files, call.desk.max_input_bytes
    inputs = call.service.workspace.project(project_id) / "inputs"
    if all(isinstance(file, FileBody) for file in given):
        files = input_files(given, field="input_files", max_bytes=cap)
    else:
        files = await asyncio.to_thread(input_files, given, field="input_files", max_bytes=cap, inputs=inputs)
    return RunRequest(
        language=_language(body),
        code=body.code,
        command=None if body.command is None else tuple(body.command),
        start=Start(body.start),
        args=tuple(body.args),
        files=files,
        output_files=None if body.output_files is None else tuple(body.output_files),
        working_dir=body.working_dir,
        env=body.env,
        stdin=_stdin(body, cap),
    )


def _language(body: ProgramBody) -> Language | None:
    if body.language is None:
        return None if body.code is None else Language.PYTHON
    if body.language not in _LANGUAGES:
        what = f"{quoted(body.language)} is not a language that can be run"
        raise UnsupportedLanguage(what + nearest(body.language, _LANGUAGES), field="language")
    return _LANGUAGES[body.language]


def _stdin(body: ProgramBody, cap: int) -> bytes:
    if body.stdin_b64 is None:
        return (body.stdin or "").encode()
    if body.stdin is not None:
        raise BadRequest("give either stdin or stdin_b64, not both", field="stdin_b64")
    return decoded(body.stdin_b64, cap, field="stdin_b64")


def overrides_of(body: ProgramBody) -> dict[str, object]:
    """What the request asks of policy, in policy's words."""
    asked: dict[str, object] = {f"limits.{name}": value for name, value in body.limits.items()}
    if body.timeout_s is not None:
        if "limits.timeout_s" in asked:
            raise BadRequest("timeout_s is given twice, by itself and in limits", field="timeout_s")
        asked["limits.timeout_s"] = body.timeout_s
    for name in ("image", "on_output_limit"):
        if (value := getattr(body, name, None)) is not None:
            asked[name] = value
    return asked
