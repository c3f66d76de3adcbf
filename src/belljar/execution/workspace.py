"""A project's folder on the host, and what each run leaves in it.

    projects/<project_id>/inputs/             files that every run of the project may read
    projects/<project_id>/work/               kept between runs that ask for it (`persist_work`)
    projects/<project_id>/artifacts/<exec_id>/
        code.txt  stdout.txt  stderr.txt  manifest.json  meta.json  events.jsonl  files/…

Nothing here is ever mounted into a jar: files go in and come out through the guest's channel.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from belljar.audit.records import ExecRecord
from belljar.errors import BadRequest, LimitExceeded, NotFound
from belljar.guest import tree
from belljar.models import Artifact, InputFile, Limits, RunResult

_ANY_SIZE = 1 << 62
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
        (folder / "manifest.json").write_text(json.dumps(manifest(result.artifacts), indent=2))
        (folder / "meta.json").write_text(json.dumps(meta, indent=2, default=str))
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
            raise NotFound(f"this run left no {path!r}") from None
        try:
            return tree.open_regular(folder, path, cap)
        except tree.Refusal:
            raise NotFound(f"this run left no {path!r}") from None
        finally:
            os.close(folder)

    def digests(self, record: ExecRecord) -> dict[str, str] | None:
        """Path to sha256 of what is there of a run's artifacts; None when retention took its folder."""
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
        """What earlier runs of the project kept in `work`, within the caps for inputs."""
        folder = self.project(project_id) / "work"
        folder.mkdir(parents=True, exist_ok=True)
        left = limits.input_mb << 20
        files = []
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for entry in tree.listing(fd, max_entries=limits.input_files):
                if isinstance(entry, tree.Skip):
                    raise LimitExceeded(f"the project's work has {entry.reason}", field="persist_work")
                content = tree.read_file(fd, entry.path, left)
                left -= len(content)
                files.append(InputFile(os.fsdecode(entry.path), content))
        except tree.Refusal as refusal:
            message = f"the project's work does not fit the run's limit for inputs: {refusal}"
            raise LimitExceeded(message, field="persist_work") from refusal
        finally:
            os.close(fd)
        return tuple(files)

    def keep_work(self, project_id: str, artifacts: Sequence[Artifact]) -> None:
        """Changed files of `work` go back; what is in `artifacts` is the run's alone. OSError as `store`."""
        changed = [(a.path, a.content) for a in artifacts if not a.path.startswith("artifacts/")]
        self._write_tree(self.project(project_id) / "work", changed)

    def remove(self, project_id: str, exec_id: str) -> None:
        shutil.rmtree(self.run_folder(project_id, exec_id), ignore_errors=True)

    def _write_tree(self, folder: Path, files: Sequence[tuple[str, bytes]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for path, content in files:
                tree.write_file(fd, path, content)
        except tree.Refusal as refusal:
            raise OSError(errno.EIO, str(refusal)) from refusal
        finally:
            os.close(fd)


def manifest(artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    return [{"path": a.path, "size": a.size, "sha256": a.sha256, "mime": a.mime} for a in artifacts]
