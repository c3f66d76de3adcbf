"""What this host can enforce: feeds `belljar doctor` and the refusal of what cannot be held.

Each check tries the real thing where it can; reading a setting only tells what somebody meant.
`experiments` does what needs a process of its own.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from belljar.engines.base import Check, Probe
from belljar.engines.jail.delegation import NoDelegation, claim
from belljar.engines.syscall_numbers import ARCHITECTURES
from belljar.guest import bundle

KERNEL = (5, 12)
"""mount_setattr; the newest thing we cannot do without."""
EXPERIMENTS_S = 30.0
"""How long the experiments may take, all together and with a Python that starts."""
_EXPERIMENTS = "belljar.engines.jail.experiments"


def probe(cgroup_parent: str | None = None) -> Probe:
    failed = _experiment()
    return Probe(
        "jail",
        (
            _system(),
            _kernel(),
            _user_namespaces(failed["user_namespaces"]),
            _proc(failed["proc"]),
            _seccomp(failed["seccomp"]),
            _cgroups(cgroup_parent),
        ),
    )


def _experiment() -> Mapping[str, str | None]:
    """What went wrong with each, None where nothing did."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", bundle.start("sys.stdin.buffer"), _EXPERIMENTS],
            input=bundle.pack(("belljar.engines.jail.syscalls", _EXPERIMENTS), {}),
            capture_output=True,
            timeout=EXPERIMENTS_S,
            check=True,
            env={},
            cwd="/",
        )
        failed: dict[str, str | None] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return dict.fromkeys(("user_namespaces", "proc", "seccomp"), f"it could not be tried: {_why(error)}")
    return failed


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the experiments did not end within {EXPERIMENTS_S:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        last_words = error.stderr.decode("utf-8", "replace").splitlines()[-1:]
        return "; ".join((f"the experiments ended with {error.returncode}", *last_words))
    return str(error)


def _system() -> Check:
    machine = platform.machine()
    ok = platform.system() == "Linux" and machine in ARCHITECTURES
    return Check(
        "system",
        ok,
        f"{platform.system()} on {machine}",
        f"use Linux on {' or '.join(sorted(ARCHITECTURES))}, or the docker engine",
    )


def _kernel() -> Check:
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    ok = match is not None and (int(match[1]), int(match[2])) >= KERNEL
    return Check(
        "kernel", ok, release, f"use a kernel of {KERNEL[0]}.{KERNEL[1]} or newer, or the docker engine"
    )


def _user_namespaces(error: str | None) -> Check:
    return Check(
        "user namespaces",
        error is None,
        error or "can be made",
        _user_namespace_fix(_setting),
    )


def _user_namespace_fix(setting: Callable[[str], str | None]) -> str:
    """The switch that is off, if one is; distributions have different ones."""
    if setting("kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if setting("user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=15000"
    if setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "allow them for this Python in an AppArmor profile (Ubuntu 24.04: `userns,` in "
            "/etc/apparmor.d/belljar), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return "run on the host, or in a container that may make user namespaces"


def _proc(error: str | None) -> Check:
    return Check(
        "own /proc",
        error is None,
        error or "can be mounted",
        "in a container, give it an unmasked /proc (docker run --security-opt systempaths=unconfined)",
    )


def _seccomp(error: str | None) -> Check:
    return Check(
        "seccomp filter",
        error is None,
        error or "can be installed",
        "use a kernel with CONFIG_SECCOMP_FILTER",
    )


def _cgroups(parent: str | None) -> Check:
    try:
        held = claim(parent)
    except (NoDelegation, OSError) as reason:
        return Check(
            "cgroup",
            False,
            str(reason),
            "run as root, or delegate a cgroup: systemd-run --user --scope -p Delegate=yes belljar …, "
            "or a service unit with Delegate=yes",
            required=False,
        )
    detail = ", ".join(f"{limit} by {layer}" for limit, layer in held.held_by.items())
    held.release()
    return Check("cgroup", True, detail, required=False)


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text("utf-8").strip()
    except OSError:
        return None
