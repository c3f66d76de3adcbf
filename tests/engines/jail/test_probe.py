"""What this host can hold is found by trying; what it cannot is refused by name, with the way to mend it."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.engines.jail import experiments, probe
from belljar.engines.jail.engine import JailEngine
from belljar.execution import runs
from belljar.models import Grant, RunRequest, Verdict

RunAsNobody = Callable[..., "subprocess.CompletedProcess[str]"]

PROBE = """
from belljar.engines.jail.probe import probe
for check in probe().checks:
    print(check.name, "ok" if check.ok else "missing", check.detail, check.fix, sep=" | ")
"""
# What the engine does where the probe was not asked, and what the door that asks it says.
CREATE = """
import asyncio
from belljar import engines
from belljar.engines.jail.engine import JailEngine
from belljar.errors import EngineUnavailable
from belljar.models import Grant

async def main():
    engine = JailEngine()
    try:
        await engine.create(Grant(accept_weaker_limits=True))
        print("created")
    except EngineUnavailable as error:
        print("create:", error)
    finally:
        await engine.close()
    try:
        await engines.choose("jail")
        print("chosen")
    except EngineUnavailable as error:
        print("choose:", error)

asyncio.run(main())
"""
# The sysctl belongs to the user namespace, so the host's own is not touched.
NO_USER_NAMESPACES = """
import os
from pathlib import Path
from belljar.engines.jail import syscalls
uid, gid = os.getuid(), os.getgid()
syscalls.unshare(syscalls.CLONE_NEWUSER)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
Path("/proc/sys/user/max_user_namespaces").write_text("0")
"""


def _no_seccomp() -> str:
    """Installs a filter under which no other can be: prctl(PR_SET_SECCOMP) answers EINVAL."""
    program = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 3, {"x86_64": 157, "aarch64": 167}[os.uname().machine]),  # prctl
        (0x20, 0, 0, 16),  # load its first argument
        (0x15, 0, 1, 22),  # PR_SET_SECCOMP
        (0x06, 0, 0, 0x00050000 | 22),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    text = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    return f"""
from belljar.engines.jail import syscalls
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.install_seccomp({text!r})
"""


def test_every_check_of_this_host_has_a_name_a_detail_and_a_way_to_mend_it() -> None:
    found = probe.probe()
    assert [check.name for check in found.checks] == [
        "system",
        "kernel",
        "user namespaces",
        "own /proc",
        "seccomp filter",
        "cgroup",
    ]
    assert all(check.detail for check in found.checks)
    assert all(check.fix for check in found.checks if check.required or not check.ok)
    assert found.usable == all(check.ok for check in found.checks if check.required)


def test_probing_leaves_nothing_behind() -> None:
    before = (os.listdir("/proc/self/fd"), _children(), _places())
    probe.probe()
    assert (os.listdir("/proc/self/fd"), _children(), _places()) == before


def _children() -> str:
    return Path("/proc/thread-self/children").read_text()


def _places() -> list[str]:
    """Not with rglob, which fails where somebody else's go meanwhile."""
    return sorted(
        folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f"/belljar-{os.getpid()}-" in folder
    )


async def test_probing_beside_a_running_program_does_not_harm_it() -> None:
    engine = JailEngine()
    grant = Grant(accept_weaker_limits=True)
    running = asyncio.create_task(runs.run(engine, grant, RunRequest(code="input()", stdin=b"")))
    slow = asyncio.create_task(runs.run(engine, grant, RunRequest(code="import time; time.sleep(1)")))
    await running
    await engine.probe()
    assert (await slow).verdict is Verdict.EXITED
    assert (await runs.run(engine, grant, RunRequest(code="print(1)"))).stdout == b"1\n"
    await engine.close()


def test_nobody_can_have_jars_but_is_told_how_to_get_a_cgroup(run_as_nobody: RunAsNobody) -> None:
    done = run_as_nobody(PROBE)
    lines = {line.split(" | ")[0]: line for line in done.stdout.splitlines()}
    for name in ("system", "kernel", "user namespaces", "own /proc", "seccomp filter"):
        assert " | ok | " in lines[name], done.stdout + done.stderr
    if os.getuid() == 0:
        assert " | missing | " in lines["cgroup"]
        assert "Delegate=yes" in lines["cgroup"]


def test_without_a_cgroup_a_grant_is_refused_by_field_unless_it_accepts_weaker_limits(
    run_as_nobody: RunAsNobody,
) -> None:
    if os.getuid() != 0:
        pytest.skip("an ordinary user may have been given a cgroup; run the tests as root")
    code = """
import asyncio
from belljar.engines.jail.engine import JailEngine
from belljar.errors import GrantNotEnforceable
from belljar.models import Grant

async def main():
    engine = JailEngine()
    try:
        await engine.create(Grant())
    except GrantNotEnforceable as error:
        print(error.field, "|", error)
    jar = await engine.create(Grant(accept_weaker_limits=True))
    print("made")
    await jar.destroy()
    await engine.close()

asyncio.run(main())
"""
    refused, made = run_as_nobody(code).stdout.splitlines()
    assert refused.startswith("limits | memory, pids and cpu cannot be limited")
    assert "delegate a cgroup" in refused
    assert "accept_weaker_limits" in refused
    assert made == "made"


def test_without_user_namespaces_nothing_is_made_and_the_switch_is_named(run_as_nobody: RunAsNobody) -> None:
    found = run_as_nobody(NO_USER_NAMESPACES + PROBE).stdout
    (line,) = [line for line in found.splitlines() if line.startswith("user namespaces")]
    assert " | missing | No space left on device" in line
    assert line.endswith("sysctl -w user.max_user_namespaces=15000")
    create, choose = run_as_nobody(NO_USER_NAMESPACES + CREATE).stdout.splitlines()
    assert create.startswith("create: the jail's launcher ended: ")
    assert "user namespaces" in choose
    assert "sysctl -w user.max_user_namespaces=15000" in choose


def test_without_seccomp_nothing_is_made_and_the_layer_is_named(run_as_nobody: RunAsNobody) -> None:
    found = run_as_nobody(_no_seccomp() + PROBE).stdout
    (line,) = [line for line in found.splitlines() if line.startswith("seccomp filter")]
    assert " | missing | Invalid argument" in line
    assert "CONFIG_SECCOMP_FILTER" in line
    create, choose = run_as_nobody(_no_seccomp() + CREATE).stdout.splitlines()
    assert create.startswith("create: the jar could not be sealed: ")
    assert "seccomp filter: Invalid argument" in choose


def test_in_a_container_that_masks_proc_nothing_is_made_and_the_option_is_named(
    run_as_nobody: RunAsNobody,
) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to cover a file in /proc as a container does")
    masked = ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /proc/uptime; exec "$@"', "sh")
    create, choose = run_as_nobody(CREATE, under=masked).stdout.splitlines()
    assert create.startswith("create: the jail's launcher ended: ")
    assert "own /proc" in choose
    assert "systempaths=unconfined" in choose


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        pytest.param({"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1", id="debian"),
        pytest.param({"user/max_user_namespaces": "0"}, "max_user_namespaces=15000", id="none-allowed"),
        pytest.param(
            {"kernel/apparmor_restrict_unprivileged_userns": "1", "user/max_user_namespaces": "15000"},
            "/etc/apparmor.d/belljar",
            id="ubuntu-24.04",
        ),
        pytest.param({}, "container", id="no-switch"),
    ],
)
def test_the_fix_names_the_switch_that_is_off(settings: dict[str, str], fix: str) -> None:
    assert fix in probe._user_namespace_fix(settings.get)


def _fail() -> None:
    raise OSError(1, os.strerror(1), "unshare")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # what a container's filter does to a forbidden call


def _break() -> None:
    raise AttributeError("not an OSError")


@pytest.mark.parametrize("attempt", [_fail, _die, _break])
def test_an_attempt_that_did_not_succeed_is_never_taken_for_a_success(attempt: Callable[[], None]) -> None:
    assert experiments.in_child(attempt)


def test_an_attempt_that_succeeded_is_no_error() -> None:
    assert experiments.in_child(lambda: None) is None


def test_an_attempt_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "ATTEMPT_S", 0.2)
    assert experiments.in_child(signal.pause) == "the attempt did not end within 0 s"


def test_the_host_itself_does_not_fork() -> None:
    code = """
import os
from belljar.engines.jail.probe import probe
os.register_at_fork(before=lambda: print("forked"))
print(probe().usable)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout in ("True\n", "False\n")


@pytest.mark.parametrize(
    ("script", "limit_s", "why"),
    [
        pytest.param(None, 30, "No such file or directory", id="no-python"),
        pytest.param("echo oh dear >&2; exit 3", 30, "ended with 3; oh dear", id="it-fails"),
        pytest.param("echo hello", 30, "Expecting value", id="it-is-something-else"),
        pytest.param("exec sleep 60", 0.2, "did not end within 0 s", id="it-hangs"),
    ],
)
def test_experiments_that_cannot_be_made_have_not_succeeded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, limit_s: float, why: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(probe, "EXPERIMENTS_S", limit_s)
    found = probe.probe()
    assert not found.usable
    details = [check.detail for check in found.missing if check.name in ("user namespaces", "own /proc")]
    assert len(details) == 2
    assert all(why in detail for detail in details)
