"""Packages that were installed once, kept on the host for every run that asks for the same.

    <key>            the digest of an archive; the key says what was asked for, from where, for which Python
    <digest>.files   the archive: a line of JSON that names what is in it, then the files, one after the other
    <key>.lock       held while it is being made

An archive is read whole and its digest worked out each time: one that was changed is none, and is made anew.
Whatever is written is written beside its place and moved there, so a crash leaves nothing half.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from belljar.errors import PackageUnavailable, StoreUnavailable
from belljar.models import InputFile, Package, canonical_json

__all__ = ["Installed", "Stock"]

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.05
HALF_S = 3600.0
"""What was being written so long ago is not being written any more."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Installed:
    """Packages, ready to be put where a program finds them."""

    packages: tuple[Package, ...]
    files: tuple[InputFile, ...]
    """Relative to the folder that Python is to search."""
    from_stock: bool = False


class Stock:
    def __init__(self, folder: Path, max_mb: int) -> None:
        self._folder = folder
        self._max_bytes = max_mb << 20

    def get(self, key: str) -> Installed | None:
        """What is there under this key and whole. May block."""
        try:
            digest = (self._folder / key).read_text("ascii")
            if not _DIGEST.fullmatch(digest):
                return None
            archive = self._folder / f"{digest}.files"
            found = _read(archive, digest)
            os.utime(archive)  # the least used go first
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return found

    def put(self, key: str, installed: Installed) -> None:
        """A disk that does not take it costs a later run time, not this one its packages. May block."""
        half = self._folder / f".{secrets.token_hex(8)}"
        try:
            digest = _write(half, installed)
            half.rename(self._folder / f"{digest}.files")
            half.write_text(digest, "ascii")
            half.rename(self._folder / key)
            self._make_room(keep=digest)
        except OSError as error:
            logger.warning("installed packages cannot be kept: %s", error)
            with suppress(OSError):
                half.unlink()

    @asynccontextmanager
    async def making(self, key: str, patience_s: float) -> AsyncIterator[None]:
        """For one at a time, of all processes. Who waited looks first whether it is there by now.

        Raises:
            PackageUnavailable: others have been at it for too long.
            StoreUnavailable: nothing can be written there.
        """
        path = self._folder / f"{key}.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"packages cannot be kept: {error.strerror}") from error
        try:
            await _locked(fd, patience_s)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)

    def _make_room(self, keep: str) -> None:
        left = self._max_bytes
        archives = [(path.stat(), path) for path in self._folder.glob("*.files")]
        for found, path in sorted(archives, key=lambda one: one[0].st_mtime_ns, reverse=True):
            left -= found.st_size
            if left < 0 and path.stem != keep:
                path.unlink(missing_ok=True)
        for path in self._folder.iterdir():
            with suppress(OSError, ValueError):
                if path.name.startswith("."):
                    stale = path.stat().st_mtime < time.time() - HALF_S
                else:
                    stale = (
                        not path.suffix and not (self._folder / f"{path.read_text('ascii')}.files").exists()
                    )
                if stale:
                    path.unlink()


async def _locked(fd: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                message = "other runs are still installing the same packages; try again"
                raise PackageUnavailable(message, field="packages") from None
            await asyncio.sleep(LOOK_AGAIN_S)


def _write(path: Path, installed: Installed) -> str:
    """Its digest, when it is durable."""
    listed = [[file.path, len(file.content)] for file in installed.files]
    head = canonical_json({"packages": [asdict(one) for one in installed.packages], "files": listed})
    digest = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        for part in (head, b"\n", *(one.content for one in installed.files)):
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(fd)
    return digest.hexdigest()


def _read(path: Path, digest: str) -> Installed:
    """ValueError, LookupError or TypeError if it is not what was written."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        head = file.readline()
        found.update(head)
        said = json.loads(head)
        files = []
        for name, size in said["files"]:
            content = file.read(size)
            found.update(content)
            files.append(InputFile(name, content))
        found.update(file.read())
    if found.hexdigest() != digest:
        raise ValueError("it was changed")
    return Installed(tuple(Package(**one) for one in said["packages"]), tuple(files), from_stock=True)
