"""Every running jar has a uid of the host to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from belljar.engines.jail import posture
from belljar.engines.jail.engine import JailEngine
from belljar.engines.jail.uids import BLOCK, Uids
from belljar.errors import EngineUnavailable, PostureMismatch
from belljar.models import Grant

BASE = 2_000_000

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root has uids to give; run the tests as root")


@pytest.fixture
async def engine() -> AsyncIterator[JailEngine]:
    engine = JailEngine(uid_base=BASE)
    yield engine
    await engine.close()


def _left(engine: JailEngine) -> set[int]:
    assert engine._uids is not None
    assert engine._uids._free is not None
    return set(engine._uids._free)


@as_root
def test_no_two_services_hand_out_the_same_uid() -> None:
    one, other = Uids(BASE), Uids(BASE)
    taken = [{uids.take() for _ in range(BLOCK)} for uids in (one, other)]
    assert len(taken[0] | taken[1]) == 2 * BLOCK
    assert min(taken[0] | taken[1]) >= BASE
    for uids in (one, other):
        uids.close()


@as_root
def test_a_uid_that_came_back_can_be_taken_again_and_none_before() -> None:
    uids = Uids(BASE)
    taken = [uids.take() for _ in range(BLOCK)]
    with pytest.raises(EngineUnavailable, match=f"{BLOCK} jars are running"):
        uids.take()
    uids.give_back(taken[7])
    assert uids.take() == taken[7]
    uids.close()


@as_root
def test_the_block_of_a_service_that_was_killed_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among locks of the test's own: of the machine's somebody else may take that block at once."""
    monkeypatch.setattr("belljar.engines.jail.uids._LOCKS", tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from belljar.engines.jail import uids;"
        f"uids._LOCKS = Path(sys.argv[1]); taken = uids.Uids({BASE});"
        "print(taken.take(), flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        its_first = int(service.stdout.readline())
        service.kill()
    uids = Uids(BASE)  # takes the lowest block that is free
    assert uids.take() == its_first
    uids.close()


@as_root
async def test_running_jars_have_different_uids_and_give_them_back(engine: JailEngine) -> None:
    jars = [await engine.create(Grant()) for _ in range(3)]
    assert engine._claim is not None
    place = next(iter(engine._claim.paths.values()))
    blank = engine._blank[0] if engine._blank else ""  # forked ahead, perhaps not yet of its uid
    uids = [_uids_in(path / "cgroup.procs") for path in place.glob("jar-*") if path.name != blank]
    assert [len(of_one_jar) for of_one_jar in uids] == [1, 1, 1]
    different = set().union(*uids)
    assert len(different) == 3
    assert min(different) >= BASE
    assert not different & _left(engine)
    for jar in jars:
        await jar.destroy()
    assert different <= _left(engine)


def _uids_in(procs: Path) -> set[int]:
    """Real, effective, saved and file system uids of every process of a jar."""
    found: set[int] = set()
    for pid in procs.read_text().split():
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("Uid:")]
        found |= set(map(int, line.split()[1:]))
    return found


@as_root
async def test_a_jar_that_was_refused_gives_its_uid_back(
    engine: JailEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await engine.create(Grant())).destroy()

    def refuse(*_: object, **__: object) -> str:
        raise PostureMismatch("not what was granted")

    monkeypatch.setattr(posture, "check", refuse)
    for _ in range(3):
        with pytest.raises(PostureMismatch):
            await engine.create(Grant())
    assert len(_left(engine)) == BLOCK


def test_an_ordinary_user_has_one_uid_and_touches_no_lock(
    run_as_nobody: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = (
        "from belljar.engines.jail.uids import Uids; uids = Uids(2_000_000);"
        "print(uids.take(), uids.take()); uids.give_back(0); uids.close()"
    )
    done = run_as_nobody(code)
    assert done.stdout.split() == ["0", "0"], done.stderr
