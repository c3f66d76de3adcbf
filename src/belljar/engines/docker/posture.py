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
from belljar.engines.cgroup import Cgroup, Parents
from belljar.engines.docker.container import TERMINALS
from belljar.engines.inspection import SEALED, expect
from belljar.engines.kernelfs import MAX_TERMINALS
from belljar.errors import EngineUnavailable, PostureMismatch
from belljar.models import canonical_json

_SHARED_WITH_HOST = {"user"}  # unless the engine remaps ids
_ROOTS_OWN = {"/proc", "/dev", TERMINALS, "/dev/mqueue"}
"""Mounted writable in every container, and root's: what is left of them to uid 1000 is its own processes."""

_DEVICES = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero")}
"""The host's own, mounted one by one where ids are mapped: no device can be made there."""


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
    uid, gid = (mapped(1000, Path(f"/proc/{pid}/{which}_map").read_text("utf-8")) for which in ("uid", "gid"))
    expect("Uid", set(status["Uid"].split()), {str(uid)})
    expect("Gid", set(status["Gid"].split()), {str(gid)})
    expect("Groups", set(status["Groups"].split()) - {str(gid)}, set())
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


def mapped(inside: int, ranges: str) -> int:
    """What an id of a user namespace is to us: of `id, ours, how many` per line. user_namespaces(7)"""
    for line in ranges.splitlines():
        first, ours, count = map(int, line.split())
        if first <= inside < first + count:
            if (found := ours + inside - first) == 0:
                raise PostureMismatch(f"id {inside} of the container is root's here")
            return found
    raise PostureMismatch(f"the container's user namespace has no id {inside}")


def _check_mounts(pid: int, expected: Collection[str]) -> None:
    """What a program can write to is exactly its own tmpfs, and few terminals."""
    mounts = inspection.mounts(pid)
    writable = {
        point
        for point, mount in mounts.items()
        if "rw" in mount.options and not (point in _DEVICES and mount.kind == "devtmpfs")
    }
    expect("file system of /sys", mounts["/sys"].kind, "tmpfs")  # over all that is mounted there
    extra = writable - _ROOTS_OWN - set(expected)
    # In /proc it is /dev/null over a file.
    for point in sorted(point for point in extra if not point.startswith(("/proc/", "/sys/"))):
        raise PostureMismatch(f"{point} of the container is writable")
    for point in sorted(expected):
        expect(f"file system of {point}", mounts[point].kind if point in mounts else "", "tmpfs")
    if TERMINALS in writable and f"max={MAX_TERMINALS}" not in mounts[TERMINALS].bounds:
        raise PostureMismatch("the container may have all terminals of the machine")
    for point in sorted({"/tmp", "/dev/shm"} | (writable & {TERMINALS})):
        if "noexec" not in mounts[point].options:
            raise PostureMismatch(f"{point} of the container lets programs be run from it")


def _hierarchies() -> dict[str, str]:
    """Where this machine has each cgroup controller mounted."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
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
