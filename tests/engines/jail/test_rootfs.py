"""Any root directory with a Python can be the tree of the jars; nothing else is then to be seen."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from belljar.engines.jail.engine import JailEngine
from belljar.engines.jail.watchdog import _descendants
from belljar.errors import EngineUnavailable, UnsupportedLanguage
from belljar.execution import runs
from belljar.models import Grant, Language, RunRequest, RunResult, Start, Verdict

GRANT = Grant(accept_weaker_limits=True)


def _link(source: str, target: str) -> None:
    """The same file where that can be, else a copy."""
    source = os.path.realpath(source)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _libraries(*binaries: str | Path) -> set[str]:
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(/\S+) \(0x", listed))


@pytest.fixture(scope="module")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of Python, its library and the C libraries it needs, and no other program."""
    root = tmp_path_factory.mktemp("root")
    root.chmod(0o755)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = Path(sysconfig.get_path("stdlib"))
    (root / "usr/bin").mkdir(parents=True)
    _link(executable, str(root / "usr/bin" / version))
    (root / "usr/bin/python3").symlink_to(version)
    left_out = shutil.ignore_patterns("test", "tests", "*-packages", "config-*", "idlelib")
    shutil.copytree(library, root / "usr/lib" / version, copy_function=_link, ignore=left_out)
    for needed in _libraries(executable, *(library / "lib-dynload").glob("*.so")):
        # A library of a Python elsewhere goes where the loader of any tree looks.
        home = needed.lstrip("/") if needed.startswith(("/lib", "/usr")) else f"usr/lib/{Path(needed).name}"
        target = root / home
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(needed, str(target))
    (root / "etc").mkdir()
    (root / "etc/motto").write_text("under glass\n")
    for hidden in ("home", "root", "var"):
        (root / hidden).mkdir()
        (root / hidden / "secret").write_text("of whoever built the tree\n")
    return root


@pytest.fixture
async def engine(small_root: Path) -> AsyncIterator[JailEngine]:
    engine = JailEngine(rootfs=str(small_root))
    yield engine
    await engine.close()


async def _run(engine: JailEngine, code: str, start: Start = Start.FORK) -> RunResult:
    return await runs.run(engine, GRANT, RunRequest(code=code, start=start))


@pytest.mark.parametrize("start", Start)
async def test_python_of_the_tree_runs(engine: JailEngine, start: Start) -> None:
    result = await _run(engine, "import sys, json; print(sys.version, sys.prefix)", start)
    assert result.stdout.decode() == f"{sys.version} /usr\n", result.stderr


async def test_only_the_tree_is_to_be_seen(engine: JailEngine) -> None:
    code = """
import os
print(sorted(os.listdir("/")))
print(os.listdir("/usr/bin"), os.listdir("/etc"), open("/etc/motto").read())
"""
    top, rest = (await _run(engine, code)).stdout.decode().split("\n", 1)
    own = {"dev", "proc", "run", "tmp", "var", "workspace"}
    assert set(eval(top)) - own <= {"etc", "usr", "lib", "lib64", "opt", "root"}
    assert "under glass" in rest
    assert "bash" not in rest


async def test_homes_and_other_places_of_the_tree_stay_hidden(engine: JailEngine) -> None:
    code = """
import os
for name in ("home", "root", "var"):
    print(os.path.exists(f"/{name}/secret"))
"""
    assert (await _run(engine, code)).stdout == b"False\nFalse\nFalse\n"


async def test_nothing_of_the_host_is_to_be_seen(
    engine: JailEngine, small_root: Path, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("of the host\n")
    places = [str(canary), __file__, str(small_root), "/etc/hostname", "/usr/bin/env", "/sys"]
    code = f"import os; print([place for place in {places} if os.path.exists(place)])"
    assert (await _run(engine, code)).stdout == b"[]\n"


async def test_the_tree_is_read_only(engine: JailEngine, small_root: Path) -> None:
    code = """
import os
for path in ("/", "/usr", "/usr/bin", "/etc"):
    try:
        open(path + "/new", "w")
    except OSError as error:
        print(os.strerror(error.errno))
"""
    assert (await _run(engine, code)).stdout == 4 * b"Read-only file system\n"
    assert "new" not in [*os.listdir(small_root), *os.listdir(small_root / "usr/bin")]


async def test_a_language_the_tree_lacks_is_unsupported(engine: JailEngine) -> None:
    assert list(engine.interpreters()) == [Language.PYTHON]
    with pytest.raises(UnsupportedLanguage, match="no interpreter for bash; it has python"):
        await runs.run(engine, GRANT, RunRequest(language=Language.BASH, code="true"))


async def test_a_module_that_hangs_when_it_is_preloaded_does_not_hang_the_engine(
    small_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (library,) = (small_root / "usr/lib").glob("python3*")
    (library / "hangs.py").write_text("import time; time.sleep(90)")
    monkeypatch.setattr("belljar.engines.jail.launcher_process.START_S", 5.0)
    engine = JailEngine(rootfs=str(small_root), preload=("hangs",))
    others = {os.getpid(), *_descendants(os.getpid())}
    creating = asyncio.create_task(engine.create(GRANT))
    started: set[int] = set()
    async with asyncio.timeout(60):
        while not creating.done():
            started |= {*_descendants(os.getpid())} - others
            await asyncio.sleep(0.05)
        with pytest.raises(EngineUnavailable, match="did not start within 5 s; what it preloads may hang"):
            await creating
        while started & set(map(int, filter(str.isdigit, os.listdir("/proc")))):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert len(started) >= 2  # what starts it, and the launcher itself
    await engine.close()


def _empty(root: Path) -> None:
    root.mkdir()


def _absent(root: Path) -> None:
    pass


@pytest.mark.parametrize("build", [_empty, _absent])
def test_a_tree_without_python_is_refused_at_once(tmp_path: Path, build: Callable[[Path], None]) -> None:
    build(tmp_path / "root")
    with pytest.raises(EngineUnavailable, match=r"sandbox\.jail\.rootfs: there is no python3 in .*/root"):
        JailEngine(rootfs=str(tmp_path / "root"))


async def test_a_tree_whose_python_cannot_run_is_unavailable_and_says_why(tmp_path: Path) -> None:
    program = tmp_path / "root/usr/bin/python3"
    program.parent.mkdir(parents=True)
    program.write_text("not a program\n")
    program.chmod(0o755)
    engine = JailEngine(rootfs=str(tmp_path / "root"))
    with pytest.raises(EngineUnavailable, match="launcher ended: .*python3"):
        await engine.create(GRANT)
    await engine.close()


async def test_a_python_found_through_an_absolute_link_is_the_tree_s_own(
    small_root: Path, tmp_path: Path
) -> None:
    # As in images whose python3 points to /opt/…: a link of the tree must not be followed on the host.
    root = tmp_path / "root"
    shutil.copytree(small_root, root, copy_function=_link, symlinks=True)
    version = os.readlink(root / "usr/bin/python3")
    (root / "usr/bin/python3").unlink()
    (root / "usr/bin" / version).rename(root / "usr/bin/own-python")
    (root / "usr/bin/python3").symlink_to("/usr/bin/own-python")
    engine = JailEngine(rootfs=str(root))
    result = await _run(engine, "print(1)")
    assert (result.verdict, result.stdout) == (Verdict.EXITED, b"1\n")
    await engine.close()


def test_a_link_that_only_the_host_can_follow_is_no_python(tmp_path: Path) -> None:
    program = tmp_path / "root/usr/bin/python3"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    with pytest.raises(EngineUnavailable, match="there is no python3"):
        JailEngine(rootfs=str(tmp_path / "root"))


def test_a_shell_that_only_the_host_has_is_no_language_of_the_tree(small_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(small_root, root, copy_function=_link, symlinks=True)
    (root / "usr/bin/bash").symlink_to("/etc/passwd")  # a file of the host, not of the tree
    assert list(JailEngine(rootfs=str(root)).interpreters()) == [Language.PYTHON]
    (root / "usr/bin/bash").unlink()
    (root / "usr/bin/bash").symlink_to("/usr/bin/own-bash")
    (root / "usr/bin/own-bash").touch()
    assert list(JailEngine(rootfs=str(root)).interpreters()) == [Language.PYTHON, Language.BASH]
