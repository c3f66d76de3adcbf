"""What a live jar is, seen from outside: read from the kernel, compared with what was granted.

Done after the guest has sealed itself and before the first byte of a program is let in. The guest
is not asked: everything comes from its `/proc` entry and its cgroup. proc(5)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from belljar.engines import inspection
from belljar.engines.inspection import NAMESPACES, SEALED, check_open_files, expect, namespaces
from belljar.errors import PostureMismatch
from belljar.models import canonical_json

# Of a guest: its wake-up pipe and those of the program to come, its areas, its /proc, /dev/null.
_DESCRIPTORS = ("socket:", "pipe:", "/dev/null", "/proc", "/tmp/inputs", "/tmp/work", "/tmp/artifacts")
_READ_ONLY = {"/", "/proc", "/workspace/inputs"}
_WRITABLE = {
    "/workspace/work": "tmpfs",
    "/workspace/artifacts": "tmpfs",
    "/tmp": "tmpfs",
    "/dev/shm": "tmpfs",
    "/dev/pts": "devpts",
}
_NO_PROGRAMS = {"/proc", "/tmp", "/dev/shm", "/dev/pts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a jar must be, beyond what every jar is."""

    uid: int | None
    """Its host uid; None is our own, for an ordinary user's."""
    namespaces: Mapping[str, str]
    """The host's, none of which it may share."""
    nofile: int
    cgroup: str | None
    """Name of its cgroup; None where none can be had."""
    controllers: Collection[str]
    limits: Mapping[str, int]
    """What the cgroup must hold; empty without one."""


def check(pid: int, expected: Expected, held: Mapping[str, int]) -> str:
    """Digest of the posture of the guest `pid`; PostureMismatch names the first thing that is wrong.

    `held` is what its cgroup does hold.
    """
    status = inspection.status(pid)
    for field, wanted in SEALED.items():
        expect(field, status.get(field), wanted)
    expect("Uid", set(status["Uid"].split()), {str(os.getuid() if expected.uid is None else expected.uid)})
    if expected.uid is not None:
        expect("Groups", status["Groups"].split(), [])
    for name, its_own in namespaces(pid).items():
        if its_own == expected.namespaces[name]:
            raise PostureMismatch(f"the jar shares the host's {name} namespace")
    _check_mounts(pid)
    _check_descriptors(pid)
    check_open_files(pid, expected.nofile)
    if expected.cgroup is not None:
        _check_cgroup(pid, expected.cgroup, expected.controllers)
    expect("cgroup limits", dict(held), dict(expected.limits))
    found = {
        "sealed": SEALED,
        "namespaces": NAMESPACES,
        "read_only": _READ_ONLY,
        "writable": _WRITABLE,
        "nofile": expected.nofile,
        "limits": dict(held),
    }
    return hashlib.sha256(canonical_json(found)).hexdigest()


def _check_mounts(pid: int) -> None:
    """What a program can write to is exactly its own tmpfs, and terminals of its own."""
    mounts = inspection.mounts(pid)
    writable = {point for point, mount in mounts.items() if "rw" in mount.options}
    for point in sorted(writable - _WRITABLE.keys()):
        raise PostureMismatch(f"{point} of the jar is writable")
    expect("writable places", writable, set(_WRITABLE))
    for point, kind in _WRITABLE.items():
        expect(f"file system of {point}", mounts[point].kind, kind)
    for point in sorted(_NO_PROGRAMS):
        if "noexec" not in mounts[point].options:
            raise PostureMismatch(f"{point} of the jar lets programs be run from it")


def _check_descriptors(pid: int) -> None:
    """One socket, the channel, and nothing that leads out of the jar."""
    sockets = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:  # the guest is just closing it
            continue
        sockets += target.startswith("socket:")
        if sockets > 1 or not target.startswith(_DESCRIPTORS):
            raise PostureMismatch(f"the jar holds a descriptor of {target.partition(':')[0]!r} too many")


def _check_cgroup(pid: int, name: str, controllers: Collection[str]) -> None:
    """It must be where the limits are, in every tree that holds one of them."""
    found = inspection.cgroups(pid)
    for controller in controllers:
        if not found.get(controller, "").endswith(f"/{name}"):
            raise PostureMismatch(f"the jar is not in its cgroup for {controller}")
