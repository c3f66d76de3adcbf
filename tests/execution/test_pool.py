"""Jars kept ahead of demand. Most of it on the engine in memory, and once on the real one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from belljar.engines.base import Jar
from belljar.engines.fake import FakeEngine
from belljar.engines.jail.engine import JailEngine
from belljar.errors import EngineUnavailable
from belljar.execution import runs, upkeep
from belljar.execution.pool import Pool
from belljar.execution.shapes import shape_of
from belljar.models import Grant, Language, Limits, RunRequest, Verdict

GRANT = Grant()
OTHER = Grant(limits=Limits(memory_mb=64))


class CountingEngine(FakeEngine):
    """The engine in memory, which remembers every jar that it made; made to fail at will."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Jar] = []
        self.fault: Exception | None = None
        self.failed = 0

    async def create(self, grant: Grant):  # type: ignore[no-untyped-def]
        if self.fault is not None:
            self.failed += 1
            raise self.fault
        jar = await super().create(grant)
        self.made.append(jar)
        return jar


@asynccontextmanager
async def a_pool(
    engine: FakeEngine, *, min_idle: int = 1, max_idle: int = 4, period_s: float = 60
) -> AsyncIterator[Pool]:
    pool = Pool(engine, min_idle=min_idle, max_idle=max_idle, period_s=period_s)
    try:
        yield pool
    finally:
        await pool.close()


async def until(so: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not so():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


async def idle(pool: Pool, count: int) -> None:
    """Waits until so many jars lie ready."""
    await until(lambda: pool.state.idle == count and not pool.state.making)


async def test_a_kept_shape_is_ready_before_anybody_asks() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=2) as pool:
        pool.keep(GRANT)
        await idle(pool, 2)
        jar = await pool.create(GRANT)
        assert jar in engine.made[:2]


async def test_a_jar_is_handed_out_once() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=2) as pool:
        pool.keep(GRANT)
        taken = [await pool.create(GRANT) for _ in range(20)]
        assert len({id(jar) for jar in taken}) == 20


async def test_a_shape_that_was_never_seen_is_made_on_the_spot() -> None:
    engine = CountingEngine()
    async with a_pool(engine) as pool:
        jar = await pool.create(OTHER)
        assert engine.made == [jar]


async def test_one_call_of_a_shape_keeps_nothing_for_it_and_the_second_does() -> None:
    async with a_pool(CountingEngine()) as pool:
        await pool.create(OTHER)
        await asyncio.sleep(0.05)
        assert pool.state.idle == 0
        await pool.create(OTHER)
        await idle(pool, 1)


async def test_grants_of_one_shape_share_jars_and_each_gets_its_own_clocks() -> None:
    async with a_pool(CountingEngine()) as pool:
        pool.keep(GRANT)
        await idle(pool, 1)
        hasty = replace(GRANT, limits=replace(GRANT.limits, timeout_s=0.2, grace_s=0))
        result = await runs.run(pool, hasty, RunRequest(command=("sleep", "30")))
        assert result.verdict is Verdict.TIMEOUT


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory_mb", 64), ("cpu_cores", 0.5), ("pids", 9), ("nofile", 99), ("workspace_mb", 9), ("tmp_mb", 9)],
)
def test_what_a_jar_is_made_of_makes_another_shape(field: str, value: float) -> None:
    assert shape_of(replace(GRANT, limits=replace(GRANT.limits, **{field: value}))) != shape_of(GRANT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "grant",
    [
        pytest.param(replace(GRANT, image="python"), id="image"),
        pytest.param(replace(GRANT, network=replace(GRANT.network, enabled=True)), id="network"),
        pytest.param(replace(GRANT, accept_weaker_limits=True), id="weaker limits"),
    ],
)
def test_how_a_jar_is_held_makes_another_shape(grant: Grant) -> None:
    assert shape_of(grant) != shape_of(GRANT)


async def test_a_fault_does_not_end_the_filling_nor_the_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LEAST_REST_S", 0.01)
    engine = CountingEngine()
    engine.fault = OSError(errno.EMFILE, "too many open files")
    async with a_pool(engine) as pool:
        pool.keep(GRANT)
        await until(lambda: engine.failed > 1)
        engine.fault = None
        await idle(pool, 1)
    assert not engine.made[0].alive


async def test_without_room_for_jars_no_shape_is_remembered() -> None:
    async with a_pool(CountingEngine(), min_idle=0, max_idle=0) as pool:
        for memory_mb in range(64, 74):
            await pool.create(Grant(limits=Limits(memory_mb=memory_mb)))
        assert pool.state.shapes == 0


async def test_a_shelf_grows_when_it_is_found_empty() -> None:
    async with a_pool(CountingEngine(), min_idle=1, max_idle=3) as pool:
        pool.keep(GRANT)
        for _ in range(6):
            await pool.create(GRANT)
        await idle(pool, 3)


async def test_a_shelf_shrinks_to_its_least_when_nobody_asks() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=1, max_idle=4, period_s=0.05) as pool:
        pool.keep(GRANT)
        for _ in range(8):
            await pool.create(GRANT)
        await until(lambda: pool.state.idle == 1 and sum(jar.alive for jar in engine.made) == 8 + 1)


async def test_there_are_never_more_than_the_most() -> None:
    async with a_pool(CountingEngine(), min_idle=0, max_idle=3) as pool:
        for memory in range(40, 60):
            grant = Grant(limits=Limits(memory_mb=memory))
            for _ in range(3):
                await pool.create(grant)
            await asyncio.sleep(0.02)
            assert pool.state.idle <= 3


async def test_a_shape_asked_for_now_takes_the_room_of_one_asked_for_before() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=0, max_idle=1) as pool:
        await pool.create(GRANT)
        await pool.create(GRANT)
        await idle(pool, 1)
        ousted = engine.made[-1]
        await pool.create(OTHER)
        await pool.create(OTHER)
        await until(lambda: not ousted.alive)
        await idle(pool, 1)
        assert await pool.create(OTHER) is engine.made[-1]


async def test_a_jar_that_died_on_the_shelf_is_not_handed_out() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=1) as pool:
        pool.keep(GRANT)
        await idle(pool, 1)
        await engine.made[0].destroy()
        jar = await pool.create(GRANT)
        assert jar.alive
        assert jar is not engine.made[0]


async def test_dead_jars_are_replaced_without_being_asked() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=1, period_s=0.05) as pool:
        pool.keep(GRANT)
        await idle(pool, 1)
        await engine.made[0].destroy()
        await until(lambda: len(engine.made) == 2)
        await idle(pool, 1)


async def test_an_engine_that_fails_is_the_callers_to_hear() -> None:
    engine = CountingEngine()
    async with a_pool(engine) as pool:
        engine.fault = EngineUnavailable("broken for this test")
        pool.keep(GRANT)
        with pytest.raises(EngineUnavailable, match="broken"):
            await pool.create(GRANT)


async def test_closing_leaves_no_jar_alive() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=3) as pool:
        pool.keep(GRANT)
        await idle(pool, 3)
    assert not any(jar.alive for jar in engine.made)


async def test_nothing_is_kept_where_the_most_is_none() -> None:
    engine = CountingEngine()
    async with a_pool(engine, min_idle=0, max_idle=0) as pool:
        pool.keep(GRANT)
        for _ in range(3):
            await pool.create(GRANT)
        await asyncio.sleep(0.02)
        assert len(engine.made) == 3


async def test_a_real_jar_from_the_pool_runs_a_program_and_the_next_is_another() -> None:
    pool = Pool(JailEngine(), min_idle=2, max_idle=2)
    grant = Grant(accept_weaker_limits=True)
    try:
        pool.keep(grant)
        await idle(pool, 2)
        leave = "open('/tmp/left', 'x'); open('left', 'x'); print('first')"
        for _ in range(4):
            result = await runs.run(pool, grant, RunRequest(language=Language.PYTHON, code=leave))
            assert (result.stdout, result.stderr) == (b"first\n", b"")
    finally:
        await pool.close()
