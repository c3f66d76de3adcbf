"""A mount namespace of its own: what others mount is not seen in it, and what is left in it ends with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_HOLD = '"$@" && echo held && exec sleep infinity'


class Place:
    def __init__(self, *first: str) -> None:
        """`first` is run in it; needs root."""
        own = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _HOLD, "sh"]
        self._holder = subprocess.Popen([*own, *(first or ["true"])], stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "held\n"
        self._proc = Path(f"/proc/{self._holder.pid}")
        self.enter = ["nsenter", f"--mount={self._proc}/ns/mnt"]
        """Put before a command, it runs inside."""

    def path(self, inside: Path) -> Path:
        """The same from outside."""
        return Path(f"{self._proc}/root{inside}")

    def mounts(self) -> set[str]:
        return {line.split()[4] for line in (self._proc / "mountinfo").read_text().splitlines()}

    def close(self) -> None:
        with self._holder as holder:
            holder.kill()


def may_mount() -> bool:
    return os.getuid() == 0
