"""The files of a session, kept under their digest: other sessions can be begun from them.

    projects/<project_id>/snapshots/<digest>/{manifest.json, files/…}

The digest is of the manifest (path, size and sha256 of each file), so the same files are the same snapshot. A
folder has its name only while all of it is on disk. They stay until they are removed, so a project may have
only so many.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import LimitExceeded, NotFound, Unavailable
from belljar.execution.workspace import Workspace, manifest
from belljar.guest import tree
from belljar.models import Artifact, InputFile, canonical_json

__all__ = ["Snapshot", "Snapshots"]

MAX_SNAPSHOTS = 100
MAX_BYTES = 4 << 30
"""Of all snapshots of a project."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    digest: str
    project_id: str
    files: int
    size: int


class Snapshots:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._saving = threading.Lock()
        """One at a time, so that what is counted is all there is."""

    def save(self, project_id: str, artifacts: tuple[Artifact, ...]) -> Snapshot:
        """
        Raises:
            LimitExceeded: the project has as many as it may have.
            Unavailable: the disk does not take it; nothing of it is left.
        """
        listed = sorted(manifest(artifacts), key=lambda entry: str(entry["path"]))
        digest = hashlib.sha256(canonical_json(listed)).hexdigest()
        snapshot = _summary(digest, project_id, listed)
        folder = self._home(project_id) / digest
        with self._saving:
            if not folder.exists():
                self._check_room(snapshot)
                half = _unnamed(folder)
                try:
                    (half / "files").mkdir(parents=True)
                    _write(half / "files", artifacts)
                    (half / "manifest.json").write_text(json.dumps(listed, indent=2), "utf-8")
                    half.rename(folder)
                except OSError as error:
                    shutil.rmtree(half, ignore_errors=True)
                    if not folder.exists():  # else another process was faster
                        raise Unavailable(f"the snapshot cannot be kept: {error.strerror}") from error
        return snapshot

    def _check_room(self, snapshot: Snapshot) -> None:
        known = self.all_of(snapshot.project_id)
        size = sum(one.size for one in known)
        if len(known) >= MAX_SNAPSHOTS or size + snapshot.size > MAX_BYTES:
            raise LimitExceeded(
                f"project {snapshot.project_id} has {len(known)} snapshots of {size} bytes, and may have "
                f"{MAX_SNAPSHOTS} of {MAX_BYTES}; remove one that is not needed any more",
                field="project_id",
            )

    def load(self, project_id: str, digest: str) -> tuple[InputFile, ...]:
        folder = self._folder(project_id, digest)
        try:
            listed = json.loads((folder / "manifest.json").read_text("utf-8"))
            root = os.open(folder / "files", os.O_RDONLY | os.O_DIRECTORY)
            try:
                return tuple(
                    InputFile(entry["path"], tree.read_file(root, entry["path"], entry["size"]))
                    for entry in listed
                )
            finally:
                os.close(root)
        except (OSError, tree.Refusal) as error:
            raise self._fault(folder, error) from error

    def all_of(self, project_id: str) -> list[Snapshot]:
        found = []
        for listed in sorted(self._home(project_id).glob("*/manifest.json")):
            if _DIGEST.fullmatch(listed.parent.name):
                with suppress(FileNotFoundError):  # it is just being removed
                    files = json.loads(listed.read_text("utf-8"))
                    found.append(_summary(listed.parent.name, project_id, files))
        return found

    def remove(self, project_id: str, digest: str) -> None:
        folder = self._folder(project_id, digest)
        gone = _unnamed(folder)
        try:
            folder.rename(gone)
        except OSError as error:
            raise self._fault(folder, error) from error
        shutil.rmtree(gone, ignore_errors=True)

    def _home(self, project_id: str) -> Path:
        return self._workspace.project(project_id) / "snapshots"

    def _folder(self, project_id: str, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise _missing()
        return self._home(project_id) / digest

    @staticmethod
    def _fault(folder: Path, error: Exception) -> NotFound | Unavailable:
        """Perhaps it was removed meanwhile."""
        return Unavailable(f"the snapshot cannot be used: {error}") if folder.exists() else _missing()


def _missing() -> NotFound:
    return NotFound("there is no such snapshot of this project", field="snapshot")


def _unnamed(folder: Path) -> Path:
    """Where it is not whole yet, or not any more."""
    return folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")


def _write(folder: Path, artifacts: tuple[Artifact, ...]) -> None:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for artifact in artifacts:
            tree.write_file(root, artifact.path, artifact.content)
    except tree.Refusal as refusal:
        raise OSError(28, str(refusal)) from refusal
    finally:
        os.close(root)


def _summary(digest: str, project_id: str, listed: list[dict[str, object]]) -> Snapshot:
    sizes = [int(str(entry["size"])) for entry in listed]
    return Snapshot(digest, project_id, len(sizes), sum(sizes))
