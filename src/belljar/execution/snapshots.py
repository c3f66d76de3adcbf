"""The files of a session, kept under their digest: other sessions can be begun from them.

    projects/<project_id>/snapshots/<digest>/{manifest.json, files/…}

The digest is of the manifest (path, size and sha256 of each file), so the same files are the same snapshot. A
folder appears under its name only when all of it is on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import NotFound, Unavailable
from belljar.execution.workspace import Workspace, manifest
from belljar.guest import tree
from belljar.models import Artifact, InputFile, canonical_json

__all__ = ["Snapshot", "Snapshots"]

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

    def save(self, project_id: str, artifacts: tuple[Artifact, ...]) -> Snapshot:
        """
        Raises:
            Unavailable: the disk does not take it; nothing of it is left.
        """
        listed = sorted(manifest(artifacts), key=lambda entry: str(entry["path"]))
        digest = hashlib.sha256(canonical_json(listed)).hexdigest()
        home = self._home(project_id)
        folder = home / digest
        if not folder.exists():
            half = home / f".{digest}-{secrets.token_hex(4)}"
            try:
                (half / "files").mkdir(parents=True)
                _write(half / "files", artifacts)
                (half / "manifest.json").write_text(json.dumps(listed, indent=2))
                half.rename(folder)
            except OSError as error:
                shutil.rmtree(half, ignore_errors=True)
                if not folder.exists():  # else another was faster
                    raise Unavailable(f"the snapshot cannot be kept: {error.strerror}") from error
        return _summary(digest, project_id, listed)

    def load(self, project_id: str, digest: str) -> tuple[InputFile, ...]:
        folder = self._existing(project_id, digest)
        listed = json.loads((folder / "manifest.json").read_text())
        root = os.open(folder / "files", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return tuple(
                InputFile(entry["path"], tree.read_file(root, entry["path"], entry["size"]))
                for entry in listed
            )
        finally:
            os.close(root)

    def all_of(self, project_id: str) -> list[Snapshot]:
        found = []
        for folder in sorted(self._home(project_id).glob("*/manifest.json")):
            if _DIGEST.fullmatch(folder.parent.name):
                found.append(_summary(folder.parent.name, project_id, json.loads(folder.read_text())))
        return found

    def remove(self, project_id: str, digest: str) -> None:
        shutil.rmtree(self._existing(project_id, digest))

    def _home(self, project_id: str) -> Path:
        return self._workspace.project(project_id) / "snapshots"

    def _existing(self, project_id: str, digest: str) -> Path:
        folder = self._home(project_id) / digest
        if not _DIGEST.fullmatch(digest) or not folder.is_dir():
            raise NotFound("there is no such snapshot of this project", field="snapshot")
        return folder


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
