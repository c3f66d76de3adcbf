"""The client's half of the wire: what a caller's words look like on it, and what comes back as."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from urllib.parse import quote, urlencode

from belljar import errors
from belljar.errors import (
    ApprovalNeeded,
    BadRequest,
    BelljarError,
    NotFound,
    PathNotAllowed,
    PolicyEscalation,
    QueueFull,
    Unavailable,
)
from belljar.models import Package, Skipped, SkipReason, Usage, Verdict

if TYPE_CHECKING:
    import httpx2

_CLASSES: Mapping[str, type[BelljarError]] = {
    cls.code: cls
    for name in errors.__all__
    if issubclass(cls := getattr(errors, name), BelljarError) and cls is not BelljarError
}
_EXTRAS: Mapping[type[BelljarError], Mapping[str, object]] = {
    ApprovalNeeded: {"approval_id": ""},
    PathNotAllowed: {"reason": ""},
    PolicyEscalation: {"asked": None, "ceiling": None, "layer": ""},
    QueueFull: {"retry_after_s": 1},
}
"""What some errors carry besides the message, and what stands there when the wire did not say."""


class Unreachable(Unavailable):
    """Nobody answers there, or the connection broke more often than it was tried again."""

    code = "UNREACHABLE"


class ForeignError(BelljarError):
    """An answer that this version does not know; `service_code` is the code it came with, if any."""

    code = "FOREIGN_ERROR"

    def __init__(self, message: str, *, service_code: str = "", field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.service_code = service_code


class Event(NamedTuple):
    number: int
    """From 1, without gaps."""
    kind: str
    """queued, packages, running, started, stdout, stderr, shown, network, alert, ended, finished."""
    data: Mapping[str, Any]

    @property
    def output(self) -> bytes:
        """What the program wrote; empty for an event of another kind."""
        return base64.b64decode(self.data.get("data_b64", ""))


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size: int
    sha256: str
    mime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run ended. A program that failed is a result like any other."""

    id: str
    request_id: str
    verdict: Verdict
    exit_code: int | None
    signal: int | None
    timed_out: bool
    stdout: str
    """What was kept of it, with U+FFFD for bytes that are not UTF-8."""
    stderr: str
    stdout_bytes: int
    """How much the program wrote."""
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    duration_ms: int
    started_at: datetime | None
    finished_at: datetime | None
    outputs: tuple[FileInfo, ...]
    output_files: Mapping[str, bytes] = field(repr=False)
    """Content by path."""
    skipped: tuple[Skipped, ...]
    usage: Usage
    receipt: str | None
    error_code: str | None = None
    """If what it left could not be kept; `error_reason` says what."""
    error_reason: str | None = None
    packages: tuple[Package, ...] = ()
    """What was installed for it."""
    results: tuple[Mapping[str, Any], ...] = ()
    """What a cell of a session's context showed: mime type to data, each."""
    answer: Mapping[str, Any] = field(repr=False)
    """As it came over the wire."""

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.EXITED and self.exit_code == 0


class ExecPage(NamedTuple):
    records: tuple[Mapping[str, Any], ...]
    """Newest first."""
    cursor: str | None
    """For the next page; None on the last."""


class RunOptions(TypedDict, total=False):
    """What `run` and `stream` take by name. What is left out is for the service's policy to say."""

    command: Sequence[str]
    """Instead of code."""
    args: Sequence[str]
    """Arguments of the code: `sys.argv[1:]`."""
    files: Mapping[str, bytes | str]
    """Path in the folder where the program starts, and content."""
    output_files: Sequence[str]
    """What to bring back; without it, all that the program made or changed."""
    stdin: bytes | str
    env: Mapping[str, str]
    working_dir: str
    start: str
    """`fork` or `exec`, of Python."""
    timeout_s: float
    limits: Mapping[str, float]
    on_output_limit: str
    """Past the limit for output: `truncate`, or `kill` the run."""
    image: str
    packages: Sequence[str]
    """To be installed for a Python program, such as `numpy>=2`, where policy allows it."""
    project_id: str
    request_id: str
    """The same id with the same request is the same run, executed once. Made by the client if left out."""
    persist_work: bool
    approval_wait_s: float
    """How long to wait for a person, where policy asks for one; up to an hour."""


class ExecOptions(TypedDict, total=False):
    """What `exec` takes by name."""

    args: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    inputs: Mapping[str, bytes | str]
    """Path below `/workspace/inputs`, and content."""
    project_id: str
    skill_id: str
    output_files: Sequence[str]
    packages: Sequence[str]
    policy_overrides: Mapping[str, object]
    task_ref: Mapping[str, str]
    request_id: str
    persist_work: bool
    wait: bool
    approval_wait_s: float


class TestOptions(TypedDict, total=False):
    """What `test` takes by name."""

    language: str
    module: str
    """The name that tests import the code by."""
    timeout_s: float
    """For one test."""
    total_s: float
    """No test is begun after so many."""
    limits: Mapping[str, float]
    project_id: str


class ToolOptions(TypedDict, total=False):
    """What `call_tool` takes by name."""

    arguments: Mapping[str, Any]
    project_id: str
    request_id: str
    task_ref: Mapping[str, str]
    approval_wait_s: float


class InvokeOptions(TypedDict, total=False):
    """What `invoke` takes by name."""

    inputs: Mapping[str, Any]
    files: Mapping[str, bytes | str]
    """Path below `/workspace/inputs`, and content."""
    digest: str
    """Which version of the skill is meant."""
    project_id: str
    request_id: str
    policy_overrides: Mapping[str, object]
    task_ref: Mapping[str, str]
    approval_wait_s: float


# From the caller's words to the wire's. What cannot be written on it is a BadRequest.


def exec_path(exec_id: str, *more: str) -> str:
    return path("/sandbox/execs", exec_id, *more)


def path(route: str, name: str, *more: str) -> str:
    return "/".join((route, _quoted(name, ""), *(_quoted(part, "/") for part in more)))


def _quoted(text: str, safe: str) -> str:
    try:
        quoted = quote(text, safe)
    except UnicodeEncodeError as error:
        raise BadRequest(f"{text!r} is not valid text", field="exec_id") from error
    if any(part in ("", ".", "..") for part in quoted.split("/")):  # would be another address
        raise NotFound(f"there is nothing named {text!r}")
    return quoted


def run_body(code: str | None, language: str, options: RunOptions) -> dict[str, object]:
    body: dict[str, object] = {"request_id": secrets.token_hex(16)} | dict(options)
    if code is not None:
        body |= {"language": language, "code": code}
    if "files" in options:
        del body["files"]
        body["input_files"] = _packed(options["files"])
    if "stdin" in options:
        del body["stdin"]
        body["stdin_b64"] = _base64(options["stdin"])
    return body


def exec_body(kind: str, command: str | None, options: ExecOptions) -> dict[str, object]:
    body: dict[str, object] = {"request_id": secrets.token_hex(16)} | dict(options)
    program: dict[str, object] = {"kind": kind, "command": command}
    program |= {name: body.pop(name) for name in ("args", "cwd", "env") if name in body}
    body["exec"] = program
    if "inputs" in options:
        body["inputs"] = _packed(options["inputs"])
    return body


def invoke_body(options: InvokeOptions) -> dict[str, object]:
    body: dict[str, object] = {"request_id": secrets.token_hex(16)} | dict(options)
    if "files" in options:
        body["files"] = _packed(options["files"])
    return body


def json_bytes(body: object) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the request cannot be written as JSON: {error}") from error


def _packed(files: Mapping[str, bytes | str]) -> list[dict[str, str]]:
    return [{"path": path, "content_b64": _base64(content)} for path, content in files.items()]


def _base64(content: bytes | str) -> str:
    return base64.b64encode(content_bytes(content)).decode("ascii")


def content_bytes(content: bytes | str) -> bytes:
    try:
        return content.encode() if isinstance(content, str) else bytes(memoryview(content))
    except (TypeError, UnicodeEncodeError) as error:
        raise BadRequest(f"neither bytes nor valid text: {error}", field="files") from error


def query(route: str, **asked: str | None) -> str:
    """The route with these parameters; without those that are None."""
    given = {name: value for name, value in asked.items() if value is not None}
    try:
        return f"{route}?{urlencode(given)}" if given else route
    except UnicodeEncodeError as error:
        raise BadRequest("a parameter is not valid text", field=next(iter(given))) from error


# And back. Each raises one of `NOT_UNDERSTOOD` for what is not the wire's.

NOT_UNDERSTOOD = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


def json_object(text: bytes | str) -> Mapping[str, Any]:
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise TypeError
    return answer


def event(sse: httpx2.ServerSentEvent) -> Event:
    made = Event(int(sse.id or 0), sse.event, json_object(sse.data))
    _ = made.output  # what is no base64 shows here, not to the caller
    return made


def refusal(answer: Mapping[str, Any]) -> BelljarError:
    """An error of the class that its code names, whatever the constructor of that asks for."""
    detail = answer["error"]
    code, message, where = str(detail["code"]), str(detail["message"]), detail.get("field")
    if code not in _CLASSES:
        return ForeignError(f"{code}: {message}", service_code=code, field=where)
    cls = _CLASSES[code]
    made = cls.__new__(cls)
    BelljarError.__init__(made, message, field=where)
    made.exec_id = str(detail.get("exec_id", ""))
    vars(made).update({name: detail.get(name, value) for name, value in _EXTRAS.get(cls, {}).items()})
    return made


def refused(record: Mapping[str, Any]) -> BelljarError:
    """What a record says a run was refused for."""
    names = {"code": "error_code", "message": "error_reason", "field": "error_field", "exec_id": "exec_id"}
    return refusal({"error": {name: record[key] for name, key in names.items()}})


def approval_needed(answer: Mapping[str, Any]) -> ApprovalNeeded:
    return ApprovalNeeded(answer["message"], exec_id=answer["exec_id"], approval_id=answer["approval_id"])


def result(answer: Mapping[str, Any]) -> Result:
    measured = {one.name for one in fields(Usage)}
    return Result(
        id=answer["id"],
        request_id=answer["request_id"],
        verdict=Verdict(answer["verdict"]),
        exit_code=answer["exit_code"],
        signal=answer["signal"],
        timed_out=answer["timed_out"],
        stdout=answer["stdout"],
        stderr=answer["stderr"],
        stdout_bytes=answer["stdout_bytes"],
        stderr_bytes=answer["stderr_bytes"],
        stdout_truncated=answer["truncated"]["stdout"],
        stderr_truncated=answer["truncated"]["stderr"],
        duration_ms=answer["duration_ms"],
        started_at=_moment(answer["started_at"]),
        finished_at=_moment(answer["finished_at"]),
        outputs=tuple(map(_file, answer["outputs"])),
        output_files={file["path"]: base64.b64decode(file["content_b64"]) for file in answer["output_files"]},
        skipped=tuple(Skipped(skip["path"], SkipReason(skip["reason"])) for skip in answer["skipped"]),
        usage=Usage(**{name: value for name, value in answer["usage"].items() if name in measured}),
        receipt=answer["receipt"],
        error_code=answer.get("error_code"),
        error_reason=answer.get("error_reason"),
        packages=tuple(Package(**row) for row in answer.get("packages", ())),
        results=tuple(dict(shown) for shown in answer.get("results", ())),
        answer=answer,
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _file(row: Mapping[str, Any]) -> FileInfo:
    return FileInfo(row["path"], row["size"], row["sha256"], row["mime"])


def artifacts(answer: Mapping[str, Any]) -> tuple[FileInfo, ...]:
    return tuple(map(_file, answer["artifacts"]))


def rows(name: str) -> Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """How a list of that name is read."""

    def read(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return tuple(dict(row) for row in answer[name])

    return read


def page(answer: Mapping[str, Any]) -> ExecPage:
    return ExecPage(tuple(answer["execs"]), answer["cursor"])
