"""Control groups of jars: limits, counters, and proof that nothing is left.

Hosts differ: one version 2 tree, or version 1 trees per controller, often with an empty version 2
tree beside them. A `Parents` value maps each controller to an open directory of the right kind;
`v2` alone also gives `cgroup.kill`. Removing a cgroup succeeds only when no process is in it, so
`remove` is the proof that a jar is gone. Directories are descriptors, because the launcher lives
in a tree where the cgroup file systems are not mounted. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

Parents = dict[str, int]
"""`memory`, `pids`, `cpu`, `cpuacct` (version 1) and `v2` to directory descriptors."""

CPU_PERIOD_US = 100_000
V2_CONTROLLERS = ("cpu", "memory", "pids")
_GROWING = ("memory_peak", "oom_kills", "cpu_us", "pids_peak", "pids_refused")


class Doors(NamedTuple):
    """Descriptors through which a process enters a cgroup without moving through the global lock.

    Writing a pid to `cgroup.procs` makes the kernel wait for every other fork and exit on the machine,
    10 ms on an idle one. Being born in a version 2 cgroup (CLONE_INTO_CGROUP) does not, nor does a
    thread that moves only itself: "0" written to version 1's `tasks`.
    """

    v2: int | None
    v1: list[int]

    def walk_in(self) -> None:
        """By the child itself, for the version 1 trees; version 2 it was born in."""
        for fd in self.v1:
            os.write(fd, b"0")

    def close(self) -> None:
        for fd in [*self.v1, *([] if self.v2 is None else [self.v2])]:
            os.close(fd)


class Cgroup:
    """One jar's cgroup, in every hierarchy of its parents."""

    def __init__(self, parents: Parents, name: str) -> None:
        self._parents = parents
        self._name = name
        self._counted = dict.fromkeys(("memory_now", "pids_now", *_GROWING), 0)

    def create(self) -> None:
        for parent in self._parents.values():
            os.mkdir(self._name, 0o755, dir_fd=parent)

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """As `limits_for` gives them. Its parents must not be empty."""
        if "memory" in self._parents:
            self._write("memory", "memory.limit_in_bytes", limits["memory"])
            self._write("memory", "memory.memsw.limit_in_bytes", limits["memory"] + limits["swap"])
            with suppress(FileNotFoundError):
                # Version 1 counts what waits in sockets apart, and only where it has a limit.
                self._write("memory", "memory.kmem.tcp.limit_in_bytes", limits["memory"] // 4)
        else:
            self._write("v2", "memory.max", limits["memory"])
            self._write("v2", "memory.swap.max", limits["swap"])
        self._write(self._home("pids"), "pids.max", limits["pids"])
        if "cpu" in self._parents:
            self._write("cpu", "cpu.cfs_period_us", CPU_PERIOD_US)
            self._write("cpu", "cpu.cfs_quota_us", limits["cpu_quota_us"])
        else:
            self._write("v2", "cpu.max", f"{limits['cpu_quota_us']} {CPU_PERIOD_US}")

    def limits(self) -> dict[str, int]:
        """Read back what the kernel holds, for the posture check; -1 is no limit."""
        if "memory" in self._parents:
            memory = self._limit("memory", "memory.limit_in_bytes")
            swap = self._limit("memory", "memory.memsw.limit_in_bytes") - memory
        else:
            memory = self._limit("v2", "memory.max")
            swap = self._limit("v2", "memory.swap.max")
        if "cpu" in self._parents:
            quota = self._limit("cpu", "cpu.cfs_quota_us")
        else:
            quota = self._limit("v2", "cpu.max")
        pids = self._limit(self._home("pids"), "pids.max")
        return {"memory": memory, "swap": swap, "pids": pids, "cpu_quota_us": quota}

    def open_doors(self) -> Doors:
        """The ways in, for the process that is about to fork into this cgroup; the caller closes them."""
        v2 = None
        if "v2" in self._parents:
            v2 = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._parents["v2"])
        v1 = [self._open(name, "tasks", os.O_WRONLY) for name in self._parents if name != "v2"]
        return Doors(v2, v1)

    def counters(self) -> dict[str, int]:
        """What the kernel counted so far, also when the cgroup is gone since; a missing counter is 0."""
        if "memory" in self._parents:
            peak = self._number("memory", "memory.max_usage_in_bytes")
            now = self._number("memory", "memory.usage_in_bytes")
            oom_kills = self._field("memory", "memory.oom_control", "oom_kill")
        else:
            peak = self._number("v2", "memory.peak")
            now = self._number("v2", "memory.current")
            oom_kills = self._field("v2", "memory.events", "oom_kill")
        if "cpuacct" in self._parents:
            cpu_us = self._number("cpuacct", "cpuacct.usage") // 1000
        else:
            cpu_us = self._field("v2", "cpu.stat", "usage_usec")
        return self.remember(
            {
                "memory_now": now,
                "memory_peak": peak,
                "oom_kills": oom_kills,
                "cpu_us": cpu_us,
                "pids_now": self._number(self._home("pids"), "pids.current"),
                "pids_peak": self._number(self._home("pids"), "pids.peak"),
                "pids_refused": self._field(self._home("pids"), "pids.events", "max"),
            }
        )

    def remember(self, counted: Mapping[str, int]) -> dict[str, int]:
        """With what was known: less than that was read while the cgroup went away, tree by tree."""
        known = self._counted
        self._counted = {
            **known,
            **counted,
            **{name: max(known[name], counted.get(name, 0)) for name in _GROWING},
        }
        return self._counted

    def ring(self, bell: int) -> None:
        """An eventfd that tells of memory running out even when the cgroup is gone before it can be asked.

        1 is added to it each time memory runs out, and 1 when the cgroup goes. Version 1 alone has this.
        """
        if "memory" in self._parents:
            watched = self._open("memory", "memory.oom_control", os.O_RDONLY)
            try:
                self._write("memory", "cgroup.event_control", f"{bell} {watched}")
            finally:
                os.close(watched)

    def kill_all_but(self, spared: int) -> None:
        """SIGKILL to everything in it but one process, without any help from inside.

        With no fork allowed nothing can slip away between listing and killing.
        """
        home = self._home("pids")
        limit = self._read(home, "pids.max")
        self._write(home, "pids.max", 0)
        try:
            for pid in self._members(home):
                if pid != spared:
                    self._kill(home, pid)
        finally:
            self._write(home, "pids.max", limit)

    def _kill(self, home: str, pid: int) -> None:
        """By a descriptor: while it is open and its process is listed here, the number is nobody else's."""
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                if pid in self._members(home):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)

    def _members(self, home: str) -> list[int]:
        return [int(pid) for pid in self._read(home, "cgroup.procs").split()]

    def kill(self) -> None:
        """SIGKILL to everything in it; by version 2 also to what is being forked, else one by one."""
        with suppress(FileNotFoundError):  # it is gone, or the kernel is older than 5.14
            if "v2" in self._parents:
                self._write("v2", "cgroup.kill", 1)
                return
            for home in self._parents:
                for pid in self._members(home):
                    self._kill(home, pid)

    def remove(self, patience_s: float = 5.0) -> None:
        """Remove it everywhere; OSError EBUSY if something still lives in it after `patience_s`."""
        deadline = time.monotonic() + patience_s
        for parent in self._parents.values():
            while True:
                try:
                    os.rmdir(self._name, dir_fd=parent)
                    break
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise
                    if "v2" in self._parents:
                        self.kill()
                    time.sleep(0.001)

    def _home(self, controller: str) -> str:
        return controller if controller in self._parents else "v2"

    def _open(self, controller: str, file: str, flags: int) -> int:
        return os.open(f"{self._name}/{file}", flags | os.O_CLOEXEC, dir_fd=self._parents[controller])

    def _write(self, controller: str, file: str, value: object) -> None:
        fd = self._open(controller, file, os.O_WRONLY)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def _read(self, controller: str, file: str) -> str:
        fd = self._open(controller, file, os.O_RDONLY)
        try:
            text = b""
            while chunk := os.read(fd, 1 << 16):
                text += chunk
            return text.decode().strip()
        finally:
            os.close(fd)

    def _limit(self, controller: str, file: str) -> int:
        first = self._read(controller, file).split()[0]
        return -1 if first == "max" else int(first)

    def _number(self, controller: str, file: str) -> int:
        try:
            return int(self._read(controller, file))
        except (OSError, ValueError):
            return 0

    def _field(self, controller: str, file: str, name: str) -> int:
        try:
            fields = dict(line.split() for line in self._read(controller, file).splitlines())
        except OSError:  # ENODEV, where it went between opening and reading
            return 0
        return int(fields.get(name, 0))


def limits_for(memory_mb: int, pids: int, cpu_cores: float) -> Mapping[str, int]:
    """The kernel's numbers for a grant's: what is written, and what must be read back."""
    return {
        "memory": memory_mb << 20,
        "swap": 0,
        "pids": pids + 1,  # the guest is one of them
        "cpu_quota_us": max(1000, int(cpu_cores * CPU_PERIOD_US)),
    }
