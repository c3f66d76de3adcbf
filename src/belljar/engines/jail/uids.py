"""A host uid of its own for every running jar, when root starts them.

Jars that share a host uid share its kernel quotas (keys, pipes, inotify watches) and could signal
each other if another wall fell. A service locks one block of ids, so that two services on one
machine never hand out the same; an ordinary user has one uid, and all jars are it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from belljar.errors import EngineUnavailable

BLOCK = 1024
"""Jars that one service can have at a time."""
_BLOCKS = 256
_LOCKS = Path("/run/belljar/uids")


class Uids:
    def __init__(self, base: int) -> None:
        self._lock_fd: int | None = None
        if os.getuid() != 0:
            self._free: list[int] | None = None
            return
        _LOCKS.mkdir(parents=True, exist_ok=True, mode=0o755)
        for block in range(_BLOCKS):
            fd = os.open(_LOCKS / str(block), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            self._lock_fd = fd
            self._free = list(range(base + (block + 1) * BLOCK - 1, base + block * BLOCK - 1, -1))
            return
        raise EngineUnavailable(f"all {_BLOCKS} blocks of uids are taken: too many services on this machine")

    def take(self) -> int:
        """As seen by the launcher: an ordinary user's launcher is uid 0 of its own namespace."""
        if self._free is None:
            return 0
        if not self._free:
            raise EngineUnavailable(f"{BLOCK} jars are running; no uid is left for another")
        return self._free.pop()

    def give_back(self, uid: int) -> None:
        if self._free is not None:
            self._free.append(uid)

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
