"""`POST /run`: run something and wait for it; as one answer, or as a stream of events that ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from belljar.api.answers import json_answer, run_view
from belljar.api.bodies import Body, Id, Text
from belljar.api.calls import Call
from belljar.api.errors import error_body
from belljar.api.files import FileBody, FileOrName, decoded, input_files
from belljar.api.outcomes import Taken, finished, here_or_over, submit
from belljar.api.streams import EventStream, Message, last_event_id
from belljar.errors import BadRequest, BelljarError, UnsupportedLanguage
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest, Start
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["RunBody", "run"]

_LANGUAGES: Mapping[str, Language] = {**{str(one): one for one in Language}, "shell": Language.BASH}


class RunBody(Body):
    """Something to run: `code` in a `language`, or a `command`. Paths are relative to `/workspace/work`."""

    request_id: Id | None = None
    project_id: str | None = None
    language: str | None = Field(None, json_schema_extra={"examples": [*_LANGUAGES]})
    code: str | None = None
    command: list[Text] | None = None
    args: list[Text] = []
    start: Literal["fork", "exec"] = "fork"
    image: str | None = None
    working_dir: Text = ""
    env: dict[Text, Text] = {}
    stdin: str | None = None
    stdin_b64: str | None = None
    timeout_s: float | None = None
    input_files: list[FileOrName] = []
    output_files: list[Text] | None = None
    limits: dict[str, float] = {}
    persist_work: bool = False


async def run(call: Call) -> Response:
    body = await call.said(RunBody)
    streamed = "text/event-stream" in call.headers.get("accept", "")
    after = last_event_id(call.headers.get("last-event-id")) if streamed else 0
    project_id = call.project(body.project_id)
    submission = Submission(
        request=await _request(call, body, project_id),
        project_id=project_id,
        request_id=body.request_id,
        overrides=_overrides(body),
        persist_work=body.persist_work,
        token_id=call.caller.id,
    )
    taken = await submit(call, submission)
    if streamed:
        taken = await here_or_over(call, taken.record)
        return EventStream(_told(call, taken, after), call.desk.patience.heartbeat_s)
    return json_answer(run_view(*await finished(call, taken)))


async def _told(call: Call, taken: Taken, after: int) -> AsyncGenerator[Message, None]:
    async for event in call.service.lifecycle.events(taken.record, after):
        yield event
    try:
        record, kept = await finished(call, taken)
    except BelljarError as error:
        yield "error", error_body(error, request_id=taken.record.request_id, operator=call.is_operator)
    else:
        yield "result", run_view(record, kept)


async def _request(call: Call, body: RunBody, project_id: str) -> RunRequest:
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


def _language(body: RunBody) -> Language | None:
    if body.language is None:
        return None if body.code is None else Language.PYTHON
    if body.language not in _LANGUAGES:
        what = f"{quoted(body.language)} is not a language that can be run"
        raise UnsupportedLanguage(what + nearest(body.language, _LANGUAGES), field="language")
    return _LANGUAGES[body.language]


def _stdin(body: RunBody, cap: int) -> bytes:
    if body.stdin_b64 is None:
        return (body.stdin or "").encode()
    if body.stdin is not None:
        raise BadRequest("give either stdin or stdin_b64, not both", field="stdin_b64")
    return decoded(body.stdin_b64, cap, field="stdin_b64")


def _overrides(body: RunBody) -> dict[str, object]:
    """What the request asks of policy, in policy's words."""
    asked: dict[str, object] = {f"limits.{name}": value for name, value in body.limits.items()}
    if body.timeout_s is not None:
        if "limits.timeout_s" in asked:
            raise BadRequest("timeout_s is given twice, by itself and in limits", field="timeout_s")
        asked["limits.timeout_s"] = body.timeout_s
    if body.image is not None:
        asked["image"] = body.image
    return asked
