"""The `work` of a project, kept on the host between those of its runs that ask for it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from belljar import paths
from belljar.errors import LimitExceeded, PathNotAllowed, StoreUnavailable
from belljar.execution.workspace import write_files
from belljar.guest import tree
from belljar.models import InputFile, Limits, RunResult, Skipped, SkipReason

_PROGRAM_BYTES = 64 << 10
"""Of what a run may be given, what kept work leaves for the next program itself; and one file."""


class KeptWork:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, limits: Limits) -> tuple[InputFile, ...]:
        """What earlier runs kept, within the caps for inputs.

        Raises:
            LimitExceeded: it is more than that.
            StoreUnavailable: it cannot be read; or there is none yet, and it cannot be made for this run.
        """
        left = limits.input_mb << 20
        files: list[InputFile] = []
        try:
            with self._held() as work:
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
            folder = self._folder.relative_to(self._folder.parents[2])
            raise StoreUnavailable(f"the folder {folder} cannot be used: {error.strerror}") from error
        return tuple(files)

    def keep(self, result: RunResult, limits: Limits) -> tuple[Skipped, ...]:
        """What a run has removed from `work` goes, what it changed is written; `artifacts` is its alone.

        Returns what is not kept, because no later run could be given it.
        OSError if the disk does not take the rest.
        """
        with self._held() as work:
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
            write_files(work, changed)
        return tuple(skipped)

    @contextmanager
    def _held(self) -> Iterator[int]:
        """For one at a time: runs of a project begin and end while others do."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
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
