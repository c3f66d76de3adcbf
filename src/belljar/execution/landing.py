"""Where a run's results land in a user's own project, and the trail it leaves there.

    docs/artifacts/<run_id>/…                what the run made, for people
    .belljar/runs/<run_id>/events.jsonl      sandbox_start, overwrite, sandbox_complete, sandbox_failed
    .belljar/runs/<run_id>/sandbox/result.json

The project directory is the only truth. Names come from a hostile program: they are checked by the
path rules, must stay below the output prefix, and are opened by descriptor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from belljar import paths
from belljar.errors import PathNotAllowed
from belljar.guest import tree
from belljar.models import RunResult

RUNS = ".belljar/runs"
ARTIFACTS = "docs/artifacts"
_SUMMARY_BYTES = 4096
"""How much of each output stream the result on disk keeps."""


@dataclass(frozen=True, slots=True)
class Landed:
    prefix: str
    written: tuple[str, ...]
    """Relative to the project."""
    refused: tuple[tuple[str, str], ...]
    """Name and reason of what was not written."""


class Landing:
    """One run's places in one project."""

    def __init__(
        self,
        project: Path,
        run_id: str,
        *,
        output_prefix: str | None,
        allowed_prefixes: Sequence[str],
        overwrite: bool = False,
    ) -> None:
        self.prefix = (output_prefix or f"{ARTIFACTS}/{run_id}").rstrip("/")
        paths.validate_prefixed(self.prefix, allowed_prefixes, field="output_prefix")
        self.run_id = run_id
        self._overwrite = overwrite
        self._root = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._trail = f"{RUNS}/{run_id}/events.jsonl"
        tree.write_file(self._root, self._trail, b"")

    def close(self) -> None:
        os.close(self._root)

    def event(self, name: str, **fields: object) -> None:
        """Append one line to the run's trail."""
        record = {"ts": datetime.now(UTC).isoformat(), "event": name, "run_id": self.run_id, **fields}
        fd = tree.open_beneath(self._root, self._trail, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, json.dumps(record).encode() + b"\n")
        finally:
            os.close(fd)

    def land(self, result: RunResult) -> Landed:
        """Write the artifacts and the summary; a name that breaks the rules is refused, the rest is kept."""
        written: list[str] = []
        refused: list[tuple[str, str]] = []
        taken = {artifact.path for artifact in result.artifacts}
        for artifact in result.artifacts:
            # The folder's name says nothing here, unless another file has the name without it.
            short = artifact.path.removeprefix("artifacts/")
            try:
                written.append(self._write(artifact.path if short in taken else short, artifact.content))
            except (PathNotAllowed, tree.Refusal) as error:
                refused.append((artifact.path, error.reason))
        landed = Landed(self.prefix, tuple(written), tuple(refused))
        text = json.dumps(summary(self.run_id, result, landed, keep=_SUMMARY_BYTES), indent=2)
        tree.write_file(self._root, f"{RUNS}/{self.run_id}/sandbox/result.json", text.encode())
        return landed

    def _write(self, name: str, content: bytes) -> str:
        target = paths.validate(f"{self.prefix}/{name}", field="output_files")
        if self._exists(target):
            if not self._overwrite:
                raise PathNotAllowed(f"{target} exists already", reason="exists", field="output_prefix")
            self.event("overwrite", path=target)
        tree.write_file(self._root, target, content)
        return target

    def _exists(self, target: str) -> bool:
        try:
            os.close(tree.open_beneath(self._root, target))
        except tree.Refusal as refusal:
            return refusal.reason != tree.MISSING
        return True


def summary(run_id: str, result: RunResult, landed: Landed, keep: int | None = None) -> dict[str, object]:
    """A run in the words of the wire; `keep` bytes of each output stream, or all that were kept."""
    return {
        "run_id": run_id,
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "duration_ms": round(result.usage.wall_s * 1000),
        "stdout": result.stdout[:keep].decode("utf-8", "replace"),
        "stderr": result.stderr[:keep].decode("utf-8", "replace"),
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "output_files": [
            {"path": a.path, "size": a.size, "sha256": a.sha256, "mime": a.mime} for a in result.artifacts
        ],
        "written_files": landed.written,
        "refused_files": [{"path": path, "reason": reason} for path, reason in landed.refused],
        "skipped": [asdict(skip) for skip in result.skipped],
        "usage": asdict(result.usage),
        "engine": result.engine,
        "posture": result.posture,
    }
