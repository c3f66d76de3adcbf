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
from belljar.api.approvals import DecisionBody
from belljar.api.bodies import Body
from belljar.api.calls import Call
from belljar.api.errors import STATUS
from belljar.api.execs import MAX_PAGE, ExecBody
from belljar.api.policies import ExplainBody
from belljar.api.runs import RunBody
from belljar.api.sessionfiles import MAX_DEPTH, MkdirBody, MoveBody
from belljar.api.sessions import ExtendBody, ForkBody, InterruptBody, SessionBody, SessionRunBody
from belljar.api.skills import InvokeBody
from belljar.api.terminals import SignalBody
from belljar.api.tests import TestsBody
from belljar.api.tools import ToolBody
from belljar.audit.records import ExecRecord, NetworkDecision, Status
from belljar.engines.base import Area
from belljar.execution.approvals import ApprovalState
from belljar.execution.sampling import Alert
from belljar.execution.session import State
from belljar.flows.testdriven import Outcome
from belljar.flows.tools import Format
from belljar.flows.trail import Wrote
from belljar.models import RiskTier

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
_PAGE_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}

_ARTIFACT = _object({"path": _TEXT, "size": _COUNT, "sha256": _TEXT, "mime": _TEXT})
_SKIPPED = _object({"path": _TEXT, "reason": _TEXT})
_NOT_KEPT = dict.fromkeys(("error_code", "error_reason"), _or_none(_TEXT))
"""Of a run that has a result, if what it left could not be kept."""
_PACKAGE = _object({"name": _TEXT, "version": _TEXT, "sha256": _TEXT})
_ERROR = _object(
    {
        "request_id": _or_none(_TEXT),
        "status": {"const": "error"},
        "error": {
            **_object({"code": {"type": "string", "enum": sorted(STATUS)}, "message": _TEXT}),
            "description": "Also, where there is one, `field`, the part of the request at fault, "
            "and `exec_id`, the run that was recorded as refused or lost.",
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
        "packages": _list(_PACKAGE),
        "usage": _ANYTHING,
        **_NOT_KEPT,
        "receipt": _or_none(_TEXT),
    }
)


_USAGE = _object(
    {
        "kind": {"type": "string", "enum": ["run", "session"]},
        "id": _TEXT,
        "project_id": _TEXT,
        "cpu_usage_percent": {"type": "number", "description": "100 is one core."},
        "cpu_cores": {"type": "number"},
        "memory_usage_mb": {"type": "number"},
        "memory_limit_mb": _COUNT,
        "pids_current": _COUNT,
        "pids_limit": _COUNT,
        "network_tx_bytes": _COUNT,
        "network_rx_bytes": _COUNT,
        "alerts": _list({"type": "string", "enum": list(Alert)}),
    }
)
_TIER: Schema = {"type": "string", "enum": list(RiskTier)}
_PENDING = _object(
    {
        "id": _TEXT,
        "exec_id": _TEXT,
        "request_id": _TEXT,
        "status": {"const": Status.PENDING},
        "approval_id": _TEXT,
        "tier": _TIER,
        "expires_at": _TIME,
        "message": _TEXT,
    }
)
_WAITS = {"202": _ref("Pending")}
_APPROVAL_ROW = {
    "id": _TEXT,
    "exec_id": _TEXT,
    "project_id": _TEXT,
    "state": {"type": "string", "enum": list(ApprovalState)},
    "tier": _TIER,
    "digest": _TEXT,
    "asked_by": _TEXT,
    "asked_at": _TIME,
    "expires_at": _TIME,
    "answer": _or_none(_object({"state": _TEXT, "by": _TEXT, "reason": _TEXT, "at": _TIME})),
    "reasons": _list(_TEXT),
}
_DIGESTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_APPROVAL = _object(
    {
        **_APPROVAL_ROW,
        "may_decide": _FLAG,
        "code": _or_none(_TEXT),
        "code_hash": _or_none(_TEXT),
        "stdin": _or_none(_TEXT),
        "complete": _FLAG,
        "language": _or_none(_TEXT),
        "command": _or_none(_list(_TEXT)),
        "args": _list(_TEXT),
        "working_dir": _TEXT,
        "env_keys": _list(_TEXT),
        "packages": _list(_TEXT),
        "files": _DIGESTS,
        "inputs": _DIGESTS,
        "role": _or_none(_TEXT),
        "tool": _or_none(_TEXT),
        "skill_id": _or_none(_TEXT),
        "findings": _list(_object({"tier": _TIER, "reason": _TEXT, "line": _COUNT})),
        "grant": _ref("Explained"),
    }
)
_SKILL = _object(
    {
        "id": _TEXT,
        "name": _TEXT,
        "description": _TEXT,
        "digest": _TEXT,
        "inputs": _ANYTHING,
        "outputs": _ANYTHING,
        "entrypoint": _list(_TEXT),
        "packages": _list(_TEXT),
        "limits": _ANYTHING,
    }
)
_INVOKED = _object(
    {
        "exec_id": _TEXT,
        "request_id": _TEXT,
        "skill_id": _TEXT,
        "digest": _TEXT,
        "status": {"enum": ["ok", "failed"]},
        "reason": _or_none(_TEXT),
        "outputs": _or_none(_ANYTHING),
        "verdict": _TEXT,
        "exit_code": _or_none({"type": "integer"}),
        "signal": _or_none({"type": "integer"}),
        "timed_out": _FLAG,
        "stdout": _TEXT,
        "stderr": _TEXT,
        "truncated": _object({"stdout": _FLAG, "stderr": _FLAG}),
        "duration_ms": _COUNT,
        **_NOT_KEPT,
        "artifacts": _list(_ref("Artifact")),
        "skipped": _list(_ref("Skipped")),
        "receipt": _or_none(_TEXT),
    }
)


_SESSION_RUN = _object({**_RUN["properties"], "session_id": _TEXT, "results": _list(_ANYTHING)})
_OF_A_SESSION = _object(
    {
        "session_id": _TEXT,
        "project_id": _TEXT,
        "state": {"type": "string", "enum": list(State)},
        "reason": _TEXT,
    }
)
_SNAPSHOT = _object({"digest": _TEXT, "project_id": _TEXT, "files": _COUNT, "size": _COUNT})
_FILE = _object(
    {"path": _TEXT, "kind": _TEXT, "size": _COUNT, "mtime_ns": {"type": "integer"}, "mode": _COUNT}
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
    streams: bool = False
    """Whether it answers with events too."""
    raw: bool = False
    """Whether the body is bytes, and no JSON."""


_EXEC = "/sandbox/execs/{exec_id}"
_SESSION = "/sandbox/sessions/{session_id}"
_FILES = f"{_SESSION}/files"
_PLACE: Mapping[str, Schema] = {"area": {"type": "string", "enum": list(Area)}, "path": _TEXT}
_SIZE: Schema = {"type": "integer", "minimum": 1, "maximum": 4096}
_PUT = _object({"area": _TEXT, "path": _TEXT})
_MCP: Any = {"more": dict.fromkeys(("202", "400", "404", "405", "406", "409", "415", "503"), _ANYTHING)}
"""The SDK's own answers, in the form of JSON-RPC."""
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
        more=_WAITS,
        streams=True,
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
            "limit": _PAGE_LIMIT,
            "cursor": _TEXT,
        },
    ),
    ("GET", _EXEC): Operation("The whole record of a run.", _ref("Exec")),
    ("GET", f"{_EXEC}/code"): Operation(
        "What ran, once it is over, as long as it is kept.",
        _object({"exec_id": _TEXT, "code_hash": _TEXT, "code": _TEXT}),
    ),
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
    ("GET", f"{_EXEC}/network"): Operation(
        "What was decided of a run's way out, once it is over: the first decisions, and how many there were.",
        _object(
            {
                "exec_id": _TEXT,
                "total": _COUNT,
                "refused": _COUNT,
                "decisions": _list(TypeAdapter(NetworkDecision).json_schema(mode="serialization")),
            }
        ),
    ),
    ("GET", f"{_EXEC}/receipt"): Operation(
        "The signed receipt of a run that is over.",
        _object({"number": _COUNT, "exec_id": _TEXT, "body": _TEXT, "hash": _TEXT, "signature": _TEXT}),
    ),
    ("POST", f"{_EXEC}/cancel"): Operation(
        "End a run; 202 while it ends, 200 when it had ended.", _ref("Exec"), more={"202": _ref("Exec")}
    ),
    ("POST", "/sandbox/sessions"): Operation(
        "Begin a session: a jar that is kept for several runs.", _ref("Session"), SessionBody
    ),
    ("GET", "/sandbox/sessions"): Operation(
        "Sessions, newest first; with `ended`, also those that are over.",
        _object({"sessions": _list(_ref("Session"))}),
        query={"project_id": _TEXT, "ended": {"type": "string", "enum": ["true", "false"]}},
    ),
    ("GET", _SESSION): Operation("A session, or how it ended.", _ref("Session")),
    ("DELETE", _SESSION): Operation("End a session and all that is in it.", _ref("Session")),
    ("POST", f"{_SESSION}/run"): Operation(
        "Run something in a session. With `Accept: text/event-stream`, its events and then the result.",
        _SESSION_RUN,
        SessionRunBody,
        more=_WAITS,
        streams=True,
    ),
    ("POST", f"{_SESSION}/interrupt"): Operation(
        "Interrupt a run of a session, or all of them.",
        _object({"interrupted": _list(_TEXT)}),
        InterruptBody,
    ),
    ("POST", f"{_SESSION}/extend"): Operation(
        "Let a session live at least so long from now.", _ref("Session"), ExtendBody
    ),
    ("POST", f"{_SESSION}/pause"): Operation("Have everything in it stand still.", _ref("Session")),
    ("POST", f"{_SESSION}/resume"): Operation("Let it go on.", _ref("Session")),
    ("POST", f"{_SESSION}/snapshot"): Operation("Keep the files of a session.", _ref("Snapshot")),
    ("POST", f"{_SESSION}/fork"): Operation(
        "New sessions with the files of this one.", _object({"sessions": _list(_ref("Session"))}), ForkBody
    ),
    ("GET", f"{_SESSION}/contexts"): Operation(
        "The contexts of a session.", _object({"contexts": _list(_TEXT)})
    ),
    ("DELETE", f"{_SESSION}/contexts/{{name}}"): Operation(
        "End a context; its variables are gone.", _object({"contexts": _list(_TEXT)})
    ),
    ("GET", _FILES): Operation(
        "What is in a folder of a session.",
        _object({"area": _TEXT, "path": _TEXT, "files": _list(_FILE), "complete": _FLAG}),
        query={**_PLACE, "depth": {"type": "integer", "minimum": 1, "maximum": MAX_DEPTH}},
    ),
    ("DELETE", _FILES): Operation("Remove a file, or a folder with all that is in it.", _PUT, query=_PLACE),
    ("GET", f"{_FILES}/content"): Operation(
        "A file of a session, or one range of it.",
        "application/octet-stream",
        query=_PLACE,
        headers={"Range": _TEXT},
        more={"206": "application/octet-stream"},
    ),
    ("PUT", f"{_FILES}/content"): Operation(
        "Write a file of a session.",
        _object({"area": _TEXT, "path": _TEXT, "size": _COUNT}),
        query=_PLACE,
        raw=True,
    ),
    ("POST", f"{_FILES}/move"): Operation("Give a file or folder another name.", _PUT, MoveBody),
    ("POST", f"{_FILES}/mkdir"): Operation("Make a folder, with all above it.", _PUT, MkdirBody),
    ("GET", f"{_FILES}/archive"): Operation(
        "All files below a folder, as one tar.", "application/x-tar", query=_PLACE
    ),
    ("PUT", f"{_FILES}/archive"): Operation(
        "Write all files of a tar.",
        _object({"area": _TEXT, "path": _TEXT, "files": _COUNT, "folders": _COUNT}),
        query=_PLACE,
        raw=True,
    ),
    ("GET", f"{_FILES}/watch"): Operation(
        "What changes below a folder, as it changes.",
        "text/event-stream",
        query=_PLACE,
        headers=_LAST_EVENT,
    ),
    ("GET", f"{_SESSION}/terminal"): Operation(
        "A shell, over a WebSocket; without one, 426.",
        _ANYTHING,
        query={"rows": _SIZE, "columns": _SIZE, "term": _TEXT},
    ),
    ("POST", f"{_SESSION}/runs/{{exec_id}}/stdin"): Operation(
        "More for a run to read that was begun with `stdin_open`.",
        _object({"taken": _COUNT}),
        query={"end": {"type": "string", "enum": ["true", "false"]}},
        raw=True,
    ),
    ("POST", f"{_SESSION}/runs/{{exec_id}}/signal"): Operation(
        "Send a signal to a run.", _object({"signal": _TEXT}), SignalBody
    ),
    ("GET", "/sandbox/usage"): Operation(
        "What the jars that are in use take right now.", _object({"usage": _list(_USAGE)})
    ),
    ("GET", "/sandbox/snapshots"): Operation(
        "The snapshots of a project.",
        _object({"snapshots": _list(_ref("Snapshot"))}),
        query={"project_id": _TEXT},
    ),
    ("DELETE", "/sandbox/snapshots/{digest}"): Operation(
        "Remove a snapshot.", _object({"removed": _TEXT}), query={"project_id": _TEXT}
    ),
    ("GET", "/approvals"): Operation(
        "What waits for a person, newest first; or what is in another `state`.",
        _object({"approvals": _list(_object(_APPROVAL_ROW))}),
        query={"state": {"type": "string", "enum": list(ApprovalState)}, "project_id": _TEXT},
    ),
    ("GET", "/approvals/{approval_id}"): Operation(
        "What a person needs to decide: the program, its inputs, what was found in it, and the grant.",
        _ref("Approval"),
    ),
    ("POST", "/approvals/{approval_id}"): Operation(
        "Say yes or no to what waits; for operators and approvers.", _ref("Approval"), DecisionBody
    ),
    ("GET", "/sandbox/health"): Operation("What each engine can enforce, and how busy it is.", _ANYTHING),
    ("GET", "/sandbox/trail"): Operation(
        "Which run left which version of a file; a page of runs at a time, the newest first.",
        _object(
            {
                "entries": _list(
                    _object(
                        {
                            "exec_id": _TEXT,
                            "project_id": _TEXT,
                            "at": _or_none(_TIME),
                            "path": _TEXT,
                            "change": {"enum": list(Wrote)},
                            "sha256": _TEXT,
                            "before": _or_none(_TEXT),
                            "size": _COUNT,
                        }
                    )
                ),
                "cursor": _or_none(_TEXT),
            }
        ),
        query={"project_id": _TEXT, "path": _TEXT, "limit": _PAGE_LIMIT, "cursor": _TEXT},
    ),
    ("POST", "/tests/run"): Operation(
        "Run tests against code, and tell what became of each.",
        _object(
            {
                "status": {"const": "ok"},
                "passed": _FLAG,
                "counts": _ANYTHING,
                "tests": _list(
                    _object(
                        {
                            "id": _TEXT,
                            "outcome": {"enum": list(Outcome)},
                            "duration_ms": _COUNT,
                            "message": _TEXT,
                            "output": _TEXT,
                        }
                    )
                ),
                "runs": _list(_TEXT),
            }
        ),
        TestsBody,
    ),
    ("GET", "/tools"): Operation(
        "The tools that the caller may use, also in the form of an LLM's API.",
        _object({"tools": _list(_ANYTHING)}),
        query={"format": {"type": "string", "enum": list(Format)}},
    ),
    ("POST", "/tools/{tool}"): Operation(
        "Call a tool on the work of a project.",
        _object(
            {
                "tool": _TEXT,
                "exec_id": _TEXT,
                "status": {"enum": ["success", "error"]},
                "summary": _TEXT,
                **_NOT_KEPT,
                "data": _ANYTHING,
                "rest": _list(_ANYTHING),
            }
        ),
        ToolBody,
        more=_WAITS,
    ),
    ("GET", "/skills"): Operation(
        "The skills that the caller may use.", _object({"skills": _list(_ref("Skill"))})
    ),
    ("GET", "/skills/{skill_id}"): Operation("One skill.", _ref("Skill")),
    ("POST", "/skills/{skill_id}/invoke"): Operation(
        "Call a skill. With `Accept: text/event-stream`, its run's events and then the answer.",
        _INVOKED,
        InvokeBody,
        more=_WAITS,
        streams=True,
    ),
    ("POST", "/mcp"): Operation("A message to the MCP server.", _ANYTHING, **_MCP, streams=True),
    ("GET", "/mcp"): Operation("What the MCP server says by itself.", "text/event-stream", **_MCP),
    ("DELETE", "/mcp"): Operation("End a session of the MCP server.", _ANYTHING, **_MCP),
    ("GET", "/policy/explain"): Operation(
        "What a role and a tool or skill are granted.",
        _ref("Explained"),
        query={"role": _TEXT, "tool": _TEXT, "skill": _TEXT},
    ),
    ("POST", "/policy/explain"): Operation(
        "What a request would be granted.", _ref("Explained"), ExplainBody
    ),
    ("GET", "/audit/verify"): Operation(
        "Walk the chain of receipts; for operators.",
        _object({"ok": _FLAG, "receipts": _COUNT, "faults": _list(_ANYTHING), "notes": _list(_ANYTHING)}),
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
        "Approval": _APPROVAL,
        "Artifact": _ARTIFACT,
        "Error": _ERROR,
        "Exec": _exec(),
        "Explained": _object({"grant": _ANYTHING, "digest": _TEXT, "fields": _list(_ANYTHING)}),
        "Pending": _PENDING,
        "RunAnswer": _RUN,
        "Session": _OF_A_SESSION,
        "Skill": _SKILL,
        "Skipped": _SKIPPED,
        "Snapshot": _SNAPSHOT,
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
    if operation.raw:
        said["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
    if path == "/health":
        said["security"] = []
    if operation.streams:
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
