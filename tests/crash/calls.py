"""Which system calls of a service matter, and how often each thread makes them: the instants to die at.

Found by watching one start and one run, so that the list follows what the service really does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.deaths import Deaths, Service, attached

CALLS = (
    "write,writev,pwrite64,sendto,sendmsg,fsync,fdatasync,ftruncate,link,linkat,unlink,unlinkat,rename,renameat,"
    "renameat2,mkdir,mkdirat,rmdir,openat,openat2,fchmod,clone,clone3,vfork,pidfd_send_signal,kill"
)
"""What leaves something outside the process, or tells somebody."""
_LINE = re.compile(r"(\d+) +(\w+)\(")  # the rest of a call that was interrupted begins otherwise


class Call(NamedTuple):
    thread: int
    """Counted from the first."""
    name: str
    number: int
    """The how manieth of that name in that thread."""


def of_a_run(deaths: Deaths, log: Path) -> list[Call]:
    """In the order in which they are made, from a request's arrival to its answer."""
    threads = deaths.service.threads
    with attached(threads, "-e", f"trace={CALLS}", log=log):
        deaths.survive_one()
    return [Call(threads.index(tid), name, number) for tid, name, number, _ in _counted(log)]


def of_a_start(data_dir: Path, log: Path) -> list[Call]:
    """Those that touch the data directory, from nothing there to the first call that is taken."""
    strace = ["strace", "-f", "-b", "execve", "-qq", "-y", "-o", str(log), "-e", f"trace={CALLS}"]
    Service(data_dir, under=strace).end()
    threads: dict[int, int] = {}
    return [
        Call(threads.setdefault(tid, len(threads)), name, number)
        for tid, name, number, line in _counted(log)
        if str(data_dir) in line
    ]


def _counted(log: Path) -> Iterator[tuple[int, str, int, str]]:
    made: Counter[tuple[int, str]] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        if match := _LINE.match(line):
            tid, name = int(match[1]), match[2]
            made[tid, name] += 1
            yield tid, name, made[tid, name], line
