"""What a run leaves lands in a project whole or not at all.

Its files are staged below `.belljar/landing`; writing `commit.json` beside them decides; then they are
renamed into place, a new folder by one rename. Whoever opens the project next finishes a landing that was
decided and discards one that was not. Everything is opened by descriptor, below the project's own.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from belljar import paths
from belljar.errors import PathNotAllowed, StoreUnavailable
from belljar.guest import tree

__all__ = [
    "LANDING",
    "OWN_FILE_BYTES",
    "RUNS",
    "Change",
    "Decision",
    "Landing",
    "Refused",
    "append",
    "changes_of",
    "digest",
    "folder_names",
    "locked",
    "replace",
    "writing",
]

RUNS = ".belljar/runs"
LANDING = ".belljar/landing"
OWN_FILE_BYTES = 64 << 20
"""Longest file of ours that is read back."""
_OF_A_RUN = ("events.jsonl", "graph.resolved.json", "sandbox", "state.json")
"""What belljar itself keeps in the folder of a run."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done with the files that are staged."""

    prefix: str
    files: tuple[str, ...]
    result_path: str
    result: str
    trail_path: str
    trail: str

    @classmethod
    def read(cls, folder: int) -> Decision | None:
        """None for what is not there, or is none of ours: the project may be anybody's."""
        try:
            said = json.loads(tree.read_file(folder, "commit.json", OWN_FILE_BYTES))
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


class Landing:
    """Files on their way from a run to the project. Locked: nobody finishes what is still under way."""

    def __init__(self, root: int, name: str) -> None:
        self._root = root
        self._place = f"{LANDING}/{name}"
        self._lock = -1
        self._decided = False
        self.changes: list[Change] = []
        self.refused: list[Refused] = []

    def __enter__(self) -> Self:
        while True:  # until the folder that is locked is the one that is there
            os.close(_made_folder(self._root, f"{self._place}/files"))
            self._lock = tree.open_beneath(self._root, self._place, os.O_DIRECTORY)
            if locked(self._lock) and _exists(self._lock, "files"):
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
        if not locked(self._lock):
            os.close(self._lock)
            return
        decision = Decision.read(self._lock)
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
                before = digest(self._root, target) or ""
            tree.write_file(self._lock, f"files/{target}", content)
        except (PathNotAllowed, tree.Refusal) as error:
            self.refused.append(Refused(name, error.reason))
            return
        self.changes.append(Change.of(target, content, before))

    def commit(self, decision: Decision) -> None:
        replace(self._lock, "commit.json", json.dumps(asdict(decision)).encode())
        self._decided = True
        self._apply(decision)
        self._decided = False

    def _apply(self, decision: Decision) -> None:
        """Again from the start is fine too: what is in place is no longer here."""
        if not self._moved_at_once(decision.prefix):
            for target in decision.files:
                self._move(target)
        replace(self._root, decision.result_path, decision.result.encode())
        append(self._root, decision.trail_path, decision.trail.encode())

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


def replace(root: int, path: str, content: bytes) -> None:
    above, _, name = path.rpartition("/")
    folder = _made_folder(root, above)
    try:
        tree.write_file(folder, f"{name}.new", content)
        os.rename(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def append(root: int, path: str, lines: bytes) -> None:
    fd = tree.open_beneath(root, path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a line that was broken off stays one of its own
            lines = b"\n" + lines
        if os.write(fd, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def locked(fd: int) -> bool:
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
    if paths.is_within(path, (LANDING,)):
        return True
    names = path.removeprefix(f"{RUNS}/").split("/")
    return path.startswith(f"{RUNS}/") and (len(names) < 2 or names[1] in _OF_A_RUN)


@contextmanager
def writing(what: str = "the project cannot be written to") -> Iterator[None]:
    try:
        yield
    except tree.Refusal as refusal:
        raise StoreUnavailable(f"{what}: {refusal}") from refusal
    except OSError as error:
        raise StoreUnavailable(f"{what}: {error.strerror}") from error


def digest(root: int, path: str) -> str | None:
    try:
        fd, _ = tree.open_regular(root, path, _DIGEST_BYTES)
    except tree.Refusal:
        return None
    try:
        found = hashlib.sha256()
        for chunk in tree.read_chunks(fd, _DIGEST_BYTES):
            found.update(chunk)
    except tree.Refusal:
        return None
    finally:
        os.close(fd)
    return found.hexdigest()


def folder_names(root: int, path: str) -> Iterator[str]:
    try:
        fd = tree.open_beneath(root, path, os.O_DIRECTORY)
    except tree.Refusal:
        return
    try:
        names = sorted(os.listdir(fd))
    finally:
        os.close(fd)
    yield from names
