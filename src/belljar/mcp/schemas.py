"""What the tools take and give, as JSON schemas: the parts that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["COUNT", "FLAG", "PROGRAM", "REQUEST_ID", "TEXT", "TEXTS", "inputs", "outputs", "run_outputs"]

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
_MAYBE_COUNT: Schema = {"type": ["integer", "null"]}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}

REQUEST_ID: Schema = {
    **TEXT,
    "description": "Of a call that waits for a person: the same call with it finds the run again.",
}
PROGRAM: Mapping[str, Schema] = {
    "code": {**TEXT, "description": "The program."},
    "language": {**TEXT, "enum": ["python", "bash", "javascript", "typescript"], "default": "python"},
    "files": {**TEXTS, "description": "Text files to put where the program starts, by relative path."},
    "args": {"type": "array", "items": TEXT},
    "stdin": TEXT,
    "env": TEXTS,
    "timeout_s": {"type": "number", "exclusiveMinimum": 0},
    "request_id": REQUEST_ID,
}
_RUN: Mapping[str, Schema] = {
    "exec_id": TEXT,
    "verdict": TEXT,
    "exit_code": _MAYBE_COUNT,
    "signal": _MAYBE_COUNT,
    "timed_out": FLAG,
    "stdout": TEXT,
    "stderr": TEXT,
    "truncated": {"type": "object", "properties": {"stdout": FLAG, "stderr": FLAG}},
    "duration_ms": COUNT,
    "error_code": _MAYBE_TEXT,
    "error_reason": _MAYBE_TEXT,
    "artifacts": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"path": TEXT, "size": COUNT, "sha256": TEXT, "mime": TEXT, "uri": TEXT},
        },
    },
}


def inputs(properties: Mapping[str, Schema], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def outputs(**properties: Schema) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def run_outputs(**more: Schema) -> dict[str, Any]:
    return outputs(**_RUN, **more)
