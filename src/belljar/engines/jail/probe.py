"""What this host can enforce: feeds `belljar doctor` and the refusal of what cannot be held.

Each check tries the real thing in a child process where it can; reading a setting only tells what
somebody meant.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

from belljar.engines.base import Check, Probe
from belljar.engines.jail import syscalls as sc
from belljar.engines.jail.delegation import NoDelegation, claim
from belljar.engines.syscall_numbers import ARCHITECTURES

KERNEL = (5, 12)
"""mount_setattr; the newest thing we cannot do without."""


def probe(cgroup_parent: str | None = None) -> Probe:
    return Probe(
        "jail",
        (
            _system(),
            _kernel(),
            _user_namespaces(),
            _proc(),
            _seccomp(),
            _cgroups(cgroup_parent),
        ),
    )


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


def _user_namespaces() -> Check:
    namespaces = (
        sc.CLONE_NEWUSER
        | sc.CLONE_NEWNS
        | sc.CLONE_NEWPID
        | sc.CLONE_NEWNET
        | sc.CLONE_NEWIPC
        | sc.CLONE_NEWUTS
    )
    error = _in_child(lambda: sc.unshare(namespaces))
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


def _proc() -> Check:
    def mount_fresh() -> None:
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID)
        child = os.fork()
        if child == 0:
            try:
                sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
                os._exit(0)
            except OSError as error:
                os._exit(error.errno or 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            raise OSError(status, os.strerror(status))

    error = _in_child(mount_fresh)
    return Check(
        "own /proc",
        error is None,
        error or "can be mounted",
        "in a container, give it an unmasked /proc (docker run --security-opt systempaths=unconfined)",
    )


def _seccomp() -> Check:
    # BPF: return ALLOW
    def install() -> None:
        sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
        sc.install_seccomp(b"\x06\x00\x00\x00\x00\x00\xff\x7f")

    error = _in_child(install)
    return Check(
        "seccomp filter",
        error is None,
        error or "can be installed",
        "use a kernel with CONFIG_SECCOMP_FILTER",
    )


def _cgroups(parent: str | None) -> Check:
    try:
        held = claim(parent)
    except NoDelegation as reason:
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
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _in_child(attempt: Callable[[], None]) -> str | None:
    """Try it where it cannot change us; what went wrong, or None. Only a child that says so has succeeded."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
            os.write(write, b"ok")
        except BaseException as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        text = os.read(read, 1000).decode()
    finally:
        os.close(read)
        os.waitpid(child, 0)
    return None if text == "ok" else text or "the attempt was killed"
