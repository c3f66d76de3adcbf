"""Control groups as the kernel holds them.

Tests on `claimed` use whatever this host has: on a host with one version 2 tree they are tests of that. Where
version 1 has the controllers, version 2's limits can only be tested against files with its names and formats:
`recorded` in the name says so. Entering, killing and removing need no controller and are always real.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from belljar.engines.cgroup import CPU_PERIOD_US, Cgroup, limits_for
from belljar.engines.jail import delegation

SMALL = limits_for(32, 4, 0.5)

# Forks itself into the cgroup as the launcher does, then runs the rest of the code there.
ENTER = """
import os, signal, sys, time
from belljar.engines.jail import syscalls
from belljar.engines.cgroup import Doors
v2, *v1 = map(int, sys.argv[1].split())
doors = Doors(None if v2 < 0 else v2, v1)
child = syscalls.fork_into(0, doors.v2)
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
doors.walk_in()
print(os.getpid(), flush=True)
"""
SLEEP = "time.sleep(60)"


class Inhabitants:
    """Starts processes in a cgroup through its doors, and ends them with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, cgroup: Cgroup, code: str) -> tuple[int, subprocess.Popen[str]]:
        """The pid of the one inside, and its parent outside, whose exit status is the one's inside."""
        doors = cgroup.open_doors()
        v2 = -1 if doors.v2 is None else doors.v2
        process = subprocess.Popen(
            [sys.executable, "-c", ENTER + code, " ".join(map(str, (v2, *doors.v1)))],
            pass_fds=[*doors.v1, *([] if doors.v2 is None else [doors.v2])],
            stdout=subprocess.PIPE,
            text=True,
        )
        doors.close()
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        self._stack.callback(process.stdout.close)
        self._stack.callback(process.wait)
        self._stack.callback(_kill, pid)
        return pid, process


@pytest.fixture
def inhabitants() -> Iterator[Inhabitants]:
    with ExitStack() as stack:
        yield Inhabitants(stack)


@pytest.fixture
def cgroup(claimed: delegation.Claim) -> Iterator[Cgroup]:
    cgroup = Cgroup(claimed.parents, "jar-test")
    cgroup.create()
    cgroup.set_limits(SMALL)
    yield cgroup
    cgroup.remove()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _rings(bell: int) -> int:
    counted = re.search(r"eventfd-count: *([0-9a-f]+)", Path(f"/proc/self/fdinfo/{bell}").read_text())
    assert counted is not None
    return int(counted[1], 16)


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


# --- on this host, whichever versions it has ---------------------------------------------------------------


def test_the_kernel_holds_the_limits_that_were_written(cgroup: Cgroup) -> None:
    assert cgroup.limits() == SMALL


@pytest.mark.parametrize(
    ("cores", "quota"), [(0.001, 1000), (0.25, 25_000), (3.0, 300_000)], ids=["least", "part", "several"]
)
def test_cpu_quotas_are_parts_of_the_period(claimed: delegation.Claim, cores: float, quota: int) -> None:
    cgroup = Cgroup(claimed.parents, "jar-cpu")
    cgroup.create()
    cgroup.set_limits(limits_for(32, 4, cores))
    assert cgroup.limits()["cpu_quota_us"] == quota
    cgroup.remove()


def test_a_process_that_walked_in_is_in_every_tree(
    claimed: delegation.Claim, cgroup: Cgroup, inhabitants: Inhabitants
) -> None:
    pid, _ = inhabitants.start(cgroup, SLEEP)
    for path in claimed.paths.values():
        assert (path / "jar-test/cgroup.procs").read_text().split() == [str(pid)]
    assert cgroup.counters()["pids_peak"] >= 1


def test_too_much_memory_is_an_oom_kill_that_is_counted(cgroup: Cgroup, inhabitants: Inhabitants) -> None:
    assert cgroup.counters()["oom_kills"] == 0
    _, process = inhabitants.start(cgroup, "bytearray(200 << 20)")
    assert process.wait(timeout=60) == (-signal.SIGKILL & 0xFF)
    counted = cgroup.counters()
    assert counted["oom_kills"] == 1
    assert 16 << 20 < counted["memory_peak"] <= SMALL["memory"]


def test_what_was_counted_is_still_known_when_the_cgroup_is_gone(
    cgroup: Cgroup, inhabitants: Inhabitants
) -> None:
    _, process = inhabitants.start(cgroup, "bytearray(200 << 20)")
    process.wait(timeout=60)
    before = cgroup.counters()
    cgroup.remove()
    assert cgroup.counters() == {**before, "memory_now": 0, "pids_now": 0}
    assert before["oom_kills"] == 1


@pytest.mark.parametrize(
    ("code", "short"),
    [pytest.param("bytearray(200 << 20)", True, id="too much"), pytest.param("", False, id="little")],
)
def test_a_bell_tells_whether_memory_ran_out_in_a_cgroup_that_is_gone(
    claimed: delegation.Claim, cgroup: Cgroup, inhabitants: Inhabitants, code: str, short: bool
) -> None:
    if "memory" not in claimed.parents:
        pytest.skip("version 2 has no such bell")
    bell = os.eventfd(0)
    cgroup.ring(bell)
    _, process = inhabitants.start(cgroup, code)
    process.wait(timeout=60)
    cgroup.remove()
    _wait_until(lambda: _rings(bell) >= 1 + short)
    assert (_rings(bell) > 1) is short
    os.close(bell)


def test_a_cgroup_that_goes_while_it_is_read_counts_nothing(claimed: delegation.Claim) -> None:
    class Going(Cgroup):
        def _open(self, controller: str, file: str, flags: int) -> int:
            fd = super()._open(controller, file, flags)
            self.remove()
            return fd

    going = Going(claimed.parents, "jar-going")
    going.create()
    assert not any(going.counters().values())


def test_files_in_memory_count_as_memory(cgroup: Cgroup, inhabitants: Inhabitants) -> None:
    code = "fd = os.memfd_create('x'); os.write(fd, bytes(16 << 20))"
    _, process = inhabitants.start(cgroup, code)
    process.wait(timeout=60)
    assert cgroup.counters()["memory_peak"] > 16 << 20


def test_a_refused_fork_is_counted(cgroup: Cgroup, inhabitants: Inhabitants) -> None:
    code = """
children = []
try:
    while True:
        child = os.fork()
        if child == 0:
            time.sleep(60)
        children.append(child)
except BlockingIOError:
    status = len(children)
for child in children:
    os.kill(child, signal.SIGKILL)
os._exit(status)
"""
    _, process = inhabitants.start(cgroup, code)
    assert process.wait(timeout=60) == SMALL["pids"] - 1
    counted = cgroup.counters()
    assert counted["pids_refused"] == 1
    assert counted["pids_peak"] in (SMALL["pids"], 0)  # 0: kernels before 6.1 do not keep the peak


def test_cpu_time_is_counted_and_cannot_be_had_faster_than_the_quota(
    claimed: delegation.Claim, inhabitants: Inhabitants
) -> None:
    cgroup = Cgroup(claimed.parents, "jar-slow")
    cgroup.create()
    cgroup.set_limits(limits_for(64, 4, 0.1))
    started = time.monotonic()
    _, process = inhabitants.start(cgroup, "while time.process_time() < 0.1: pass")
    assert process.wait(timeout=30) == 0
    # 0.1 s of work at a tenth of a CPU; the first period's share is there at once.
    assert time.monotonic() - started > 0.6
    assert cgroup.counters()["cpu_us"] >= 60_000
    cgroup.remove()


def test_remove_fails_while_something_lives_in_it(
    claimed: delegation.Claim, inhabitants: Inhabitants
) -> None:
    # A version 1 tree alone, in which there is nothing that kills: the bare proof.
    if "pids" not in claimed.parents:
        pytest.skip("needs a version 1 tree of pids; version 2 is tested with `unified`")
    os.mkdir("jar-held", dir_fd=claimed.parents["pids"])
    cgroup = Cgroup({"pids": claimed.parents["pids"]}, "jar-held")
    pid, process = inhabitants.start(cgroup, SLEEP)
    with pytest.raises(OSError, match="busy") as caught:
        cgroup.remove(patience_s=0.05)
    assert caught.value.errno == errno.EBUSY
    assert _alive(pid)
    _kill(pid)
    process.wait()
    cgroup.remove()
    assert not (claimed.paths["pids"] / "jar-held").exists()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param("time.sleep(90)", id="sleepers"),
        pytest.param("os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(90)", id="deaf"),
        pytest.param("while time.monotonic() < end and not fork(): pass", id="always-forking"),
    ],
)
def test_all_but_one_are_killed_and_the_limit_stays(
    claimed: delegation.Claim, inhabitants: Inhabitants, others: str
) -> None:
    limits = limits_for(64, 64, 2)
    cgroup = Cgroup(claimed.parents, "jar-full")
    cgroup.create()
    cgroup.set_limits(limits)
    home = claimed.paths["pids" if "pids" in claimed.paths else "v2"] / "jar-full"
    code = f"""
def fork():
    while time.monotonic() < end:
        try:
            return os.fork()
        except BlockingIOError:
            pass

end = time.monotonic() + 90
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(8):
    if fork() == 0:
        {others}
        os._exit(0)
print("started", flush=True)
time.sleep(90)
"""
    try:
        pid, process = inhabitants.start(cgroup, code)
        assert process.stdout is not None
        process.stdout.readline()
        cgroup.kill_all_but(pid)
        _wait_until(lambda: _in(home) == [pid])
        assert cgroup.limits() == limits
    finally:
        (home / "pids.max").write_text("0")
        _wait_until(lambda: not _kill_all(_in(home)))
    cgroup.remove()


def _kill_all(pids: list[int]) -> list[int]:
    for pid in pids:
        _kill(pid)
    return pids


def _in(cgroup: Path) -> list[int]:
    return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]


def test_removing_twice_or_what_never_was_is_fine(claimed: delegation.Claim) -> None:
    cgroup = Cgroup(claimed.parents, "jar-never")
    cgroup.remove()
    cgroup.create()
    cgroup.set_limits(SMALL)
    cgroup.remove()
    cgroup.remove()


def test_a_limit_that_somebody_lifted_does_not_read_as_the_granted_one(
    claimed: delegation.Claim, cgroup: Cgroup
) -> None:
    home = "pids" if "pids" in claimed.paths else "v2"
    (claimed.paths[home] / "jar-test/pids.max").write_text("max")
    assert cgroup.limits() != SMALL


def test_doors_leave_no_descriptor_behind(cgroup: Cgroup) -> None:
    before = os.listdir("/proc/self/fd")
    cgroup.open_doors().close()
    assert os.listdir("/proc/self/fd") == before


# --- version 2, real ---------------------------------------------------------------------------------------


@pytest.fixture
def bare(unified: Path) -> Iterator[Cgroup]:
    """A cgroup without limits in a version 2 tree alone."""
    fd = os.open(unified, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("jar-test", dir_fd=fd)
    cgroup = Cgroup({"v2": fd}, "jar-test")
    yield cgroup
    cgroup.remove()
    os.close(fd)


def test_real_v2_process_is_born_in_its_cgroup(bare: Cgroup, unified: Path, inhabitants: Inhabitants) -> None:
    pid, _ = inhabitants.start(bare, SLEEP)
    assert (unified / "jar-test/cgroup.procs").read_text().split() == [str(pid)]


def test_real_v2_kill_ends_everything_also_what_ran_away(
    bare: Cgroup, unified: Path, inhabitants: Inhabitants
) -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.fork()
time.sleep(60)
"""
    inhabitants.start(bare, code)
    procs = unified / "jar-test/cgroup.procs"
    _wait_until(lambda: len(procs.read_text().split()) == 3)
    pids = [int(pid) for pid in procs.read_text().split()]
    bare.kill()
    _wait_until(lambda: not any(map(_alive, pids)))


def test_real_v2_remove_kills_what_lives_in_it(bare: Cgroup, unified: Path, inhabitants: Inhabitants) -> None:
    pid, _ = inhabitants.start(bare, SLEEP)
    bare.remove()
    _wait_until(lambda: not _alive(pid))  # it leaves its cgroup a little before it is dead
    assert not (unified / "jar-test").exists()


# --- version 2, recorded -----------------------------------------------------------------------------------

# What a jar's directory holds on a machine with one version 2 tree (kernel 6.1), after mkdir.
RECORDED = {
    "cgroup.controllers": "cpu memory pids\n",
    "cgroup.kill": "",
    "cgroup.procs": "",
    "cpu.max": "max 100000\n",
    "cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "memory.max": "max\n",
    "memory.peak": "0\n",
    "memory.swap.max": "max\n",
    "pids.events": "max 0\n",
    "pids.max": "max\n",
    "pids.peak": "0\n",
}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cgroup]:
    """A directory that fills itself when a child is made, as the kernel's does."""
    mkdir = os.mkdir

    def born(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        for file, text in RECORDED.items():
            (tmp_path / name / file).write_text(text)

    monkeypatch.setattr(os, "mkdir", born)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield Cgroup({"v2": fd}, "jar-recorded")
    os.close(fd)


def _recorded_file(tmp_path: Path, name: str) -> Path:
    return tmp_path / "jar-recorded" / name


def test_recorded_v2_gets_each_limit_into_its_own_file(recorded: Cgroup, tmp_path: Path) -> None:
    recorded.create()
    recorded.set_limits(limits_for(64, 10, 1.5))
    # The kernel replaces a file's value; a plain file keeps the rest of a longer one.
    written = {
        name: _recorded_file(tmp_path, name).read_text()
        for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
    }
    assert written["memory.max"].startswith(str(64 << 20))
    assert written["memory.swap.max"].startswith("0")
    assert written["pids.max"].startswith("11")
    assert written["cpu.max"].startswith(f"150000 {CPU_PERIOD_US}")


def test_recorded_v2_limits_are_read_back(recorded: Cgroup, tmp_path: Path) -> None:
    recorded.create()
    recorded.set_limits(SMALL)
    for name, text in (
        ("memory.max", f"{32 << 20}\n"),
        ("memory.swap.max", "0\n"),
        ("pids.max", "5\n"),
        ("cpu.max", "50000 100000\n"),
    ):
        _recorded_file(tmp_path, name).write_text(text)
    assert recorded.limits() == SMALL


@pytest.mark.parametrize("name", ["memory.max", "memory.swap.max", "pids.max", "cpu.max"])
def test_recorded_v2_limit_that_was_lifted_does_not_read_as_granted(
    recorded: Cgroup, tmp_path: Path, name: str
) -> None:
    recorded.create()
    recorded.set_limits(SMALL)
    for file, text in (("memory.max", f"{32 << 20}"), ("memory.swap.max", "0"), ("pids.max", "5")):
        _recorded_file(tmp_path, file).write_text(text)
    _recorded_file(tmp_path, "cpu.max").write_text("50000 100000")
    _recorded_file(tmp_path, name).write_text("max 100000\n" if name == "cpu.max" else "max\n")
    assert recorded.limits() != SMALL


def test_recorded_v2_counters_are_found_in_their_files(recorded: Cgroup, tmp_path: Path) -> None:
    recorded.create()
    recorded.set_limits(SMALL)
    for name, text in (
        ("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n"),
        ("memory.current", "524288\n"),
        ("memory.peak", "1048576\n"),
        ("cpu.stat", "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n"),
        ("pids.events", "max 9\n"),
        ("pids.current", "2\n"),
        ("pids.peak", "4\n"),
    ):
        _recorded_file(tmp_path, name).write_text(text)
    assert recorded.counters() == {
        "memory_now": 524288,
        "memory_peak": 1048576,
        "oom_kills": 3,
        "cpu_us": 1234,
        "pids_now": 2,
        "pids_peak": 4,
        "pids_refused": 9,
    }


def test_recorded_v2_of_an_older_kernel_counts_zero_for_what_it_lacks(
    recorded: Cgroup, tmp_path: Path
) -> None:
    recorded.create()
    recorded.set_limits(SMALL)
    for name in ("memory.peak", "pids.peak", "cgroup.kill"):
        _recorded_file(tmp_path, name).unlink()
    counted = recorded.counters()
    assert (counted["memory_peak"], counted["pids_peak"]) == (0, 0)
    recorded.kill()  # where there is no cgroup.kill, the end of the jar's pid 1 does it
