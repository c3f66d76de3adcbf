"""What the jail engine refuses, and what it does at the edges of what it has to give."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.engines.base import Area, Command
from belljar.engines.jail.engine import JailEngine
from belljar.engines.jail.watchdog import _descendants
from belljar.engines.watch import Push
from belljar.errors import BadRequest, EngineUnavailable, GrantNotEnforceable, LimitExceeded
from belljar.execution import runs
from belljar.models import Ended, Grant, InputFile, Language, Limits, Output, RunRequest, Started, Verdict

GRANT = Grant(accept_weaker_limits=True)


@pytest.fixture
async def engine() -> AsyncIterator[JailEngine]:
    engine = JailEngine()
    yield engine
    await engine.close()


@pytest.mark.parametrize(
    ("limit", "least"),
    [
        pytest.param("memory_mb", 8, id="memory"),
        pytest.param("nofile", 32, id="open-files"),
        pytest.param("workspace_files", 5, id="workspace-files"),
    ],
)
async def test_a_grant_too_small_for_any_jar_is_refused_and_the_least_one_works(
    engine: JailEngine, limit: str, least: int
) -> None:
    request = RunRequest(language=Language.PYTHON, code="print(1)")
    with pytest.raises(GrantNotEnforceable, match=f"{limit} is {least - 1}, but .* {least}") as caught:
        await runs.run(engine, _granting(**{limit: least - 1}), request)
    assert caught.value.field == limit
    with pytest.raises(BadRequest, match=f"{limit} is {least - 1}, but .* {least}") as refused:
        await engine.fit(_granting(**{limit: least - 1}), Language.PYTHON)
    assert refused.value.field == f"limits.{limit}"
    result = await runs.run(engine, _granting(**{limit: least}), request)
    assert (result.verdict, result.stdout) == (Verdict.EXITED, b"1\n")


@pytest.mark.parametrize("megabytes", [11, 40])
async def test_inputs_that_the_memory_cannot_hold_exceed_a_limit(engine: JailEngine, megabytes: int) -> None:
    jar = await engine.create(_granting(memory_mb=16, workspace_mb=64))
    with pytest.raises(LimitExceeded, match="16 MB of memory"):
        await jar.put(Area.WORK, [InputFile("big", bytes(megabytes << 20))])
    await jar.destroy()


async def test_inputs_that_the_memory_can_just_hold_are_taken(engine: JailEngine) -> None:
    jar = await engine.create(_granting(memory_mb=16, workspace_mb=64))
    await jar.put(Area.WORK, [InputFile("big", bytes(10 << 20))])
    await jar.destroy()


@pytest.mark.skipif(os.getuid() != 0, reason="only root has uids to give; run the tests as root")
async def test_the_last_uid_is_as_good_as_the_others(
    engine: JailEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belljar.engines.jail.uids.BLOCK", 1)
    for _ in range(2):
        jar = await engine.create(GRANT)
        with pytest.raises(EngineUnavailable, match="no uid is left"):
            await engine.create(GRANT)
        await jar.destroy()


async def test_only_programs_are_offered_to_the_kernel_when_memory_runs_out(engine: JailEngine) -> None:
    jar = await engine.create(GRANT)
    scores: list[str] = []
    async for event in jar.exec(Command(argv=("sleep", "60"))):
        if isinstance(event, Started):
            scores = [_oom_score(pid) for pid in _descendants(os.getpid())]
            jar.cancel()
    await jar.destroy()
    assert Counter(scores)["900\n"] == 1
    assert set(scores) == {"900\n", _oom_score(os.getpid())}


@pytest.mark.skipif(os.getuid() != 0, reason="only root is sure to have a cgroup; run the tests as root")
async def test_a_jar_that_is_lost_after_memory_ran_out_says_oom_however_late_we_look(
    engine: JailEngine,
) -> None:
    code = """
import os, sys, time
if os.fork() == 0:
    bytearray(200 << 20)
os.wait()
print("killed", flush=True)
time.sleep(60)
"""
    jar = await engine.create(_granting(memory_mb=32))
    assert engine._claim is not None
    places = [place for path in engine._claim.paths.values() for place in path.glob("jar-*")]
    verdict = None
    async for event in jar.exec(Command(argv=("python3", "-c", code))):
        if isinstance(event, Output):
            jar._kill()
            while sum(place.exists() for place in places) > len(places) // 2:  # the blank ahead has its own
                time.sleep(0.005)  # noqa: ASYNC251  the loop is to stand still until then
        elif isinstance(event, Ended):
            verdict = event.verdict
            assert event.usage.cpu_s > 0
    assert verdict is Verdict.OOM
    await jar.destroy()


async def test_a_jar_that_is_destroyed_kills_nothing_more(engine: JailEngine) -> None:
    jar = await engine.create(GRANT)
    events = jar.exec(Command(argv=("sleep", "60")))
    assert isinstance(await anext(events), Started)
    await jar.destroy()
    others = [await engine.create(GRANT) for _ in range(3)]  # of which one has its number now
    last = [event async for event in events][-1]
    jar._push(Push.KILL)
    jar._push(Push.DESTROY)
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.LOST
    for other in others:
        ended = [event async for event in other.exec(Command(argv=("true",)))][-1]
        assert isinstance(ended, Ended)
        assert ended.verdict is Verdict.EXITED
        await other.destroy()


@contextmanager
def _descriptors(spare: int) -> Iterator[None]:
    """Room for that many more, and none beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 40, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for fd in taken[:spare]:
            os.close(fd)
        yield
    finally:
        for fd in taken[spare:]:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _creates(engine: JailEngine, spare: int) -> bool:
    """With so many descriptors to spare; or it says so."""
    with _descriptors(spare):
        try:
            jar = await engine.create(GRANT)
        except EngineUnavailable as error:
            said = error.message
        else:
            await jar.destroy()
            return True
    assert "Too many open files; let this service have more (open files, memory)" in said
    return False


async def test_whichever_descriptor_is_missing_for_a_jar_nothing_of_it_is_left(engine: JailEngine) -> None:
    await (await engine.create(GRANT)).destroy()
    before = (
        len(os.listdir("/proc/self/fd")),
        engine._uids and engine._uids._free and len(engine._uids._free),
    )
    spare = 0
    while not await _creates(engine, spare):
        spare += 1
        free = engine._uids and engine._uids._free and len(engine._uids._free) - (engine._blank is None)
        assert (len(os.listdir("/proc/self/fd")), free) == before
        assert not engine._jars
    assert spare > 2


async def test_whichever_descriptor_is_missing_at_the_start_the_next_start_is_a_whole_one() -> None:
    spare, works = 0, False
    before = os.listdir("/proc/self/fd")
    while not works:
        engine = JailEngine()
        works = await _creates(engine, spare)
        jar = await engine.create(GRANT)
        assert jar.held_by["memory"].startswith("cgroup") or os.getuid() != 0
        await jar.destroy()
        await engine.close()
        assert os.listdir("/proc/self/fd") == before
        spare += 1
    assert spare > 2


def _oom_score(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text()


def _granting(**limits: int) -> Grant:
    return replace(GRANT, limits=replace(Limits(), **limits))
