"""Keeps what a run left. A disk that is full costs the files, not the outcome, which says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime

from belljar.audit.records import ExecRecord
from belljar.execution import recording
from belljar.execution.keptwork import KeptWork
from belljar.execution.live import LiveRun
from belljar.execution.workspace import Workspace
from belljar.models import RunResult

__all__ = ["write_down"]

logger = logging.getLogger(__name__)


def write_down(
    workspace: Workspace, live: LiveRun, result: RunResult, at: datetime
) -> tuple[ExecRecord, RunResult]:
    live.log.reach("collected")
    failure: OSError | None = None
    if live.submission.persist_work:
        try:
            work = KeptWork(workspace.work_folder(live.record.project_id))
            left_out = work.keep(result, live.grant.limits)
            result = replace(result, skipped=(*result.skipped, *left_out))
        except OSError as error:
            failure = error
    record = recording.outcome(live.record, result, at)
    if failure is not None:
        record = recording.not_kept(record, "the project's work", failure)
    folder = workspace.run_folder(record.project_id, record.exec_id)
    kept = replace(record, artifacts_path=str(folder.relative_to(workspace.root)))
    try:
        workspace.store(
            record.project_id,
            record.exec_id,
            live.submission.request.code,
            result,
            recording.meta(kept),
            live.log.lines(),
        )
        record = kept
    except OSError as error:
        workspace.remove(record.project_id, record.exec_id)  # half of it is none of it
        record = recording.not_kept(record, "the run's own files", error)
    if record.error_code is not None:
        logger.warning("%s: %s", record.exec_id, record.error_reason)
    return record, result
