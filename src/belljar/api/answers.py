"""What a caller is told of a run: the answer of `/run`, the record of `/sandbox/execs`, as JSON.

The answer to a request that is sent again is made from the record and the run's folder, and says the same.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from starlette.responses import Response

from belljar.api.errors import is_private
from belljar.audit.records import ExecRecord, Status
from belljar.errors import NotFound
from belljar.execution.approvals import Approval
from belljar.execution.events import RunEvent
from belljar.execution.live import Outcome
from belljar.execution.workspace import Workspace
from belljar.models import Verdict

__all__ = [
    "Kept",
    "as_json",
    "exec_view",
    "json_answer",
    "kept_of",
    "page_row",
    "pending_view",
    "run_view",
    "when",
]

_PRIVATE_FIELDS = frozenset({"epoch"})
"""Where the service runs is not for callers."""
_LONG_FIELDS = frozenset({"policy_snapshot", "risk", "inputs"})


class Kept(NamedTuple):
    """What is there of a run's output."""

    stdout: bytes = b""
    stderr: bytes = b""
    files: Sequence[tuple[str, bytes]] = ()
    shown: Sequence[Mapping[str, Any]] = ()
    """What the cells of a session's context showed, each in its forms."""


def kept_of(outcome: Outcome, workspace: Workspace) -> Kept:
    """From memory, else from the run's folder; nothing if retention took that. May block."""
    record, result = outcome.record, outcome.result
    if result is not None:
        files = [(file.path, file.content) for file in result.artifacts]
        return Kept(result.stdout, result.stderr, files, result.results)
    folder = workspace.run_folder(record.project_id, record.exec_id)
    try:
        stdout, stderr = (folder / "stdout.txt").read_bytes(), (folder / "stderr.txt").read_bytes()
        found = [(row["path"], _content(workspace, record, row)) for row in record.artifacts]
        events = [RunEvent.from_line(line) for line in workspace.events(record.project_id, record.exec_id)]
    except OSError:
        return Kept()
    kept = [(path, content) for path, content in found if content is not None]
    return Kept(stdout, stderr, kept, [event.data["forms"] for event in events if event.kind == "shown"])


def _content(workspace: Workspace, record: ExecRecord, row: Any) -> bytes | None:
    try:
        fd, size = workspace.open_artifact(record.project_id, record.exec_id, row["path"], row["size"])
    except NotFound:
        return None
    with open(fd, "rb") as file:
        return file.read(size)


def run_view(record: ExecRecord, kept: Kept) -> dict[str, Any]:
    """The fields of both response forms of `/run`."""
    return {
        "id": record.exec_id,
        "request_id": record.request_id,
        "status": "ok",
        "verdict": record.verdict,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "timed_out": _timed_out(record),
        **_output(record, kept),
        "duration_ms": record.duration_ms or 0,
        "started_at": when(record.started_at),
        "finished_at": when(record.ended_at),
        "outputs": record.artifacts,
        "output_files": [
            {"path": path, "content_b64": base64.b64encode(content).decode("ascii"), "size": len(content)}
            for path, content in kept.files
        ],
        "skipped": record.skipped,
        "packages": record.packages,
        "usage": record.usage,
        "error_code": record.error_code,
        "error_reason": record.error_reason,
        "receipt": record.receipt_hash,
    }


def pending_view(record: ExecRecord, approval: Approval) -> dict[str, Any]:
    """What a caller is told at once of a run that waits for a person."""
    return {
        "id": record.exec_id,
        "exec_id": record.exec_id,
        "request_id": record.request_id,
        "status": Status.PENDING,
        "approval_id": approval.id,
        "tier": approval.tier,
        "expires_at": when(approval.expires_at),
        "message": f"risk {approval.tier} needs a person's yes to {approval.id}; send the request again with "
        "this request_id, and approval_wait_s to wait for it, or look at the run under its id",
    }


def exec_view(record: ExecRecord, *, operator: bool, kept: Kept | None = None) -> dict[str, Any]:
    """The whole record, where its output lies, and the output itself if it is at hand."""
    view = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name not in _PRIVATE_FIELDS
    }
    if is_private(record.error_code) and not operator:
        view["error_reason"] = None
    folder = record.artifacts_path
    view |= {
        "timed_out": _timed_out(record),
        "artifacts_dir": folder,
        "stdout_path": folder and f"{folder}/stdout.txt",
        "stderr_path": folder and f"{folder}/stderr.txt",
        "receipt": record.receipt_hash,
    }
    return view if kept is None else view | _output(record, kept)


def page_row(record: ExecRecord, *, operator: bool) -> dict[str, Any]:
    view = exec_view(record, operator=operator)
    return {name: value for name, value in view.items() if name not in _LONG_FIELDS}


def _timed_out(record: ExecRecord) -> bool:
    return record.verdict in (Verdict.TIMEOUT, Verdict.IDLE_TIMEOUT)


def _output(record: ExecRecord, kept: Kept) -> dict[str, Any]:
    return {
        "stdout": kept.stdout.decode("utf-8", "replace"),
        "stderr": kept.stderr.decode("utf-8", "replace"),
        "truncated": {
            "stdout": record.stdout_bytes > len(kept.stdout),
            "stderr": record.stderr_bytes > len(kept.stderr),
        },
        "stdout_bytes": record.stdout_bytes,
        "stderr_bytes": record.stderr_bytes,
    }


def when(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain).encode("ascii")


def json_answer(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return when(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"not a value of the domain: {type(value).__name__}")
