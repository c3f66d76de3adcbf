"""`/openapi.json`: every route, its parameters, its body as the model that checks it, and its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from belljar import __version__
from belljar.api.answers import json_answer
from belljar.api.bodies import Body
from belljar.api.calls import Call
from belljar.api.errors import STATUS
from belljar.api.execs import MAX_PAGE, ExecBody
from belljar.api.policies import ExplainBody
from belljar.api.runs import RunBody
from belljar.audit.records import ExecRecord, Status

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["OPERATIONS", "Operation", "document", "show"]

Schema = Mapping[str, Any]


def _object(required: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(required), "required": list(required)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_none(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_ANYTHING: Schema = {"type": "object"}

_ARTIFACT = _object({"path": _TEXT, "size": _COUNT, "sha256": _TEXT, "mime": _TEXT})
_SKIPPED = _object({"path": _TEXT, "reason": _TEXT})
_ERROR = _object(
    {
        "request_id": _or_none(_TEXT),
        "status": {"const": "error"},
        "error": {
            **_object({"code": {"type": "string", "enum": sorted(STATUS)}, "message": _TEXT}),
            "description": "Also `field`, the part of the request at fault, where there is one.",
        },
    }
)
_OUTPUT = {
    "stdout": _TEXT,
    "stderr": _TEXT,
    "truncated": _object({"stdout": _FLAG, "stderr": _FLAG}),
    "stdout_bytes": _COUNT,
    "stderr_bytes": _COUNT,
}
_RUN = _object(
    {
        "id": _TEXT,
        "request_id": _TEXT,
        "status": {"const": "ok"},
        "verdict": _TEXT,
        "exit_code": _or_none({"type": "integer"}),
        "signal": _or_none({"type": "integer"}),
        "timed_out": _FLAG,
        **_OUTPUT,
        "duration_ms": _COUNT,
        "started_at": _or_none(_TIME),
        "finished_at": _or_none(_TIME),
        "outputs": _list(_ref("Artifact")),
        "output_files": _list(_object({"path": _TEXT, "content_b64": _TEXT, "size": _COUNT})),
        "skipped": _list(_ref("Skipped")),
        "usage": _ANYTHING,
        "receipt": _or_none(_TEXT),
    }
)


class Operation(NamedTuple):
    """What the document says of a route."""

    summary: str
    answer: Schema | str
    """A schema of JSON, or the type of something else."""
    body: type[Body] | None = None
    query: Mapping[str, Schema] = {}
    headers: Mapping[str, Schema] = {}
    more: Mapping[str, Schema | str] = {}
    """Answers of other statuses, or of another type."""


_EXEC = "/sandbox/execs/{exec_id}"
_LAST_EVENT = {"Last-Event-ID": {"type": "string", "pattern": "^[0-9]{0,18}$"}}

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/health"): Operation(
        "Whether the service answers; needs no token.",
        _object({"status": {"const": "ok"}, "service": {"const": "belljar"}, "version": _TEXT}),
    ),
    ("POST", "/run"): Operation(
        "Run something and wait for it. With `Accept: text/event-stream`, its events and then the result.",
        _ref("RunAnswer"),
        RunBody,
    ),
    ("POST", "/sandbox/execs"): Operation(
        "Run something; with `wait` false, answer as soon as it is accepted.",
        _ref("Exec"),
        ExecBody,
        more={"202": _ref("Exec")},
    ),
    ("GET", "/sandbox/execs"): Operation(
        "Runs, newest first.",
        _object({"execs": _list(_ANYTHING), "cursor": _or_none(_TEXT)}),
        query={
            "task_id": _TEXT,
            "project_id": _TEXT,
            "status": {"type": "string", "enum": list(Status)},
            "skill_id": _TEXT,
            "since": _TIME,
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
            "cursor": _TEXT,
        },
    ),
    ("GET", _EXEC): Operation("The whole record of a run.", _ref("Exec")),
    ("GET", f"{_EXEC}/events"): Operation(
        "What a run does, from the start or after `Last-Event-ID`.", "text/event-stream", headers=_LAST_EVENT
    ),
    ("GET", f"{_EXEC}/artifacts"): Operation(
        "What a run left.",
        _object(
            {
                "exec_id": _TEXT,
                "status": _TEXT,
                "artifacts": _list(_ref("Artifact")),
                "skipped": _list(_ref("Skipped")),
            }
        ),
    ),
    ("GET", f"{_EXEC}/artifacts/{{path}}"): Operation("One file that a run left.", "*/*"),
    ("GET", f"{_EXEC}/receipt"): Operation(
        "The signed receipt of a run that is over.",
        _object({"number": _COUNT, "exec_id": _TEXT, "body": _TEXT, "hash": _TEXT, "signature": _TEXT}),
    ),
    ("POST", f"{_EXEC}/cancel"): Operation(
        "End a run; 202 while it ends, 200 when it had ended.", _ref("Exec"), more={"202": _ref("Exec")}
    ),
    ("GET", "/sandbox/health"): Operation("What the engine can enforce, and how busy it is.", _ANYTHING),
    ("GET", "/policy/explain"): Operation(
        "What a role and a tool are granted.", _ref("Explained"), query={"role": _TEXT, "tool": _TEXT}
    ),
    ("POST", "/policy/explain"): Operation(
        "What a request would be granted.", _ref("Explained"), ExplainBody
    ),
    ("GET", "/audit/verify"): Operation(
        "Walk the chain of receipts; for operators.",
        _object({"ok": _FLAG, "faults": _list(_ANYTHING)}),
    ),
    ("GET", "/metrics"): Operation("Counters, for Prometheus.", "text/plain"),
    ("GET", "/openapi.json"): Operation("This document.", _ANYTHING),
}


async def show(call: Call) -> Response:
    return json_answer(document())


@cache
def document() -> Schema:
    bodies = [operation.body for operation in OPERATIONS.values() if operation.body is not None]
    _, models = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    schemas = {
        **models["$defs"],
        "Artifact": _ARTIFACT,
        "Error": _ERROR,
        "Exec": _exec(),
        "Explained": _object({"grant": _ANYTHING, "digest": _TEXT, "fields": _list(_ANYTHING)}),
        "RunAnswer": _RUN,
        "Skipped": _SKIPPED,
    }
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "belljar",
            "version": __version__,
            "description": "Run an agent's code under glass: sealed, limited, watched, and with a receipt.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    }


def _operation(path: str, operation: Operation) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    parameters += _optional("query", operation.query) + _optional("header", operation.headers)
    said: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": _answer(operation.answer),
            **{status: _answer(answer) for status, answer in operation.more.items()},
            "default": _answer(_ref("Error"), "It was not done."),
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": _ref(operation.body.__name__)}}
        said["requestBody"] = {"required": True, "content": content}
    if path == "/health":
        said["security"] = []
    if path == "/run":
        said["responses"]["200"]["content"]["text/event-stream"] = {"schema": _TEXT}
    return said


def _optional(place: str, schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    return [{"name": name, "in": place, "schema": schema} for name, schema in schemas.items()]


def _answer(answer: Schema | str, says: str = "As asked.") -> dict[str, Any]:
    if isinstance(answer, str):
        return {"description": says, "content": {answer: {"schema": _TEXT}}}
    return {"description": says, "content": {"application/json": {"schema": answer}}}


def _exec() -> Schema:
    """The record's own columns, and what is derived from them."""
    record = TypeAdapter(ExecRecord).json_schema(mode="serialization")
    columns = {name: schema for name, schema in record["properties"].items() if name != "epoch"}
    columns["status"] = {"type": "string", "enum": list(Status)}
    path = _or_none(_TEXT)
    derived = {"timed_out": _FLAG, "artifacts_dir": path, "stdout_path": path, "stderr_path": path}
    output = {name: schema for name, schema in _OUTPUT.items() if name not in columns}
    return {
        "type": "object",
        "properties": {**columns, **derived, **output, "receipt": path},
        "required": [*columns, *derived, "receipt"],
    }
