"""Which cgroup trees are ours to use: from texts recorded on other hosts, and on this one for real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.engines.cgroup import Cgroup, limits_for
from belljar.engines.jail import delegation
from belljar.engines.jail.delegation import Claim, NoDelegation
from belljar.processes import start_time

ENTER_AND = """
import os, sys
from pathlib import Path
from belljar.engines.jail import delegation
here = Path(sys.argv[1])
(here / "cgroup.procs").write_text(str(os.getpid()))
"""

# --- recorded hosts ----------------------------------------------------------------------------------------

# {root} stands for the place of the recorded trees; on a host it is /sys/fs/cgroup.
HYBRID = """\
31 23 0:28 / {root} rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / {root}/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / {root}/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / {root}/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / {root}/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / {root}/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / {root}/unified rw,relatime - cgroup2 cgroup2 rw
"""
HYBRID_OWN = "9:name=systemd:/\n8:pids:/\n4:memory:/session/one\n2:cpuacct:/\n1:cpu:/\n0::/\n"

VERSION_1 = """\
33 24 0:28 / {root}/systemd rw,nosuid shared:8 - cgroup cgroup rw,xattr,name=systemd
36 24 0:31 / {root}/cpu,cpuacct rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct
38 24 0:33 / {root}/memory rw,nosuid shared:13 - cgroup cgroup rw,memory
43 24 0:38 / {root}/pids rw,nosuid shared:18 - cgroup cgroup rw,pids
"""
VERSION_1_OWN = (
    "6:pids:/user.slice\n5:memory:/user.slice\n4:cpu,cpuacct:/user.slice\n1:name=systemd:/user.slice\n"
)

VERSION_2 = "30 24 0:26 / {root} rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
SCOPE = "user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope"

DOCKER_V1 = """\
520 519 0:29 /docker/c0ffee {root}/memory rw,nosuid master:11 - cgroup cgroup rw,memory
521 519 0:30 /docker/c0ffee {root}/pids rw,nosuid master:12 - cgroup cgroup rw,pids
522 519 0:31 /docker/c0ffee {root}/cpu,cpuacct rw,nosuid master:13 - cgroup cgroup rw,cpu,cpuacct
"""
DOCKER_V1_OWN = "5:memory:/docker/c0ffee\n4:pids:/docker/c0ffee\n3:cpu,cpuacct:/docker/c0ffee\n"


def _bases(
    tmp_path: Path, mountinfo: str, own: str, *, parent: str | None = None, v2: str = "", at: str = "."
) -> dict[str, str]:
    """The places that were found, below the recorded root; `v2` are the controllers of the tree at `at`."""
    (tmp_path / at).mkdir(exist_ok=True)
    (tmp_path / at / "cgroup.controllers").write_text(v2 + "\n")
    found = delegation._bases(mountinfo.replace("{root}", str(tmp_path)), own, parent)
    return {name: str(path.relative_to(tmp_path)) for name, path in found.items()}


def test_recorded_hybrid_host_uses_version_1_below_our_own_cgroup(tmp_path: Path) -> None:
    found = _bases(tmp_path, HYBRID, HYBRID_OWN, at="unified")
    v1 = {"memory": "memory/session/one", "pids": "pids", "cpu": "cpu", "cpuacct": "cpuacct"}
    assert {name: path for name, path in found.items() if name != "v2"} == v1


def test_recorded_hybrid_host_takes_what_version_1_lacks_from_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    mountinfo = "".join(line for line in HYBRID.splitlines(keepends=True) if "/pids" not in line)
    own = HYBRID_OWN.replace("8:pids:/\n", "")
    found = _bases(tmp_path, mountinfo, own, v2="hugetlb pids", at="unified")
    assert found["v2"] == "unified"
    assert found["memory"] == "memory/session/one"
    assert "pids" not in found


def test_recorded_version_1_host_with_two_controllers_in_one_mount(tmp_path: Path) -> None:
    assert _bases(tmp_path, VERSION_1, VERSION_1_OWN) == {
        "memory": "memory/user.slice",
        "pids": "pids/user.slice",
        "cpu": "cpu,cpuacct/user.slice",
        "cpuacct": "cpu,cpuacct/user.slice",
    }


@pytest.mark.parametrize(
    ("uid", "own", "base"),
    [
        pytest.param(0, "0::/system.slice/ssh.service\n", ".", id="root"),
        pytest.param(1000, f"0::/{SCOPE}\n", SCOPE, id="user-with-a-scope"),
        pytest.param(1000, "0::/\n", ".", id="container-with-its-own-namespace"),
    ],
)
def test_recorded_version_2_host_gives_root_the_top_and_a_user_its_own_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, own: str, base: str
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert _bases(tmp_path, VERSION_2, own, v2="cpuset cpu io memory pids") == {"v2": base}


def test_recorded_container_sees_its_own_cgroup_as_the_top_of_its_mounts(tmp_path: Path) -> None:
    # Without a cgroup namespace a path in /proc/self/cgroup is the host's, but the mount starts below.
    assert _bases(tmp_path, DOCKER_V1, DOCKER_V1_OWN) == {
        "memory": "memory",
        "pids": "pids",
        "cpu": "cpu,cpuacct",
        "cpuacct": "cpu,cpuacct",
    }


@pytest.mark.parametrize(
    ("mountinfo", "own"),
    [pytest.param(VERSION_1, VERSION_1_OWN, id="v1"), pytest.param(VERSION_2, "0::/\n", id="v2")],
)
def test_recorded_parent_of_the_operator_is_used_in_every_tree(
    tmp_path: Path, mountinfo: str, own: str
) -> None:
    found = _bases(tmp_path, mountinfo, own, v2="cpu memory pids", parent="belljar.slice")
    assert {Path(path).name for path in found.values()} == {"belljar.slice"}


@pytest.mark.parametrize(
    ("mountinfo", "controllers", "missing"),
    [
        pytest.param("", "", "cpu, memory, pids", id="nothing-mounted"),
        pytest.param(VERSION_2, "cpu pids", "memory", id="v2-without-memory"),
        pytest.param(VERSION_1.replace("rw,pids", "rw,freezer"), "", "pids", id="v1-without-pids"),
    ],
)
def test_recorded_host_that_lacks_a_controller_is_no_delegation_and_says_which(
    tmp_path: Path, mountinfo: str, controllers: str, missing: str
) -> None:
    with pytest.raises(NoDelegation, match=rf"for {missing} is"):
        _bases(tmp_path, mountinfo, VERSION_1_OWN + "0::/\n", v2=controllers)


# --- this host ---------------------------------------------------------------------------------------------


# What a dead service has left is planted below our own claim: at the top anybody's next start would sweep it.


def _of(pid: int, claim: Claim) -> str:
    """The name a claim of that process has."""
    name = next(iter(claim.paths.values())).name
    return name.replace(f"-{os.getpid()}-", f"-{pid}-")


def test_a_claim_is_a_directory_in_every_tree_and_release_leaves_nothing(claimed: Claim) -> None:
    assert all(path.is_dir() for path in claimed.paths.values())
    assert set(claimed.held_by) == {"memory", "pids", "cpu"}
    descriptors = list(claimed.parents.values())
    paths = dict(claimed.paths)
    claimed.release()
    assert not any(path.exists() for path in paths.values())
    assert claimed.parents == {}
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_release_takes_jars_with_it(claimed: Claim) -> None:
    Cgroup(claimed.parents, "jar-left").create()
    paths = dict(claimed.paths)
    claimed.release()
    assert not any(path.exists() for path in paths.values())


def test_two_claims_of_one_process_do_not_touch_each_other(claimed: Claim) -> None:
    jar = Cgroup(claimed.parents, "jar-mine")
    jar.create()
    jar.set_limits(limits_for(32, 4, 1))
    delegation.claim().release()
    assert jar.limits() == limits_for(32, 4, 1)
    jar.remove()


def test_what_a_dead_service_left_is_swept_by_the_next_claim(claimed: Claim, dead_pid: int) -> None:
    left = [path / _of(dead_pid, claimed) for path in claimed.paths.values()]
    for path in left:
        (path / "jar-old").mkdir(parents=True)
    Claim(claimed.paths).release()
    assert not any(path.exists() for path in left)


def test_a_reused_pid_does_not_keep_what_an_older_process_left(claimed: Claim) -> None:
    start = str(start_time(os.getpid()))
    left = [path / path.name.replace(start, str(int(start) - 1), 1) for path in claimed.paths.values()]
    for path in left:
        path.mkdir()
    Claim(claimed.paths).release()
    assert not any(path.exists() for path in left)


def test_a_sweep_leaves_the_living_and_what_is_not_ours(claimed: Claim, dead_pid: int) -> None:
    base = next(iter(claimed.paths.values()))
    others = [base / name for name in ("belljar-test", f"belljar-{dead_pid}-x", f"other-{dead_pid}-1")]
    for path in others:
        path.mkdir()
    living = Claim(claimed.paths)
    try:
        Claim(claimed.paths).release()
        assert all(path.exists() for path in [*living.paths.values(), *others])
    finally:
        living.release()
        for path in others:
            path.rmdir()


def test_real_v2_sweep_kills_the_jars_of_a_dead_service(unified: Path, claimed: Claim, dead_pid: int) -> None:
    left = unified / _of(dead_pid, claimed)
    (left / "jar-old").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as survivor:
        (left / "jar-old/cgroup.procs").write_text(str(survivor.pid))
        delegation._sweep(unified)
        assert survivor.wait(timeout=30) == -9
    assert not left.exists()


def test_real_v1_sweep_kills_the_jars_of_a_dead_service(claimed: Claim, dead_pid: int) -> None:
    if "pids" not in claimed.paths:
        pytest.xfail("this machine has no version 1 tree")
    base = claimed.paths["pids"]
    left = base / _of(dead_pid, claimed)
    (left / "jar-old").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as survivor:
        (left / "jar-old/cgroup.procs").write_text(str(survivor.pid))
        delegation._sweep(base)
        assert survivor.wait(timeout=30) == -9
    assert not left.exists()


def test_real_v2_tree_without_the_controllers_is_no_delegation_and_keeps_nothing(unified: Path) -> None:
    if {"memory", "pids", "cpu"} <= set((unified / "cgroup.controllers").read_text().split()):
        pytest.skip("this tree has all of them")
    with pytest.raises(NoDelegation, match=r"subtree_control"):
        Claim({"v2": unified})
    assert [path.name for path in unified.iterdir() if path.is_dir()] == []


@pytest.fixture
def controller(unified: Path) -> Iterator[str]:
    """Any controller that the version 2 tree has, passed on to our directory."""
    top = unified.parent
    names = (top / "cgroup.controllers").read_text().split()
    if not names:
        pytest.skip("version 1 has every controller of this kernel")
    enabled = (top / "cgroup.subtree_control").read_text().split()
    name = next((name for name in names if name in enabled), names[0])
    (top / "cgroup.subtree_control").write_text(f"+{name}")
    yield name
    if name not in enabled:
        for control in (unified, top):
            (control / "cgroup.subtree_control").write_text(f"-{name}")


def test_real_v2_controllers_are_passed_on_to_the_jars(unified: Path, controller: str) -> None:
    place = unified / "place"
    place.mkdir()
    delegation._enable(place, [controller])
    (place / "jar").mkdir()
    assert controller in (place / "jar/cgroup.controllers").read_text().split()
    (place / "jar").rmdir()
    place.rmdir()


def test_real_v2_cgroup_that_we_are_in_ourselves_can_hold_jars(unified: Path, controller: str) -> None:
    # As in `systemd-run --user --scope -p Delegate=yes belljar …`: a scope with one process, us.
    (unified / "cgroup.subtree_control").write_text(f"+{controller}")
    scope = unified / "run.scope"
    scope.mkdir()
    code = """
delegation.V2_CONTROLLERS = (sys.argv[2],)
claim = delegation.Claim({"v2": here})
(claim.paths["v2"] / "jar").mkdir()
print((claim.paths["v2"] / "jar/cgroup.controllers").read_text())
claim.release()
"""
    done = subprocess.run(
        [sys.executable, "-c", ENTER_AND + code, str(scope), controller],
        capture_output=True,
        text=True,
        check=False,
    )
    for below in sorted(scope.glob("**/"), reverse=True):
        below.rmdir()
    assert done.stdout.split() == [controller], done.stderr


def test_nobody_has_no_delegation_here_and_is_told_which_place_was_denied(
    run_as_nobody: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    if os.getuid() != 0:
        pytest.skip("an ordinary user may have been given a cgroup; run the tests as root")
    done = run_as_nobody(
        "from belljar.engines.jail import delegation\n"
        "try: delegation.claim()\n"
        "except delegation.NoDelegation as reason: print(reason)"
    )
    assert done.stdout.startswith("/sys/fs/cgroup"), done.stderr
    assert "Permission denied" in done.stdout
