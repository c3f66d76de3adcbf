"""A project's folder on the host, and what each run leaves in it.

    projects/<project_id>/inputs/             files that every run of the project may read
    projects/<project_id>/work/               kept between runs that ask for it (`persist_work`)
    projects/<project_id>/artifacts/<exec_id>/
        code.txt  stdout.txt  stderr.txt  manifest.json  meta.json  events.jsonl  files/…

Nothing here is ever mounted into a jar: files go in and come out through the guest's channel.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from belljar import paths
from belljar.audit.records import ExecRecord
from belljar.errors import BadRequest, LimitExceeded, NotFound, PathNotAllowed, StoreUnavailable
from belljar.guest import tree
from belljar.models import Artifact, InputFile, Limits, RunResult, Skipped, SkipReason

_ANY_SIZE = 1 << 62
_PROGRAM_BYTES = 64 << 10
"""Of what a run may be given, what kept work leaves for the next program itself; and one file."""
_PROJECT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_project_id(project_id: str) -> str:
    """It becomes the name of a folder, so it is short and plain."""
    if not _PROJECT_ID.fullmatch(project_id):
        message = (
            "project_id is 1 to 64 letters, digits, dots, dashes and underscores, the first no dot or dash"
        )
        raise BadRequest(message, field="project_id")
    return project_id


class Workspace:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._projects = root / "projects"
        self._projects.mkdir(parents=True, exist_ok=True, mode=0o700)

    def project(self, project_id: str) -> Path:
        return self._projects / check_project_id(project_id)

    def run_folder(self, project_id: str, exec_id: str) -> Path:
        return self.project(project_id) / "artifacts" / exec_id

    def store(
        self,
        project_id: str,
        exec_id: str,
        code: str | None,
        result: RunResult,
        meta: Mapping[str, Any],
        events: Sequence[bytes],
    ) -> Path:
        """Write down what ran and what it left; returns its folder. OSError if the disk does not take it."""
        folder = self.run_folder(project_id, exec_id)
        folder.mkdir(parents=True, exist_ok=True)
        if code is not None:
            (folder / "code.txt").write_bytes(code.encode("utf-8", "surrogatepass"))
        (folder / "stdout.txt").write_bytes(result.stdout)
        (folder / "stderr.txt").write_bytes(result.stderr)
        (folder / "events.jsonl").write_bytes(b"".join(events))
        if result.artifacts:
            self._write_tree(folder / "files", [(a.path, a.content) for a in result.artifacts])
        (folder / "manifest.json").write_text(json.dumps(manifest(result.artifacts), indent=2), "utf-8")
        (folder / "meta.json").write_text(json.dumps(meta, indent=2, default=str), "utf-8")
        return folder

    def code(self, record: ExecRecord) -> str:
        """What ran, to the byte.

        Raises:
            NotFound: it was a command, it is not kept any more, or what is kept is something else.
        """
        try:
            code = (self.run_folder(record.project_id, record.exec_id) / "code.txt").read_bytes()
        except OSError:
            raise NotFound("the code of this run is not kept", field="exec_id") from None
        if record.code_hash != f"sha256:{hashlib.sha256(code).hexdigest()}":
            raise NotFound("what is kept as the code of this run is not what ran", field="exec_id")
        return code.decode("utf-8", "surrogatepass")

    def events(self, project_id: str, exec_id: str) -> Iterator[bytes]:
        try:
            with open(self.run_folder(project_id, exec_id) / "events.jsonl", "rb") as file:
                yield from file
        except FileNotFoundError:
            return

    def open_artifact(self, project_id: str, exec_id: str, path: str, cap: int) -> tuple[int, int]:
        """NotFound for whatever is not a file that this run left."""
        try:
            folder = os.open(self.run_folder(project_id, exec_id) / "files", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            raise NotFound(f"{path!r} of this run is not kept", field="path") from None
        try:
            return tree.open_regular(folder, path, cap)
        except tree.Refusal:
            raise NotFound(f"{path!r} of this run is not kept", field="path") from None
        finally:
            os.close(folder)

    def digests(self, record: ExecRecord) -> dict[str, str] | None:
        """Path to sha256 of what is there of a run's artifacts; None when it has no folder."""
        if not self.run_folder(record.project_id, record.exec_id).is_dir():
            return None
        found = {}
        for path in (artifact["path"] for artifact in record.artifacts):
            try:
                fd, _ = self.open_artifact(record.project_id, record.exec_id, path, _ANY_SIZE)
            except NotFound:
                continue
            with open(fd, "rb") as file:
                found[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def kept_work(self, project_id: str, limits: Limits) -> tuple[InputFile, ...]:
        """What earlier runs of the project kept in `work`, within the caps for inputs.

        Raises:
            LimitExceeded: it is more than that.
            StoreUnavailable: it cannot be read; or there is none yet, and it cannot be made for this run.
        """
        left = limits.input_mb << 20
        files: list[InputFile] = []
        try:
            with self._work(project_id) as work:
                for entry in _listing(work, limits):
                    if isinstance(entry, tree.Skip):
                        raise LimitExceeded(f"the project's work has {entry.reason}", field="persist_work")
                    path = tree.text_of(entry.path)
                    if not _can_be_given(path):
                        continue  # kept by an earlier version
                    if len(files) == limits.input_files:
                        message = f"the project's work has more than {limits.input_files} files"
                        raise LimitExceeded(message, field="persist_work")
                    content = tree.read_file(work, entry.path, left)
                    left -= len(content)
                    files.append(InputFile(path, content))
        except tree.Refusal as refusal:
            message = f"the project's work does not fit the run's limit for inputs: {refusal}"
            raise LimitExceeded(message, field="persist_work") from refusal
        except OSError as error:
            folder = (self.project(project_id) / "work").relative_to(self.root.parent)
            raise StoreUnavailable(f"the folder {folder} cannot be used: {error.strerror}") from error
        return tuple(files)

    def keep_work(self, project_id: str, result: RunResult, limits: Limits) -> tuple[Skipped, ...]:
        """What a run has removed from `work` goes, what it changed is written; `artifacts` is its alone.

        Returns what is not kept, because no later run could be given it. OSError as `store`.
        """
        with self._work(project_id) as work:
            for path in result.removed:
                _remove_file(work, path)
            there = (entry for entry in _listing(work, limits) if isinstance(entry, tree.Entry))
            sizes = {path: entry.size for entry in there if _can_be_given(path := tree.text_of(entry.path))}
            room = (limits.input_mb << 20) - _PROGRAM_BYTES - sum(sizes.values())
            changed: list[tuple[str, bytes]] = []
            skipped: list[Skipped] = []
            for artifact in result.artifacts:
                path = artifact.path
                if path.startswith("artifacts/"):
                    continue
                more = artifact.size - sizes.get(path, 0)
                fits = more <= max(0, room) and (path in sizes or len(sizes) + 1 < limits.input_files)
                if fits and _can_be_given(path):
                    room -= more
                    sizes[path] = artifact.size
                    changed.append((path, artifact.content))
                else:
                    skipped.append(Skipped(path, SkipReason.NOT_KEPT))
            _write_files(work, changed)
        return tuple(skipped)

    def remove(self, project_id: str, exec_id: str) -> None:
        shutil.rmtree(self.run_folder(project_id, exec_id), ignore_errors=True)

    def _write_tree(self, folder: Path, files: Sequence[tuple[str, bytes]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _write_files(fd, files)
        finally:
            os.close(fd)

    @contextmanager
    def _work(self, project_id: str) -> Iterator[int]:
        """The project's `work`, for one at a time: runs of a project begin and end while others do."""
        folder = self.project(project_id) / "work"
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)


def _listing(work: int, limits: Limits) -> Iterator[tree.Entry | tree.Skip]:
    # Folders are listed, but not counted: a file has fewer of them than its path may have components.
    return tree.listing(work, max_entries=paths.MAX_COMPONENTS * (limits.input_files + 1))


def _can_be_given(path: str) -> bool:
    try:
        paths.validate(path)
    except PathNotAllowed:
        return False
    return True


def _write_files(folder: int, files: Sequence[tuple[str, bytes]]) -> None:
    try:
        for path, content in files:
            tree.write_file(folder, path, content)
    except tree.Refusal as refusal:
        raise OSError(errno.EIO, str(refusal)) from refusal


def _remove_file(folder: int, path: str) -> None:
    """And the folders that are empty without it. What another run has put in its place stays."""
    remove = os.unlink
    try:
        left = tree.encoded(path)
        while left:
            left, _, name = left.rpartition(b"/")
            parent = tree.open_beneath(folder, left, os.O_DIRECTORY) if left else os.dup(folder)
            try:
                remove(name, dir_fd=parent)
            finally:
                os.close(parent)
            remove = os.rmdir
    except tree.Refusal:
        return
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EISDIR, errno.ENOTEMPTY):
            raise


def manifest(artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    return [{"path": a.path, "size": a.size, "sha256": a.sha256, "mime": a.mime} for a in artifacts]
