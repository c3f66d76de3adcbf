"""Which of the host's cgroup trees we may make jars in: find them, claim a place, sweep old ones.

Every engine claims one directory named after its process, `belljar-<pid>-<start time>-<number>`, below a
base: below our own cgroup where that can be (version 1, or a version 2 tree that was delegated to
us), below the root of a version 2 tree for root. A directory whose process is gone is left over
from a crash; it is killed and removed at the next start.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from belljar.engines.cgroup import V2_CONTROLLERS, Cgroup, Parents
from belljar.processes import start_time

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""They pass, and say nothing about what this host can do."""
_V1 = ("memory", "pids", "cpu", "cpuacct")
_EPOCH = re.compile(r"belljar-(\d+)-(\d+)-[0-9a-f]+")


class NoDelegation(Exception):
    """No cgroup can be had here; the text says why."""


class Claim:
    """Our place in the host's cgroup trees. `parents` is empty once released."""

    def __init__(self, bases: dict[str, Path]) -> None:
        self._stack = ExitStack()
        self.parents: Parents = {}
        self.paths: dict[str, Path] = {}
        name = f"belljar-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(4)}"
        try:
            for controller, base in bases.items():
                _sweep(base)
                path = base / name
                path.mkdir()
                self._stack.callback(_remove_quietly, path)
                if controller == "v2":
                    _enable(path, [c for c in V2_CONTROLLERS if c not in bases])
                self.parents[controller] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._stack.callback(os.close, self.parents[controller])
                self.paths[controller] = path
        except OSError as error:
            self._stack.close()
            if error.errno in SHORTAGES:
                raise
            raise NoDelegation(f"{error.filename or base}: {error.strerror}") from error

    @property
    def held_by(self) -> dict[str, str]:
        """Which layer holds each limit."""
        return {c: "cgroup v1" if c in self.parents else "cgroup v2" for c in V2_CONTROLLERS}

    def release(self) -> None:
        self.parents = {}
        self._stack.close()


def claim(parent: str | None = None) -> Claim:
    """A place to make cgroups in; NoDelegation when memory, pids and cpu cannot all be limited."""
    return Claim(
        _bases(
            Path("/proc/self/mountinfo").read_text("utf-8"),
            Path("/proc/self/cgroup").read_text("utf-8"),
            parent,
        )
    )


def _bases(mountinfo: str, membership: str, parent: str | None) -> dict[str, Path]:
    """Controller to the directory below which we may work. cgroups(7), proc(5)"""
    mounts = _mounts(mountinfo)
    own = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(",") if controllers else ["v2"], path))
    bases = {name: mounts[name].place(parent or own.get(name, "/")) for name in _V1 if name in mounts}
    available: list[str] = []
    if "v2" in mounts and not set(V2_CONTROLLERS) <= bases.keys():
        top = mounts["v2"].point
        available = (top / "cgroup.controllers").read_text("utf-8").split()
        # Root may use the top of the tree; anyone else what was delegated, the own cgroup.
        its_own = "/" if os.getuid() == 0 else own.get("v2", "/")
        bases["v2"] = top if its_own == "/" and not parent else mounts["v2"].place(parent or its_own)
    missing = [name for name in V2_CONTROLLERS if name not in bases and name not in available]
    if missing:
        raise NoDelegation(f"no cgroup controller for {', '.join(missing)} is mounted")
    return bases


class _Mount(NamedTuple):
    point: Path
    root: str
    """What of the tree is mounted there; in a container it is the container's own part."""

    def place(self, path: str) -> Path:
        below = path.removeprefix(self.root) if self.root != "/" else path
        return self.point / below.lstrip("/")


def _mounts(mountinfo: str) -> dict[str, _Mount]:
    """By controller, version 2 as `v2`."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found["v2"] = _Mount(Path(point), root)
        elif kind == "cgroup":
            found.update({name: _Mount(Path(point), root) for name in options.split(",") if name in _V1})
    return found


def _enable(path: Path, controllers: list[str]) -> None:
    """Let children of `path` be limited: the controllers have to be enabled on the way down."""
    wanted = " ".join(f"+{name}" for name in controllers)
    for directory in (path.parent, path):
        control = directory / "cgroup.subtree_control"
        try:
            control.write_text(wanted, "ascii")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise OSError(error.errno, error.strerror, str(control)) from error
            # Processes may be in leaves only, and we are one that is in the way.
            _step_aside(directory)
            control.write_text(wanted, "ascii")


def _step_aside(directory: Path) -> None:
    leaf = directory / "service"
    leaf.mkdir(exist_ok=True)
    for pid in (directory / "cgroup.procs").read_text("utf-8").split():
        (leaf / "cgroup.procs").write_text(pid, "ascii")


def _sweep(base: Path) -> None:
    """Remove what services that are no longer alive have left."""
    for old in base.glob("belljar-*-*"):
        match = _EPOCH.fullmatch(old.name)
        if match and start_time(int(match[1])) != int(match[2]):
            _remove_quietly(old)


def _remove_quietly(path: Path) -> None:
    """With all jars in it. What another process removes too, or still holds, is left to the next sweep."""
    with suppress(OSError):
        path.rmdir()  # an empty one needs no descriptor, and perhaps there is none left
        return
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for jar in [entry.name for entry in os.scandir(fd) if entry.is_dir()]:
                cgroup = Cgroup({"v2" if (path / "cgroup.controllers").exists() else "v1": fd}, jar)
                cgroup.kill()
                cgroup.remove()
        finally:
            os.close(fd)
        path.rmdir()
