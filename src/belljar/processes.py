"""Which process it was: a pid is used again, a pid with its start time is not."""

from __future__ import annotations

from pathlib import Path

__all__ = ["start_time"]


def start_time(pid: int) -> int:
    """In clock ticks since boot, 0 if there is no such process. proc_pid_stat(5)"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
