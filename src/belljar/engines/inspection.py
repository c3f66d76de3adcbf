"""What the kernel says of a live process: the readings from which engines judge what they made. proc(5)"""

from __future__ import annotations

import os
from typing import NamedTuple

from belljar.errors import PostureMismatch

SEALED = {
    "Seccomp": "2",
    "NoNewPrivs": "1",
    "CapInh": "0000000000000000",
    "CapPrm": "0000000000000000",
    "CapEff": "0000000000000000",
    "CapBnd": "0000000000000000",
    "CapAmb": "0000000000000000",
}
"""Lines of `/proc/<pid>/status` that are the same for every jar."""
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


class Mount(NamedTuple):
    options: list[str]
    """Of this place."""
    kind: str
    bounds: list[str]
    """Options of the file system itself, wherever it is mounted."""


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise PostureMismatch(f"{what} of the jar is {found!r}, not {wanted!r}")


def namespaces(pid: int | str) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}


def status(pid: int) -> dict[str, str]:
    lines = _read(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mounts(pid: int) -> dict[str, Mount]:
    """By place; of mounts on one place the last one counts."""
    found = {}
    for line in _read(f"/proc/{pid}/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        point, options = before.split(" ", 6)[4:6]
        kind, _, bounds = after.split(" ", 2)
        found[point] = Mount(options.split(","), kind, bounds.split(","))
    return found


def cgroups(pid: int) -> dict[str, str]:
    """Its place in the tree of each controller; `v2` is the unified one."""
    found = {}
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(",") if names else ["v2"], path))
    return found


def check_open_files(pid: int, nofile: int) -> None:
    for line in _read(f"/proc/{pid}/limits").splitlines():
        if line.startswith("Max open files"):
            if max(map(int, line.split()[3:5])) > nofile:
                raise PostureMismatch(f"the jar may have more open files than {nofile}")
            return
    raise PostureMismatch("the jar has no limit of open files")


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = bytearray()
        while chunk := os.read(fd, 1 << 16):
            text += chunk
        return text.decode()
    finally:
        os.close(fd)
