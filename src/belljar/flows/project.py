"""A user's own project directory: what goes from it into runs, and where what they leave lands.

    docs/artifacts/<run_id>/…                      what a run made, for people
    .belljar/runs/<run_id>/events.jsonl            sandbox_start, overwrite, sandbox_complete, sandbox_failed
    .belljar/runs/<run_id>/sandbox/[<step>/]result.json
    .belljar/landing/<run_id>[.<step>]/            files on their way; empty unless somebody was killed

The directory is the only truth. Names come from a hostile program: they are checked by the path rules, must
stay below the output prefix, and are opened by descriptor.

What a run leaves lands whole or not at all. Its files are staged; writing `commit.json` beside them
decides; then they are renamed into place, a new folder by one rename. Whoever opens the project next
finishes a landing that was decided and discards one that was not.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Self

from belljar import paths
from belljar.errors import BadRequest, Conflict, LimitExceeded, NotFound, PathNotAllowed, StoreUnavailable
from belljar.guest import tree
from belljar.models import InputFile, Language, Limits, RunResult

__all__ = [
    "ARTIFACTS",
    "LANGUAGES",
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

RUNS = ".belljar/runs"
ARTIFACTS = "docs/artifacts"
LANGUAGES: Mapping[str, Language] = {
    ".py": Language.PYTHON,
    ".sh": Language.BASH,
    ".bash": Language.BASH,
    ".js": Language.JAVASCRIPT,
    ".mjs": Language.JAVASCRIPT,
    ".cjs": Language.JAVASCRIPT,
    ".ts": Language.TYPESCRIPT,
    ".mts": Language.TYPESCRIPT,
}
"""By the end of a file's name."""
MAX_CODE_BYTES = 16 << 20
_LANDING = ".belljar/landing"
_OF_A_RUN = ("events.jsonl", "graph.resolved.json", "sandbox", "state.json")
"""What belljar itself keeps in the folder of a run."""
SUMMARY_BYTES = 4096
"""How much of each output stream the result on disk keeps."""
_OWN_FILE_BYTES = 64 << 20
"""Longest file of ours that is read back."""
_TRAIL_BYTES = 1 << 40
_DIGEST_BYTES = 1 << 30
"""A file that is replaced is read for its digest up to this size."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file of the project that a run wrote."""

    path: str
    """Relative to the project."""
    size: int
    sha256: str
    before: str | None
    """sha256 of what it replaced; None if there was nothing, empty if that could not be read."""

    @classmethod
    def of(cls, path: str, content: bytes, before: str | None = None) -> Change:
        return cls(path, len(content), hashlib.sha256(content).hexdigest(), before)


def changes_of(event: Mapping[str, Any]) -> list[Change]:
    """The files that an event `sandbox_complete` tells of; none if somebody else wrote it."""
    try:
        changes = [Change(**file) for file in event["files"]]
    except (KeyError, TypeError):
        return []
    return [change for change in changes if isinstance(change.path, str) and isinstance(change.sha256, str)]


class Refused(NamedTuple):
    path: str
    reason: str


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
        yield from _folder_names(self._root, RUNS)

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
        return _digest(self._root, path)

    def _files_of(self, path: str, most: int) -> Iterator[str]:
        fd = tree.open_beneath(self._root, path)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                yield path
                return
            for entry in tree.listing(fd, max_entries=most):
                if isinstance(entry, tree.Skip):
                    raise tree.Refusal(entry.reason, entry.path)
                yield f"{path}/{os.fsdecode(entry.path)}"
        finally:
            os.close(fd)

    def _recover(self) -> None:
        for name in _folder_names(self._root, _LANDING):
            with _writing(f"{_LANDING}/{name} cannot be finished; remove it to go on without"):
                _Landing(self._root, name).finish()


class ProjectRun:
    """One run's places in one project."""

    def __init__(self, root: int, run_id: str) -> None:
        self._root = root
        self.run_id = run_id
        self.folder = f"{RUNS}/{run_id}"

    def event(self, name: str, **fields: object) -> None:
        """Append one line to the run's trail."""
        with _writing():
            _append(self._root, f"{self.folder}/events.jsonl", self._line(name, fields))

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
        with _writing():
            _replace(self._root, f"{self.folder}/{name}", content)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """
        Raises:
            Conflict: another process has this run.
        """
        with _writing():
            fd = tree.open_beneath(self._root, self.folder, os.O_DIRECTORY)
        try:
            if not _locked(fd):
                raise Conflict(f"the run {self.run_id} is going on in another process", field="run_id")
            yield
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes:
        try:
            return tree.read_file(self._root, f"{self.folder}/{name}", _OWN_FILE_BYTES)
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
        with _writing(), _Landing(self._root, name) as landing:
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
                _Decision(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What is to be done with the files that are staged."""

    prefix: str
    files: tuple[str, ...]
    result_path: str
    result: str
    trail_path: str
    trail: str

    @classmethod
    def read(cls, folder: int) -> _Decision | None:
        """None for what is not there, or is none of ours: the project may be anybody's."""
        try:
            said = json.loads(tree.read_file(folder, "commit.json", _OWN_FILE_BYTES))
            decision = cls(**{**said, "files": tuple(said["files"])})
            for path in (decision.prefix, *decision.files, decision.result_path, decision.trail_path):
                paths.validate(path)
            decision.result.encode() + decision.trail.encode()
        except (
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
            PathNotAllowed,
            tree.Refusal,
        ):
            return None
        return decision


class _Landing:
    """Files on their way from a run to the project. Locked: nobody finishes what is still under way."""

    def __init__(self, root: int, name: str) -> None:
        self._root = root
        self._place = f"{_LANDING}/{name}"
        self._lock = -1
        self._decided = False
        self.changes: list[Change] = []
        self.refused: list[Refused] = []

    def __enter__(self) -> Self:
        while True:  # until the folder that is locked is the one that is there
            os.close(_made_folder(self._root, f"{self._place}/files"))
            self._lock = tree.open_beneath(self._root, self._place, os.O_DIRECTORY)
            if _locked(self._lock) and _exists(self._lock, "files"):
                return self
            os.close(self._lock)

    def __exit__(self, *_: object) -> None:
        try:
            if not self._decided:  # else it is for the next one to finish
                tree.remove_tree(self._root, self._place)
        finally:
            os.close(self._lock)

    def finish(self) -> None:
        """What somebody who was killed left here."""
        try:
            self._lock = tree.open_beneath(self._root, self._place, os.O_DIRECTORY)
        except tree.Refusal:
            return
        if not _locked(self._lock):
            os.close(self._lock)
            return
        decision = _Decision.read(self._lock)
        try:
            if decision is not None:
                self._decided = True
                self._apply(decision)
                self._decided = False
        finally:
            self.__exit__()

    def stage(self, name: str, target: str, content: bytes, overwrite: bool) -> None:
        try:
            paths.validate(target, field="output_files")
            if _is_ours(target):
                raise PathNotAllowed(f"{target} is belljar's own", reason="reserved")
            before = None
            if _is_there(self._root, target):
                if not overwrite:
                    raise PathNotAllowed(f"{target} exists already", reason="exists")
                before = _digest(self._root, target) or ""
            tree.write_file(self._lock, f"files/{target}", content)
        except (PathNotAllowed, tree.Refusal) as error:
            self.refused.append(Refused(name, error.reason))
            return
        self.changes.append(Change.of(target, content, before))

    def commit(self, decision: _Decision) -> None:
        _replace(self._lock, "commit.json", json.dumps(asdict(decision)).encode())
        self._decided = True
        self._apply(decision)
        self._decided = False

    def _apply(self, decision: _Decision) -> None:
        """Again from the start is fine too: what is in place is no longer here."""
        if not self._moved_at_once(decision.prefix):
            for target in decision.files:
                self._move(target)
        _replace(self._root, decision.result_path, decision.result.encode())
        _append(self._root, decision.trail_path, decision.trail.encode())

    def _moved_at_once(self, prefix: str) -> bool:
        """All of it by one rename, where the folder is new."""
        return not _exists(self._root, prefix) and self._move(prefix)

    def _move(self, path: str) -> bool:
        """Whether it was still here."""
        above, _, name = path.rpartition("/")
        try:
            source = tree.open_beneath(self._lock, f"files/{above}".rstrip("/"), os.O_DIRECTORY)
        except tree.Refusal:
            return False
        try:
            target = _made_folder(self._root, above)
            try:
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            finally:
                os.close(target)
        except FileNotFoundError:
            return False
        finally:
            os.close(source)
        return True


def _made_folder(root: int, path: str) -> int:
    """A descriptor of a folder of the project, made if it is not there."""
    here = os.dup(root)
    try:
        for name in filter(None, path.split("/")):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            above, here = here, tree.open_beneath(here, name, os.O_DIRECTORY)
            os.close(above)
    except BaseException:
        os.close(here)
        raise
    return here


def _replace(root: int, path: str, content: bytes) -> None:
    above, _, name = path.rpartition("/")
    folder = _made_folder(root, above)
    try:
        tree.write_file(folder, f"{name}.new", content)
        os.rename(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _append(root: int, path: str, lines: bytes) -> None:
    fd = tree.open_beneath(root, path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a line that was broken off stays one of its own
            lines = b"\n" + lines
        if os.write(fd, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Whether it is ours alone now; it is until it is closed, or this process ends."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _exists(root: int, path: str) -> bool:
    try:
        os.close(tree.open_beneath(root, path))
    except tree.Refusal as refusal:
        return refusal.reason != tree.MISSING
    return True


def _is_there(root: int, path: str) -> bool:
    """Whether a file, or a link, would be replaced.

    Raises:
        Refusal: there is a folder, or no folder on the way to it, or a link there.
    """
    names = path.split("/")
    for count in range(1, len(names) + 1):
        try:
            fd = tree.open_beneath(root, "/".join(names[:count]))
        except tree.Refusal as refusal:
            if refusal.reason == tree.MISSING:
                return False
            if count < len(names):
                raise
            return True
        try:
            is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        finally:
            os.close(fd)
        if is_folder == (count == len(names)):
            raise tree.Refusal(tree.NOT_REGULAR, path.encode())
    return True


def _is_ours(path: str) -> bool:
    if paths.is_within(path, (_LANDING,)):
        return True
    names = path.removeprefix(f"{RUNS}/").split("/")
    return path.startswith(f"{RUNS}/") and (len(names) < 2 or names[1] in _OF_A_RUN)


@contextmanager
def _writing(what: str = "the project cannot be written to") -> Iterator[None]:
    try:
        yield
    except tree.Refusal as refusal:
        raise StoreUnavailable(f"{what}: {refusal}") from refusal
    except OSError as error:
        raise StoreUnavailable(f"{what}: {error.strerror}") from error


def _digest(root: int, path: str) -> str | None:
    try:
        fd, _ = tree.open_regular(root, path, _DIGEST_BYTES)
    except tree.Refusal:
        return None
    try:
        digest = hashlib.sha256()
        for chunk in tree.read_chunks(fd, _DIGEST_BYTES):
            digest.update(chunk)
    except tree.Refusal:
        return None
    finally:
        os.close(fd)
    return digest.hexdigest()


def _folder_names(root: int, path: str) -> Iterator[str]:
    try:
        fd = tree.open_beneath(root, path, os.O_DIRECTORY)
    except tree.Refusal:
        return
    try:
        names = sorted(os.listdir(fd))
    finally:
        os.close(fd)
    yield from names


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
        "usage": asdict(result.usage),
        "engine": result.engine,
        "posture": result.posture,
    }
