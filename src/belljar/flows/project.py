"""A user's own project directory: what goes from it into runs, and where what they leave lands.

    docs/artifacts/<run_id>/…                      what a run made, for people
    .belljar/runs/<run_id>/events.jsonl            sandbox_start, overwrite, sandbox_complete, sandbox_failed
    .belljar/runs/<run_id>/sandbox/[<step>/]result.json
    .belljar/landing/<run_id>[.<step>]/            files on their way; empty unless somebody was killed

The directory is the only truth. Names come from a hostile program: they are checked by the path rules, must
stay below the output prefix, and are opened by descriptor.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from belljar import paths
from belljar.errors import BadRequest, Conflict, LimitExceeded, NotFound, PathNotAllowed
from belljar.flows.landing import (
    LANDING,
    OWN_FILE_BYTES,
    RUNS,
    Change,
    Decision,
    Landing,
    Refused,
    append,
    changes_of,
    digest,
    folder_names,
    locked,
    replace,
    writing,
)
from belljar.guest import tree
from belljar.models import InputFile, Limits, RunResult

__all__ = [
    "ARTIFACTS",
    "MAX_CODE_BYTES",
    "RUNS",
    "SUMMARY_BYTES",
    "Change",
    "Landed",
    "Project",
    "ProjectRun",
    "Refused",
    "changes_of",
    "new_run_id",
    "prefix_for",
    "summary",
]

ARTIFACTS = "docs/artifacts"
MAX_CODE_BYTES = 16 << 20
SUMMARY_BYTES = 4096
"""How much of each output stream the result on disk keeps."""
_TRAIL_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Landed:
    prefix: str
    changes: tuple[Change, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(change.path for change in self.changes)

    @property
    def total_bytes(self) -> int:
        return sum(change.size for change in self.changes)


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(4)}"


def prefix_for(run_id: str, asked: str | None, allowed_prefixes: Sequence[str]) -> str:
    """Where a run's files land.

    Raises:
        PathNotAllowed: it may not write there.
    """
    prefix = (asked or f"{ARTIFACTS}/{run_id}").rstrip("/")
    return paths.validate_prefixed(prefix, allowed_prefixes, field="output_prefix")


class Project:
    """A project's directory, open. Landings that somebody else was killed in are finished first.

    Raises:
        BadRequest: it is no folder, or cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise BadRequest(f"{folder} is not a folder that can be opened", field="project") from error
        try:
            self._recover()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._root)

    def start(self, run_id: str) -> ProjectRun:
        """The places of a new run.

        Raises:
            BadRequest: nothing can be written here.
        """
        paths.validate(run_id, field="run_id")
        try:
            tree.write_file(self._root, f"{RUNS}/{run_id}/events.jsonl", b"")
        except tree.Refusal as refusal:
            message = f"the run cannot be written down in the project: {refusal}"
            raise BadRequest(message, field="project") from refusal
        return ProjectRun(self._root, run_id)

    def again(self, run_id: str) -> ProjectRun:
        """The places of a run that there was.

        Raises:
            NotFound: there was none of that id.
        """
        try:
            paths.validate(run_id)
            os.close(tree.open_beneath(self._root, f"{RUNS}/{run_id}/events.jsonl"))
        except (PathNotAllowed, tree.Refusal) as error:
            raise NotFound(f"this project has no run {ascii(run_id[:100])}", field="run_id") from error
        return ProjectRun(self._root, run_id)

    def run_ids(self) -> Iterator[str]:
        yield from folder_names(self._root, RUNS)

    def pack(
        self, names: Iterable[str], limits: Limits, *, allowed_prefixes: Sequence[str] | None = None
    ) -> tuple[InputFile, ...]:
        """Files and folders of the project, by descriptor: a link in a cloned project leads nowhere.

        Raises:
            PathNotAllowed: a name breaks the rules, or is below none of the prefixes where there are some.
            LimitExceeded: they are too many, or too large.
            BadRequest: one cannot be read.
        """
        left = limits.input_mb << 20
        found: list[InputFile] = []
        for name in names:
            path = paths.validate(name.rstrip("/"), field="input_files")
            if allowed_prefixes is not None:
                paths.validate_prefixed(path, allowed_prefixes, field="input_files")
            try:
                for one in self._files_of(path, limits.input_files - len(found)):
                    content = tree.read_file(self._root, one, left)
                    left -= len(content)
                    found.append(InputFile(paths.validate(one, field="input_files"), content))
                    if len(found) > limits.input_files:
                        raise tree.Refusal(tree.TOO_MANY, one.encode())
            except tree.Refusal as refusal:
                if refusal.reason in (tree.TOO_LARGE, tree.TOO_MANY):
                    most = f"{limits.input_mb} MB and {limits.input_files} files"
                    message = f"{path}: more than {most} of input"
                    raise LimitExceeded(message, field="input_files") from refusal
                message = f"{path} cannot be read: {refusal.reason}"
                raise BadRequest(message, field="input_files") from refusal
        return tuple(found)

    def read(self, path: str, cap: int, *, field: str) -> bytes:
        """One file of the project.

        Raises:
            PathNotAllowed: its name breaks the rules.
            BadRequest: it cannot be read.
        """
        paths.validate(path, field=field)
        try:
            return tree.read_file(self._root, path, cap)
        except tree.Refusal as refusal:
            raise BadRequest(f"{path} cannot be read: {refusal.reason}", field=field) from refusal

    def digest(self, path: str) -> str | None:
        """sha256 of a file; None if there is none that can be read."""
        return digest(self._root, path)

    def _files_of(self, path: str, most: int) -> Iterator[str]:
        fd = tree.open_beneath(self._root, path)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                yield path
                return
            for entry in tree.listing(fd, max_entries=most):
                if isinstance(entry, tree.Skip):
                    raise tree.Refusal(entry.reason, entry.path)
                yield f"{path}/{tree.text_of(entry.path)}"
        finally:
            os.close(fd)

    def _recover(self) -> None:
        for name in folder_names(self._root, LANDING):
            with writing(f"{LANDING}/{name} cannot be finished; remove it to go on without"):
                Landing(self._root, name).finish()


class ProjectRun:
    """One run's places in one project."""

    def __init__(self, root: int, run_id: str) -> None:
        self._root = root
        self.run_id = run_id
        self.folder = f"{RUNS}/{run_id}"

    def event(self, name: str, **fields: object) -> None:
        """Append one line to the run's trail."""
        with writing():
            append(self._root, f"{self.folder}/events.jsonl", self._line(name, fields))

    def events(self) -> Iterator[Mapping[str, Any]]:
        """What was appended. A line that was broken off, or that is nobody's event, is passed over."""
        try:
            fd, _ = tree.open_regular(self._root, f"{self.folder}/events.jsonl", _TRAIL_BYTES)
        except tree.Refusal as refusal:
            raise NotFound(
                f"the trail of {self.run_id} cannot be read: {refusal}", field="run_id"
            ) from refusal
        with open(fd, "rb") as file:
            for line in file:
                try:
                    event = json.loads(line)
                except (RecursionError, ValueError):
                    continue
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    yield event

    def keep(self, name: str, content: bytes) -> None:
        """Write a file of the run's own, or replace it: whoever reads it sees the old one or the new one."""
        with writing():
            replace(self._root, f"{self.folder}/{name}", content)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """
        Raises:
            Conflict: another process has this run.
        """
        with writing():
            fd = tree.open_beneath(self._root, self.folder, os.O_DIRECTORY)
        try:
            if not locked(fd):
                raise Conflict(f"the run {self.run_id} is going on in another process", field="run_id")
            yield
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes:
        try:
            return tree.read_file(self._root, f"{self.folder}/{name}", OWN_FILE_BYTES)
        except tree.Refusal as refusal:
            message = f"{self.folder}/{name} cannot be read: {refusal.reason}"
            raise NotFound(message, field="run_id") from refusal

    def land(
        self,
        files: Iterable[tuple[str, bytes]],
        told: Callable[[Landed], Mapping[str, object]],
        *,
        prefix: str,
        step: str | None = None,
        overwrite: bool = False,
        own: Collection[str] = (),
        **completed: object,
    ) -> Landed:
        """Write a run's files below `prefix`, with `told` as its result.json and `completed` in the event
        `sandbox_complete`: all of it, or after a failure nothing. A name that breaks the rules is refused
        and the rest is kept. A run of several steps names the step; `own` are the files that an earlier
        attempt at it wrote, which may be replaced.
        """
        name = self.run_id if step is None else f"{self.run_id}.{step}"
        with writing(), Landing(self._root, name) as landing:
            taken = [*files]
            names = {path for path, _ in taken}
            for path, content in taken:
                # The folder's name says nothing here, unless another file has the name without it.
                short = path.removeprefix("artifacts/")
                target = f"{prefix}/{path if short in names else short}"
                landing.stage(path, target, content, overwrite or target in own)
            landed = Landed(prefix, tuple(landing.changes), tuple(landing.refused))
            place = f"{self.folder}/sandbox/result.json"
            if step is not None:
                place = f"{self.folder}/sandbox/{step}/result.json"
                completed["node"] = step
            completed["files"] = [asdict(change) for change in landed.changes]
            events = [
                self._line("overwrite", {"path": change.path, "before": change.before})
                for change in landed.changes
                if change.before is not None
            ]
            events.append(self._line("sandbox_complete", completed))
            landing.commit(
                Decision(
                    prefix=prefix,
                    files=landed.written,
                    result_path=place,
                    result=json.dumps(told(landed), indent=2),
                    trail_path=f"{self.folder}/events.jsonl",
                    trail=b"".join(events).decode(),
                )
            )
        return landed

    def _line(self, name: str, fields: Mapping[str, object]) -> bytes:
        record = {"ts": datetime.now(UTC).isoformat(), "event": name, "run_id": self.run_id, **fields}
        return json.dumps(record).encode() + b"\n"


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
        "written_bytes": landed.total_bytes,
        "refused_files": [refused._asdict() for refused in landed.refused],
        "skipped": [asdict(skip) for skip in result.skipped],
        "packages": [asdict(package) for package in result.packages],
        "usage": asdict(result.usage),
        "engine": result.engine,
        "posture": result.posture,
    }
