"""Memory of a jar where no cgroup can be had: sum up its processes, and end them when it is too much.

The weaker layer, and named so in every result: it looks 40 times a second, so a program can pass
its limit for a moment, and it costs the host some CPU. One process alone is held by RLIMIT_DATA
before this notices; this is for many processes together, and for files in the jar's tmpfs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

INTERVAL_S = 0.025
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
_TMPFS = ("workspace/work", "tmp", "dev/shm")


class Watchdog:
    """Counts what a cgroup would count. `pid` is the guest's, as the host numbers it."""

    def __init__(self, pid: int, memory_bytes: int, end_programs: Callable[[], object]) -> None:
        self._pid = pid
        self._memory_bytes = memory_bytes
        self._end_programs = end_programs
        self._peak = 0
        self._pids = self._pids_peak = 0
        self._kills = 0
        self._cpu_us = 0
        self._task = asyncio.create_task(self._watch())

    def counters(self) -> dict[str, int]:
        memory = self._look()
        return {
            "memory_now": memory,
            "memory_peak": self._peak,
            "oom_kills": self._kills,
            "cpu_us": self._cpu_us,
            "pids_now": self._pids,
            "pids_peak": self._pids_peak,
            "pids_refused": 0,
        }

    def close(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:  # until closed, which destroying the jar does
            if self._look() > self._memory_bytes:
                self._kills += 1
                self._end_programs()
            await asyncio.sleep(INTERVAL_S)

    def _look(self) -> int:
        """The jar's memory now."""
        pids = set(_descendants(self._pid))  # one whose parent dies meanwhile is met twice
        memory = sum(map(_proportional_memory, pids)) + _files(self._pid)
        self._peak = max(self._peak, memory)
        self._pids = len(pids)
        self._pids_peak = max(self._pids_peak, self._pids)
        with suppress(OSError):
            with open(f"/proc/{self._pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
            self._cpu_us = sum(map(int, fields[11:15])) * _TICK_US  # its own, and of what it has reaped
        return memory


def _descendants(pid: int) -> Iterator[int]:
    """The process and all below it. An orphan's parent is the guest, so none is missed."""
    known = [pid]
    while known:  # a loop: how deep a program forks is the program's choice
        pid = known.pop()
        yield pid
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
                    known += map(int, file.read().split())


def _proportional_memory(pid: int) -> int:
    """What it shares with others, as forks do, counts in part for each."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _files(pid: int) -> int:
    used = 0
    for folder in _TMPFS:
        with suppress(OSError):
            space = os.statvfs(f"/proc/{pid}/root/{folder}")
            used += (space.f_blocks - space.f_bfree) * space.f_frsize
    return used
