"""Which process it was, and whether it still is: a pid is used again, a pid with its start time is not."""

from __future__ import annotations

import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

__all__ = ["Presence", "epoch", "is_alive", "start_time"]


def start_time(pid: int) -> int:
    """In clock ticks since boot, 0 if there is no such process. proc_pid_stat(5)"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rpartition(b")")[2].split()[19])


def epoch(pid: int | None = None) -> str:
    """Names a process for good, among those of all machines; this one, if no other is given."""
    pid = pid or os.getpid()
    return f"{platform.node()}/{pid}/{start_time(pid)}"


def is_alive(name: str) -> bool:
    """A process of another machine, or in another container, counts as alive: only there one can tell."""
    node, _, pid = name.rpartition("/")[0].rpartition("/")
    return node != platform.node() or not pid.isdecimal() or name == epoch(int(pid))


class Presence:
    """That this process is there, told by a lock that ends with it.

    Whoever sees the same folder can tell, also from another container, which has pids and a name of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.epoch = epoch()
        self._fd = -1
        with suppress(OSError):  # a disk that takes nothing now: then pids have to do
            folder.mkdir(exist_ok=True, mode=0o700)
            self._fd = os.open(self._path(self.epoch), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def is_alive(self, name: str) -> bool:
        try:
            fd = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return is_alive(name)  # of another folder, or longer gone
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def tidy(self) -> None:
        """When all that the dead have left is settled."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if not self.is_alive(unquote(path.name)):
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                self._path(self.epoch).unlink(missing_ok=True)
            os.close(self._fd)

    def _path(self, name: str) -> Path:
        return self._folder / quote(name, safe="")
