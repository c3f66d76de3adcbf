"""Takes the files that a run left off the wire, and believes no name, size or count but its own."""

from __future__ import annotations

import hashlib

from belljar.engines.base import Collected
from belljar.engines.mime import mime_of
from belljar.guest import protocol, tree
from belljar.models import Artifact, Skipped, SkipReason

MAX_DEPTH = 64
"""Components of a path in an area; the area's own name may stand before them."""


class Collector:
    """Frames of one `collect`, in order: a note names a file, its bytes follow, EOF ends it."""

    def __init__(self, files_left: int, bytes_left: int, skips_left: int) -> None:
        self._files_left = files_left
        self._bytes_left = bytes_left
        self._skips_left = skips_left
        self._artifacts: list[Artifact] = []
        self._skipped: list[Skipped] = []
        self._files: set[str] = set()
        self._folders: set[str] = set()
        """Which the files lie in."""
        self._path: str | None = None
        """Of the file that is under way."""
        self._body = bytearray()
        self.done = False

    def take(self, frame: protocol.Frame) -> None:
        """ProtocolError, ValueError, LookupError or TypeError when the guest broke the rules."""
        if frame.kind == protocol.NOTE:
            self._note(frame)
        elif frame.kind == protocol.END and self._path is None:
            self.done = True
        elif frame.kind == protocol.DATA and self._path is not None:
            self._bytes_left -= len(frame.payload)
            if self._bytes_left < 0:
                raise protocol.ProtocolError("too many bytes")
            self._body += frame.payload
        elif frame.kind == protocol.EOF and self._path is not None:
            self._end_file(self._path)
        else:
            raise protocol.ProtocolError("a frame out of order")

    def collected(self) -> Collected:
        return Collected(tuple(self._artifacts), tuple(self._skipped))

    def _note(self, frame: protocol.Frame) -> None:
        note = frame.json()
        if "skipped" in note:  # also instead of the end of a file that could not be read to its end
            self._path = None
            self._body.clear()
            self._skips_left -= 1
            self._skipped.append(Skipped(_shown(note["skipped"]), SkipReason(note["reason"])))
        elif self._path is None:
            self._files_left -= 1
            self._path = _leading_nowhere(_shown(note["file"]))
        else:
            raise protocol.ProtocolError("a file within a file")
        if self._files_left < 0 or self._skips_left < 0:
            raise protocol.ProtocolError("too many files")

    def _end_file(self, path: str) -> None:
        folders = {path[:at] for at, letter in enumerate(path) if letter == "/"}
        if path in self._files or path in self._folders or folders & self._files:
            self._skipped.append(Skipped(path, SkipReason.SAME_NAME))
        else:
            content = bytes(self._body)
            digest = hashlib.sha256(content).hexdigest()
            self._artifacts.append(Artifact(path, len(content), digest, mime_of(path), content))
            self._files.add(path)
            self._folders |= folders
        self._path = None
        self._body.clear()


def _shown(path: object) -> str:
    """A name that can be printed, whatever was sent as one."""
    if not isinstance(path, str):
        raise protocol.ProtocolError("a name that is no text")
    return tree.display_name(path.encode("utf-8", "surrogateescape"))


def _leading_nowhere(path: str) -> str:
    """The name of a file that will be kept must not point out of the folder it is kept in."""
    if "\\x00" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise protocol.ProtocolError("a name that is no plain path")
    if path.count("/") > MAX_DEPTH:
        raise protocol.ProtocolError("a file that lies too deep")
    return path
