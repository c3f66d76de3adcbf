"""Audit events as lines of JSON beside the database, for whoever ships them elsewhere.

The database is the truth. A line that cannot be written is told to the log and never stops a run, and the
file is not synced: after a crash its last lines may be missing. What a program or a caller chose is inside
JSON strings in ASCII, so it can neither end a line nor begin one. The file may be moved away at any time,
for it is opened anew for every line.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from belljar.audit.receipts import Fault, FaultKind
from belljar.audit.records import AuditStore, ExecRecord, Status
from belljar.audit.rows import iso
from belljar.errors import BadRequest, StoreUnavailable
from belljar.models import Verdict

EVENT_TYPE = "sandbox_execution"
_LINE_BYTES = 64 << 20
"""Longest line that is read back; a longer one was not written by us."""

logger = logging.getLogger(__name__)


class Trail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost = 0

    def append(self, record: ExecRecord) -> None:
        """One line for a record that is final. Never raises; into the page cache, so it does not wait."""
        try:
            _append(self._path, line(record))
        except (OSError, TypeError, ValueError, RecursionError) as error:
            self._lost += 1
            if self._lost == 1:
                logger.warning("%s: no line in the audit trail: %s", record.exec_id, error)
            return
        if self._lost:
            logger.warning("%s: the audit trail goes on; %d lines are lost", record.exec_id, self._lost)
            self._lost = 0


def event(record: ExecRecord) -> dict[str, Any]:
    """What is shipped of a record, in the names that others expect."""
    moment = record.ended_at or record.accepted_at
    return {
        "timestamp": iso(moment).replace("+00:00", "Z"),
        "event_type": EVENT_TYPE,
        "session_id": record.session_id,
        "agent_id": record.agent_id,
        "org_id": record.org_id,
        "sandbox_id": record.exec_id,
        "tool": record.tool,
        "language": record.language,
        "code_hash": record.code_hash,
        "execution_time_ms": record.duration_ms,
        "exit_code": record.exit_code,
        "memory_used_mb": record.usage.get("memory_peak_mb", 0),
        "cpu_time_ms": round(record.usage.get("cpu_s", 0) * 1000),
        "network_bytes_sent": record.network_bytes_sent,
        "network_bytes_recv": record.network_bytes_recv,
        "files_read": record.files_read,
        "files_written": record.files_written,
        "result": _result(record),
        "error": record.error_reason or record.error_code,
    }


def line(record: ExecRecord) -> bytes:
    return json.dumps(event(record), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


async def verify_trail(path: Path, store: AuditStore, *, limit: int = 1000) -> list[Fault]:
    """Lines that are not what the records say. A line that is missing is no fault: see above.

    Raises:
        BadRequest: the file cannot be read.
    """
    faults: list[Fault] = []
    try:
        with path.open("rb") as file:
            number = 0
            while (found := file.readline(_LINE_BYTES)) and len(faults) < limit:
                number += 1
                if found != b"\n" and (fault := await _line_fault(number, found, store)):
                    faults.append(fault)
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror}") from error
    return faults


async def _line_fault(number: int, found: bytes, store: AuditStore) -> Fault | None:
    try:
        exec_id = json.loads(found)["sandbox_id"]
        if type(exec_id) is not str:
            raise TypeError
    except (KeyError, TypeError, ValueError, RecursionError):
        return Fault(FaultKind.LINE, number, None, "it is no whole event")
    try:
        record = await store.get(exec_id)
    except StoreUnavailable as error:
        return Fault(FaultKind.LINE, number, exec_id, error.message)
    if record is None:
        return Fault(FaultKind.LINE, number, exec_id, "there is no record of this run")
    if found != line(record):
        return Fault(FaultKind.LINE, number, exec_id, "it does not say what the record says")
    return None


def _result(record: ExecRecord) -> str:
    """`success`, `failure`, `refused`, `error`, or what stopped it: the verdict."""
    if record.status is Status.REFUSED:
        return "refused"
    if record.verdict is None:
        return "error"
    if record.verdict == Verdict.EXITED:
        return "success" if record.exit_code == 0 else "failure"
    return record.verdict


def _append(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(fd).st_size
        # A line that a full disk or a crash broke off stays a line of its own.
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        content = b"\n" + content if torn else content
        if os.write(fd, content) < len(content):
            raise OSError("only a part of the line could be written")
    finally:
        os.close(fd)
