"""Requests that wait for a person, whole, on disk: after a restart the very same bytes can be run.

One file for each, readable by the service alone, gone as soon as the wait is over. It is the only place where
values of environment variables are written.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from belljar.errors import StoreUnavailable
from belljar.execution.submissions import Submission
from belljar.models import InputFile, Language, RunRequest, Start

__all__ = ["Pending"]

_NOT_KEPT = frozenset({"request", "skill", "surroundings"})
"""The skill's layer is read anew from the skill, and the session's files from the session: if they have
changed, so has what would run."""


class Pending:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, exec_id: str, submission: Submission) -> None:
        """
        Raises:
            StoreUnavailable: the disk does not take it.
        """
        text = json.dumps(_plain(submission))
        half = self._half(exec_id)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.rename(self._path(exec_id))
        except OSError as error:
            half.unlink(missing_ok=True)
            raise StoreUnavailable(f"the request cannot be kept: {error.strerror}") from error

    def load(self, exec_id: str) -> Submission | None:
        """None where it is gone or cannot be read: then it cannot be run either."""
        try:
            return _submission(json.loads(self._path(exec_id).read_text(encoding="ascii")))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def remove(self, exec_id: str) -> None:
        for path in (self._path(exec_id), self._half(exec_id)):
            path.unlink(missing_ok=True)

    def known(self) -> list[str]:
        """Ids of what is kept, or was about to be when the service was killed."""
        try:
            return [path.stem.removeprefix(".") for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def _path(self, exec_id: str) -> Path:
        return self._folder / f"{exec_id}.json"

    def _half(self, exec_id: str) -> Path:
        return self._folder / f".{exec_id}.json"


def _plain(submission: Submission) -> dict[str, Any]:
    request = submission.request
    kept = {
        each.name: getattr(submission, each.name) for each in fields(submission) if each.name not in _NOT_KEPT
    }
    asked = {each.name: getattr(request, each.name) for each in fields(request)}
    asked.update(
        env=dict(request.env),
        stdin=_text(request.stdin),
        files=_files(request.files),
        inputs=_files(request.inputs),
    )
    return {**kept, "overrides": dict(submission.overrides), "request": asked}


def _submission(data: dict[str, Any]) -> Submission:
    asked = data.pop("request")
    for name in ("command", "args", "output_files"):
        asked[name] = None if asked[name] is None else tuple(asked[name])
    asked["packages"] = tuple(asked.get("packages", ()))
    asked["inline"] = None if asked.get("inline") is None else tuple(asked["inline"])
    for name in ("files", "inputs"):
        asked[name] = tuple(InputFile(path, base64.b64decode(content)) for path, content in asked[name])
    asked["stdin"] = base64.b64decode(asked["stdin"])
    asked["language"] = None if asked["language"] is None else Language(asked["language"])
    asked["start"] = Start(asked["start"])
    return Submission(request=RunRequest(**asked), **data)


def _files(files: Iterable[InputFile]) -> list[tuple[str, str]]:
    return [(file.path, _text(file.content)) for file in files]


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
