"""What the jail engine refuses, and what it does at the edges of what it has to give."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.engines.base import Area, Command
from belljar.engines.jail.engine import JailEngine
from belljar.engines.jail.watchdog import _descendants
from belljar.errors import EngineUnavailable, GrantNotEnforceable, LimitExceeded
from belljar.execution import runs
from belljar.models import Grant, InputFile, Language, Limits, RunRequest, Started, Verdict

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


def _oom_score(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text()


def _granting(**limits: int) -> Grant:
    return replace(GRANT, limits=replace(Limits(), **limits))
