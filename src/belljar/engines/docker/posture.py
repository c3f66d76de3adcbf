"""What a live container is, seen from outside: its `/proc` entry and its cgroup, compared with the grant.

Done after the guest is ready and before the first byte of a program is let in. Of a gVisor sandbox the host
sees the process that is its kernel: that it is confined, and by which limits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from belljar.engines import inspection
from belljar.engines.inspection import SEALED, expect
from belljar.engines.jail.cgroup import Cgroup, Parents
from belljar.errors import EngineUnavailable, PostureMismatch
from belljar.models import canonical_json

_SHARED_WITH_HOST = {"user"}  # unless the engine remaps ids
_ROOTS_OWN = {"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys/fs/cgroup"}
"""Mounted writable in every container, and root's: what is left of them to uid 1000 is its own processes."""


def find_cgroup(pid: int, container: str) -> tuple[Cgroup, Parents]:
    """The cgroup of a container's first process. The descriptors are the caller's to close.

    That its name is the container's shows that `pid` is a process of this machine, and the right one.
    """
    places = inspection.cgroups(pid)
    mounted = _hierarchies()
    parents: Parents = {}
    name = ""
    for controller in ("memory", "pids", "cpu", "cpuacct", "v2"):
        place = places.get(controller)
        if place is None or controller not in mounted or container not in place:
            continue
        if controller == "v2" and not _holds_limits(mounted["v2"] + place):
            continue
        folder, _, name = place.rpartition("/")
        parents[controller] = os.open(mounted[controller] + (folder or "/"), os.O_RDONLY | os.O_DIRECTORY)
    if not parents:
        raise EngineUnavailable(
            "the container's processes cannot be seen from here, so it cannot be checked; the docker engine "
            "has to run on this machine, outside of any container",
            field="engine",
        )
    return Cgroup(parents, name), parents


def check(
    pid: int,
    *,
    host: Mapping[str, str],
    nofile: int,
    writable: Collection[str],
    wanted: Mapping[str, int],
    held: Mapping[str, int],
) -> str:
    """Digest of the posture of a container's first process; PostureMismatch names what is wrong."""
    status = inspection.status(pid)
    for field, value in SEALED.items():
        expect(field, status.get(field), value)
    expect("Uid", set(status["Uid"].split()), {"1000"})
    expect("Gid", set(status["Gid"].split()), {"1000"})
    expect("Groups", set(status["Groups"].split()) - {"1000"}, set())
    with suppress(PermissionError):  # only root may look; to others the engine's word has to do
        for name, its_own in inspection.namespaces(pid).items():
            if name not in _SHARED_WITH_HOST and its_own == host[name]:
                raise PostureMismatch(f"the container shares the host's {name} namespace")
    _check_mounts(pid, writable)
    inspection.check_open_files(pid, nofile)
    expect("cgroup limits", dict(held), dict(wanted))
    found = {"sealed": SEALED, "writable": sorted(writable), "nofile": nofile, "limits": dict(held)}
    return hashlib.sha256(canonical_json(found)).hexdigest()


def check_sandbox(pid: int, *, wanted: Mapping[str, int], held: Mapping[str, int]) -> str:
    """The same of gVisor's kernel process."""
    status = inspection.status(pid)
    for field in ("Seccomp", "NoNewPrivs"):
        expect(field, status.get(field), SEALED[field])
    expect("cgroup limits", dict(held), dict(wanted))
    return hashlib.sha256(canonical_json({"runtime": "gvisor", "limits": dict(held)})).hexdigest()


def _check_mounts(pid: int, expected: Collection[str]) -> None:
    """What a program can write to is exactly its own tmpfs."""
    mounts = inspection.mounts(pid)
    writable = {point for point, (options, _) in mounts.items() if "rw" in options}
    extra = writable - _ROOTS_OWN - set(expected)
    for point in sorted(point for point in extra if not point.startswith("/proc/")):  # /dev/null over a file
        raise PostureMismatch(f"{point} of the container is writable")
    for point in sorted(expected):
        expect(f"file system of {point}", mounts.get(point, ([], ""))[1], "tmpfs")
    for point in ("/tmp", "/dev/shm"):
        if "noexec" not in mounts[point][0]:
            raise PostureMismatch(f"{point} of the container lets programs be run from it")


def _hierarchies() -> dict[str, str]:
    """Where this machine has each cgroup controller mounted."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        point = before.split()[4]
        if kind == "cgroup2":
            found["v2"] = point
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), point))
    return found


def _holds_limits(place: str) -> bool:
    return os.path.exists(f"{place}/memory.max") or os.path.exists(f"{place}/cgroup.kill")
