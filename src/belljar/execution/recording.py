"""What is written down of a run at each step of its life: pure functions from one record to the next."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

from belljar.audit.records import ExecRecord, Status
from belljar.errors import BelljarError, StoreUnavailable
from belljar.execution.requests import command_of
from belljar.execution.submissions import Submission, digests, sha256
from belljar.execution.workspace import manifest
from belljar.models import RunResult, Verdict
from belljar.policy.decisions import Decision
from belljar.policy.risk import Assessment

__all__ = ["asked", "ended", "granted", "last_event", "meta", "not_kept", "outcome", "refused", "shown"]

_REASON_CHARS = 1000


def asked(submission: Submission, *, exec_id: str, request_id: str, epoch: str, at: datetime) -> ExecRecord:
    request = submission.request
    code = (request.code or "").encode("utf-8", "surrogatepass")
    command = command_of(request)
    return ExecRecord(
        exec_id=exec_id,
        epoch=epoch,
        request_id=request_id,
        request_digest=submission.digest,
        project_id=submission.project_id,
        status=Status.QUEUED,
        accepted_at=at,
        token_id=submission.token_id,
        role=submission.role,
        tool=submission.tool,
        skill_id=submission.skill_id,
        task_id=submission.task_id,
        conversation_id=submission.conversation_id,
        session_id=submission.session_id,
        agent_id=submission.agent_id,
        org_id=submission.org_id,
        language=request.language,
        cmd=command[0] if command else None,
        args=tuple(command[1:]),
        cwd=request.working_dir,
        env_keys=tuple(sorted(request.env)),
        code_hash=None if request.code is None else f"sha256:{sha256(code)}",
        inputs={**digests(request.files), **digests(request.inputs)},
    )


def granted(record: ExecRecord, submission: Submission, decision: Decision, risk: Assessment) -> ExecRecord:
    request = submission.request
    return replace(
        record,
        inputs={**digests(request.files), **digests(request.inputs)},  # kept work among them
        image=decision.grant.image,
        policy_snapshot=decision.snapshot(),
        grant_digest=decision.grant.digest,
        risk={"tool": decision.grant.risk, **asdict(risk)},
    )


def shown(submission: Submission, decision: Decision, risk: Assessment) -> dict[str, Any]:
    """What a person sees before a yes; the code itself stays with the request."""
    request = submission.request
    return {
        "language": request.language,
        "command": command_of(request) if request.code is None else None,
        "args": request.args,
        "working_dir": request.working_dir,
        "env_keys": sorted(request.env),
        "packages": request.packages,
        "files": digests(request.files),
        "inputs": digests(request.inputs),
        "session_id": submission.session_id if submission.in_session else None,
        "session_files": submission.surroundings.files if submission.surroundings else {},
        "role": submission.role,
        "tool": submission.tool,
        "skill_id": submission.skill_id,
        "findings": [asdict(finding) for finding in risk.findings],
        "grant": decision.as_data(),
    }


def refused(record: ExecRecord, error: BelljarError, at: datetime) -> ExecRecord:
    return replace(
        record,
        status=Status.REFUSED,
        cmd=record.cmd and record.cmd[:1000],
        args=tuple(arg[:1000] for arg in record.args[:100]),  # perhaps it was refused for its size
        ended_at=at,
        error_code=error.code,
        error_reason=error.message[:_REASON_CHARS],
        error_field=error.field,
    )


def outcome(record: ExecRecord, result: RunResult, at: datetime) -> ExecRecord:
    return replace(
        record,
        status=Status.FINISHED,
        posture=result.posture,
        ended_at=at,
        duration_ms=round(result.usage.wall_s * 1000),
        verdict=result.verdict,
        exit_code=result.exit_code,
        signal=result.signal,
        stdout_bytes=result.stdout_bytes,
        stderr_bytes=result.stderr_bytes,
        stdout_truncated=result.stdout_truncated,
        stderr_truncated=result.stderr_truncated,
        stdout_sha256=sha256(result.stdout),
        stderr_sha256=sha256(result.stderr),
        usage=asdict(result.usage),
        network_bytes_sent=result.usage.network_bytes_sent,
        network_bytes_recv=result.usage.network_bytes_recv,
        artifacts=tuple(manifest(result.artifacts)),
        skipped=tuple({"path": skip.path, "reason": skip.reason} for skip in result.skipped),
        files_read=tuple(record.inputs),
        files_written=tuple(artifact.path for artifact in result.artifacts),
        packages=tuple(asdict(package) for package in result.packages),
    )


def not_kept(record: ExecRecord, what: str, error: OSError) -> ExecRecord:
    """It ran, but this of what it left could not be written."""
    reason = f"{what} could not be kept: {error.strerror}"
    if record.error_reason is not None:
        reason = f"{record.error_reason}; {reason}"
    return replace(record, error_code=StoreUnavailable.code, error_reason=reason[:_REASON_CHARS])


def ended(
    record: ExecRecord, verdict: Verdict, at: datetime, error: BelljarError | None = None
) -> ExecRecord:
    """The outcome of a run that has no result."""
    return replace(
        record,
        status=Status.FINISHED,
        ended_at=at,
        verdict=verdict,
        error_code=getattr(error, "code", "INTERNAL") if error else None,
        error_reason=error.message[:_REASON_CHARS] if error else None,
        error_field=error.field if error else None,
    )


def meta(record: ExecRecord) -> dict[str, Any]:
    """The record for `meta.json`, with times as the API tells them; there is no receipt yet."""
    row = {one.name: getattr(record, one.name) for one in fields(record) if one.name != "receipt_hash"}
    times = {name: value for name, value in row.items() if isinstance(value, datetime)}
    return row | {name: moment.isoformat().replace("+00:00", "Z") for name, moment in times.items()}


def last_event(record: ExecRecord) -> dict[str, Any]:
    """What the last event of a run says."""
    return {
        "exec_id": record.exec_id,
        "verdict": record.verdict,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "receipt": record.receipt_hash,
    }
