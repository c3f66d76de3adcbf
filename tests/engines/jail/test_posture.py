"""A jar with one layer missing is refused before anything runs in it.

The jars here are real: the launcher's own text is changed in one place on its way into the launcher, so that
one layer is not there. Either the kernel stops such a jar itself, or the posture check has to.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from belljar.engines.cgroup import Cgroup, limits_for
from belljar.engines.jail.engine import JailEngine
from belljar.errors import EngineUnavailable, PostureMismatch
from belljar.guest import bundle
from belljar.models import Grant, Limits

Ablate = Callable[[str, str, str], None]

GRANT = Grant(limits=Limits(memory_mb=64, pids=16), accept_weaker_limits=True)


@pytest.fixture
def ablate(monkeypatch: pytest.MonkeyPatch) -> Ablate:
    """Change one place of a module of the jail in every launcher that starts from now on."""

    def change(module: str, old: str, new: str) -> None:
        class Folder:
            def __init__(self, package: str) -> None:
                self._package = package

            def joinpath(self, name: str) -> SimpleNamespace:
                text = resources.files(self._package).joinpath(name).read_text("utf-8")
                if self._package.endswith(".jail") and name == f"{module}.py":
                    assert text.count(old) == 1, f"{module}.py has {old!r} {text.count(old)} times"
                    text = text.replace(old, new)
                return SimpleNamespace(read_text=lambda encoding: text)

        monkeypatch.setattr(bundle, "files", Folder)

    return change


@pytest.fixture
async def engine() -> AsyncIterator[JailEngine]:
    engine = JailEngine()
    yield engine
    await engine.close()


@pytest.fixture
def sleeping_pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def _jars(engine: JailEngine) -> list[Path]:
    assert engine._claim is not None, "no cgroup can be had; run as root"
    return [jar for place in engine._claim.paths.values() for jar in place.glob("jar-*")]


ABLATIONS = [
    pytest.param("privileges", "syscalls.install_seccomp(seccomp_program)", "pass", "Seccomp", id="seccomp"),
    pytest.param(
        "privileges",
        """    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_seccomp(seccomp_program)
""",
        "    syscalls.install_seccomp(seccomp_program)\n    syscalls.drop_capabilities()\n",
        "NoNewPrivs",
        id="no-new-privileges",
    ),
    pytest.param("privileges", "syscalls.drop_capabilities()", "pass", "Cap", id="capabilities"),
    pytest.param("launcher", "sc.drop_bounding_set()", "pass", "CapBnd", id="bounding-set"),
    pytest.param("launcher", 'order["uid"])', 'order["uid"] + 1)', "Uid", id="uid"),
    pytest.param("boot", "os.setgroups([])", "os.setgroups([4])", "Groups", id="groups"),
    pytest.param("launcher", "| sc.CLONE_NEWIPC", "", "ipc namespace", id="ipc-namespace"),
    pytest.param(
        "launcher", "sc.unshare(sc.CLONE_NEWCGROUP)", "pass", "cgroup namespace", id="cgroup-namespace"
    ),
    pytest.param("rootfs", "sc.MS_BIND | sc.MS_RDONLY", "sc.MS_BIND", "writable", id="root-writable"),
    pytest.param(
        "rootfs", "_READ_ONLY = sc.MOUNT_ATTR_RDONLY |", "_READ_ONLY =", "writable", id="usr-writable"
    ),
    pytest.param(
        "mounts", "sc.MS_BIND | sc.MS_RDONLY | _NO_PROGRAMS", "sc.MS_BIND", "/proc", id="proc-writable"
    ),
    pytest.param(
        "mounts",
        "sc.MS_BIND | sc.MS_RDONLY | _GUARDED",
        "sc.MS_BIND | _GUARDED",
        "/workspace/inputs",
        id="inputs-writable",
    ),
    pytest.param(
        "mounts", '_tmpfs("/tmp", _NO_PROGRAMS', '_tmpfs("/tmp", _GUARDED', "/tmp", id="tmp-executable"
    ),
    pytest.param(
        "launcher",
        "close_descriptors([channel_fd,",
        "close_descriptors([channel_fd, self._control.fileno(),",
        "descriptor",
        id="launchers-socket",
    ),
    pytest.param(
        "launcher",
        "close_descriptors([channel_fd,",
        "close_descriptors([channel_fd, *self._parents.values(),",
        "descriptor",
        id="cgroup-directories",
    ),
    pytest.param(
        "launcher",
        'set_limits(order["cgroup"])',
        'set_limits({**order["cgroup"], "pids": 999})',
        "cgroup limits",
        id="other-limits",
    ),
    pytest.param("launcher", "doors.walk_in()", "pass", "cgroup", id="not-in-its-cgroup"),
    pytest.param(
        "privileges",
        "resource.RLIMIT_NOFILE: nofile",
        "resource.RLIMIT_NOFILE: 4096",
        "open files",
        id="nofile",
    ),
]


@pytest.mark.parametrize(("module", "old", "new", "named"), ABLATIONS)
async def test_a_jar_without_one_layer_is_refused_and_taken_away(
    engine: JailEngine, ablate: Ablate, module: str, old: str, new: str, named: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("cgroups, uids and groups are root's to get wrong; run as root")
    ablate(module, old, new)
    with pytest.raises(PostureMismatch, match=named):
        await engine.create(GRANT)
    assert _jars(engine) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("sc.CLONE_NEWUSER |", "", id="user"),
        pytest.param("| sc.CLONE_NEWNS ", "", id="mount"),
        pytest.param("| sc.CLONE_NEWPID ", "", id="pid"),
        pytest.param("| sc.CLONE_NEWNET ", "", id="net"),
        pytest.param(" | sc.CLONE_NEWUTS", "", id="uts"),
    ],
)
async def test_a_jar_without_one_namespace_is_never_made(
    engine: JailEngine, ablate: Ablate, old: str, new: str
) -> None:
    ablate("launcher", old, new)
    with pytest.raises(EngineUnavailable):
        await engine.create(GRANT)


async def test_a_sealed_jar_passes_and_equal_jars_have_equal_digests(engine: JailEngine) -> None:
    first, second = await engine.create(GRANT), await engine.create(GRANT)
    other = await engine.create(Grant(limits=Limits(memory_mb=65, pids=16), accept_weaker_limits=True))
    assert len(first.posture) == 64
    assert first.posture == second.posture != other.posture
    for jar in (first, second, other):
        await jar.destroy()


def _held(engine: JailEngine) -> list[dict[str, int]]:
    """By each cgroup, but for that of the blank that waits for the next jar: it may just be in the making."""
    assert engine._claim is not None
    assert engine._blank is not None
    names = {path.name for path in _jars(engine)} - {engine._blank[0]}
    return [Cgroup(engine._claim.parents, name).limits() for name in names]


async def test_a_limit_changed_behind_our_back_is_a_mismatch(engine: JailEngine) -> None:
    if os.getuid() != 0:
        pytest.skip("without a cgroup there is no limit to change; run as root")
    jar = await engine.create(GRANT)
    granted = limits_for(64, 16, 1.0)
    assert granted in _held(engine)
    for path in _jars(engine):
        if (path / "pids.max").exists():
            (path / "pids.max").write_text("500")
    assert granted not in _held(engine)
    await jar.destroy()


async def test_an_ordinary_process_is_no_jar(
    engine: JailEngine, monkeypatch: pytest.MonkeyPatch, sleeping_pid: int
) -> None:
    monkeypatch.setattr("belljar.engines.jail.launcher_process._host_pid", lambda _: sleeping_pid)
    with pytest.raises(PostureMismatch, match="Seccomp"):
        await engine.create(GRANT)
    assert _jars(engine) == []


async def test_a_jar_that_died_before_it_was_looked_at_is_unavailable(
    engine: JailEngine, monkeypatch: pytest.MonkeyPatch, dead_pid: int
) -> None:
    monkeypatch.setattr("belljar.engines.jail.launcher_process._host_pid", lambda _: dead_pid)
    with pytest.raises(EngineUnavailable):
        await engine.create(GRANT)
    assert _jars(engine) == []
