"""What a live jar is, seen from outside: read from the kernel, compared with what was granted.

Done after the guest has sealed itself and before the first byte of a program is let in. The guest
is not asked: everything comes from its `/proc` entry and its cgroup. proc(5)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from belljar.errors import PostureMismatch
from belljar.models import canonical_json

_SEALED = {
    "Seccomp": "2",
    "NoNewPrivs": "1",
    "CapInh": "0000000000000000",
    "CapPrm": "0000000000000000",
    "CapEff": "0000000000000000",
    "CapBnd": "0000000000000000",
    "CapAmb": "0000000000000000",
}
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# Of a guest: its channel and wake-up pipe, its areas, its /proc, /dev/null.
_DESCRIPTORS = ("socket:", "pipe:", "/dev/null", "/proc", "/tmp/inputs", "/tmp/work", "/tmp/artifacts")


def namespaces(pid: int | str) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in _NAMESPACES}


def check(
    pid: int,
    *,
    uid: int | None,
    hosts: Mapping[str, str],
    limits: Mapping[str, int] | None,
    held: Mapping[str, int] | None,
) -> str:
    """Digest of the posture of the guest `pid`; PostureMismatch names the first thing that is wrong.

    `uid` is the host uid it must have (None: our own), `hosts` the host's namespaces, none of which it
    may share, `limits` what its cgroup must hold and `held` what it does; both None without a cgroup.
    """
    found: dict[str, object] = {}
    status = _status(pid)
    for field, wanted in _SEALED.items():
        found[field] = _expect(field, status.get(field), wanted)
    wanted_uid = str(os.getuid() if uid is None else uid)
    _expect("Uid", set(status["Uid"].split()), {wanted_uid})
    if uid is not None:
        _expect("Groups", status["Groups"].split(), [])
    for name, its_own in namespaces(pid).items():
        if its_own == hosts[name]:
            raise PostureMismatch(f"the jar shares the host's {name} namespace")
    found["namespaces"] = list(_NAMESPACES)
    found["mounts"] = _mounts(pid)
    for target in _descriptors(pid):
        if not target.startswith(_DESCRIPTORS):
            raise PostureMismatch(f"the jar holds a descriptor of {target.split(':')[0]!r}")
    found["limits"] = _expect("cgroup limits", held, limits)
    return hashlib.sha256(canonical_json(found)).hexdigest()


def _expect(what: str, found: object, wanted: object) -> object:
    if found != wanted:
        raise PostureMismatch(f"{what} of the jar is {found!r}, not {wanted!r}")
    return found


def _status(pid: int) -> dict[str, str]:
    lines = _read(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = bytearray()
        while chunk := os.read(fd, 1 << 16):
            text += chunk
        return text.decode()
    finally:
        os.close(fd)


def _descriptors(pid: int) -> Iterator[str]:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the guest is just closing it
            yield os.readlink(f"/proc/{pid}/fd/{fd}")


def _mounts(pid: int) -> list[str]:
    """Every writable mount that a program can reach must be one of its own tmpfs; the rest is read-only."""
    writable = set()
    root_read_only = False
    for line in _read(f"/proc/{pid}/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        point, options = before.split(" ", 6)[4:6]
        if options.startswith("ro,"):
            root_read_only |= point == "/"
        elif after.startswith("tmpfs "):
            writable.add(point)
        elif not after.startswith("proc "):
            raise PostureMismatch(f"{point} of the jar is a writable {after.split()[0]}")
    if not root_read_only:
        raise PostureMismatch("the root of the jar is writable")
    return sorted(writable)
