"""The last doors to close in a jar: resource limits, capabilities, new privileges, system calls."""

from __future__ import annotations

import os
import resource

from belljar.engines.jail import syscalls


def set_rlimits(nofile: int, processes: int, data_bytes: int | None) -> None:
    """Limits beside the cgroup's. `data_bytes` is given where no cgroup holds memory. getrlimit(2)."""
    limits = {
        resource.RLIMIT_NOFILE: nofile,
        resource.RLIMIT_NPROC: processes,
        # 1, not 0: a core_pattern that pipes to a program of the host ignores 0. core(5)
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        11: 1024,  # RLIMIT_SIGPENDING: also bounds POSIX timers
    }
    if data_bytes is not None:
        limits[resource.RLIMIT_DATA] = data_bytes
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def stay_on(cpus: int | None) -> None:
    """Where no cgroup holds the CPU limit: so many CPUs, chosen by chance so that jars spread."""
    if cpus is not None:
        allowed = sorted(os.sched_getaffinity(0))
        first = int.from_bytes(os.urandom(4), "big") % len(allowed)
        os.sched_setaffinity(0, (allowed[first:] + allowed[:first])[:cpus])


def close_descriptors(keep: list[int]) -> None:
    """Everything of the launcher goes, but for `keep`; 0, 1 and 2 become /dev/null."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)


def give_up(seccomp_program: bytes) -> None:
    """Capabilities, then new privileges, then system calls: each needs what the next takes away."""
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_seccomp(seccomp_program)
