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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from belljar.audit.records import ExecRecord
from belljar.errors import BadRequest, NotFound
from belljar.guest import tree
from belljar.models import Artifact, RunResult

_ANY_SIZE = 1 << 62
_JSON = json.JSONEncoder(default=str)
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

    def work_folder(self, project_id: str) -> Path:
        return self.project(project_id) / "work"

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
    ) -> None:
        """Write down what ran and what it left. OSError if the disk does not take it."""
        folder = self.run_folder(project_id, exec_id)
        folder.mkdir(parents=True, exist_ok=True)
        if code is not None:
            (folder / "code.txt").write_bytes(code.encode("utf-8", "surrogatepass"))
        (folder / "stdout.txt").write_bytes(result.stdout)
        (folder / "stderr.txt").write_bytes(result.stderr)
        (folder / "events.jsonl").write_bytes(b"".join(events))
        if result.artifacts:
            self._write_tree(folder / "files", [(a.path, a.content) for a in result.artifacts])
        listed = map(_JSON.encode, manifest(result.artifacts))
        (folder / "manifest.json").write_text(_a_line_each("[", listed, "]"), "ascii")
        told = (f"{_JSON.encode(name)}: {_JSON.encode(value)}" for name, value in meta.items())
        (folder / "meta.json").write_text(_a_line_each("{", told, "}"), "ascii")

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

    def remove(self, project_id: str, exec_id: str) -> None:
        shutil.rmtree(self.run_folder(project_id, exec_id), ignore_errors=True)

    def _write_tree(self, folder: Path, files: Sequence[tuple[str, bytes]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_files(fd, files)
        finally:
            os.close(fd)


def write_files(folder: int, files: Sequence[tuple[str, bytes]]) -> None:
    """OSError, too, where the names of the files are to blame."""
    try:
        for path, content in files:
            tree.write_file(folder, path, content)
    except tree.Refusal as refusal:
        raise OSError(errno.EIO, str(refusal)) from refusal


def _a_line_each(begin: str, rows: Iterable[str], end: str) -> str:
    """JSON for people, too. What `json` indents is not written by its fast part."""
    return "\n".join((begin, ",\n".join(rows), end, ""))


def manifest(artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    return [{"path": a.path, "size": a.size, "sha256": a.sha256, "mime": a.mime} for a in artifacts]
