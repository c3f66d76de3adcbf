"""`POST /run`: run something and wait for it; as one answer, or as a stream of events that ends with it.

A caller that goes away changes nothing: the run goes on, and the same `request_id` finds its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.responses import Response

from belljar.api import files
from belljar.api.answers import Kept, json_answer, kept_of, run_view
from belljar.api.calls import Body, Call
from belljar.api.errors import error_body, is_private
from belljar.api.files import FileBody, Text
from belljar.api.streams import EventStream, Message, last_event_id
from belljar.audit.records import ExecRecord, Status
from belljar.errors import BadRequest, BelljarError, UnsupportedLanguage
from belljar.execution.lifecycle import LiveRun, Outcome
from belljar.execution.submissions import Submission
from belljar.execution.workspace import check_project_id
from belljar.models import Language, RunRequest, Start
from belljar.strictyaml import nearest, quoted

__all__ = ["Id", "RunBody", "finished", "project_of", "run", "submit"]

Id = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
"""A name that a caller gives: 1 to 200 visible characters of ASCII."""

_LANGUAGES: Mapping[str, Language] = {language.value: language for language in Language} | {
    "shell": Language.BASH
}


class RunBody(Body):
    """Both forms: some code, or a command."""

    request_id: Id | None = None
    project_id: str | None = None
    language: Annotated[str, Field(json_schema_extra={"enum": sorted(_LANGUAGES)})] | None = None
    code: str | None = None
    command: list[Text] | None = None
    args: list[Text] = []
    start: str = Field(Start.FORK.value, json_schema_extra={"enum": list(Start)})
    image: str | None = None
    working_dir: Text = ""
    env: dict[Text, Text] = {}
    stdin: str | None = None
    stdin_b64: str | None = None
    timeout_s: float | None = None
    input_files: list[FileBody | Text] = []
    output_files: list[Text] | None = None
    limits: dict[str, float] = {}
    persist_work: bool = False


async def run(call: Call) -> Response:
    body = await call.said(RunBody)
    project_id = project_of(call, body.project_id)
    submission = Submission(
        request=await _request(call, body, project_id),
        project_id=project_id,
        request_id=body.request_id,
        overrides=_overrides(body),
        persist_work=body.persist_work,
        token_id=call.caller.id,
    )
    streamed = "text/event-stream" in call.headers.get("accept", "")
    after = last_event_id(call.headers.get("last-event-id")) if streamed else 0
    taken = await submit(call, submission)
    if streamed:
        return EventStream(_told(call, taken, after), call.desk.patience.heartbeat_s)
    record, kept = await finished(call, taken)
    return json_answer(run_view(record, kept))


async def submit(call: Call, submission: Submission) -> LiveRun | Outcome:
    """Take it, or find the run that it already is.

    Raises:
        BelljarError: it is not run; for a request that was refused before, as it was then.
    """
    taken = await call.service.lifecycle.submit(submission)
    if isinstance(taken, LiveRun):
        if taken.task is not None:
            call.keep_until(taken.task)
    elif taken.record.status is Status.REFUSED:
        raise _failure(taken.record)
    return taken


async def finished(call: Call, taken: LiveRun | Outcome) -> tuple[ExecRecord, Kept]:
    """How it ended and what it left.

    Raises:
        BelljarError: it was lost, by a failure of ours.
    """
    outcome = await taken.outcome() if isinstance(taken, LiveRun) else taken
    record = outcome.record
    if outcome.result is None and record.error_code is not None and record.artifacts_path is None:
        raise _failure(record)
    if outcome.result is not None:
        return record, kept_of(outcome, call.service.workspace)
    return record, await asyncio.to_thread(kept_of, outcome, call.service.workspace)


def project_of(call: Call, given: str | None) -> str:
    """The one that is named, else the token's only one, else the default."""
    own = call.caller.projects
    project_id = given or (own[0] if own is not None and len(own) == 1 else "default")
    call.check_project(check_project_id(project_id))
    return project_id


class _Failure(BelljarError):
    """What a record says went wrong, raised again."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc] - of this one run


def _failure(record: ExecRecord) -> BelljarError:
    return _Failure(record.error_code or "INTERNAL", record.error_reason or "a fault of the service")


async def _told(call: Call, taken: LiveRun | Outcome, after: int) -> AsyncGenerator[Message, None]:
    async for event in call.service.lifecycle.events(taken.record, after):
        yield event
    try:
        record, kept = await finished(call, taken)
    except BelljarError as error:
        yield "error", error_body()
    else:
        yield "result", run_view(record, kept)
