"""Docker itself dies in the middle of a run, or maps ids: with a real one of the test's own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
from tests.engines.docker.conftest import ours
from tests.engines.docker.daemons import Daemon, daemon

from belljar.engines.base import Area, Command, Jar
from belljar.engines.docker.api import Api
from belljar.engines.docker.engine import DockerEngine
from belljar.engines.docker.images import DEFAULT
from belljar.errors import EngineUnavailable
from belljar.execution.pool import Pool
from belljar.models import Ended, Event, Grant, InputFile, Output, Started, Verdict

LONG = Command(argv=("sh", "-c", "trap '' TERM; sleep 600 & sleep 600"))


@pytest.fixture
async def mortal(api: Api) -> AsyncIterator[Daemon]:
    async with daemon(api, DEFAULT) as mortal:
        yield mortal


async def run(jar: Jar, *argv: str) -> Event:
    try:
        return [event async for event in jar.exec(Command(argv=argv))][-1]
    finally:
        await jar.destroy()


async def filled(pool: Pool, idle: int) -> None:
    async with asyncio.timeout(60):
        while pool.state.idle < idle:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_docker_that_is_killed_loses_its_runs_and_heals_when_it_is_back(mortal: Daemon) -> None:
    engine = DockerEngine(host=mortal.host)
    pool = Pool(engine, min_idle=1, max_idle=1, period_s=0.5)
    pool.keep(Grant())
    jar = await pool.create(Grant())
    await filled(pool, 1)
    events = jar.exec(LONG)
    assert isinstance(await anext(events), Started)

    mortal.end(signal.SIGKILL)
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.LOST
    await jar.destroy()
    with pytest.raises(EngineUnavailable, match="no docker engine answers at .*start it"):
        await pool.create(Grant())
    assert not (await pool.probe()).usable
    assert pool.state.idle == 0

    await mortal.start()
    ended = await run(await pool.create(Grant()), "true")
    assert isinstance(ended, Ended)
    assert ended.verdict is Verdict.EXITED
    await filled(pool, 1)
    await engine.left_behind()
    there = await Api.open(mortal.host)
    assert len([name for name in await ours(there) if name.startswith("/")]) == 1  # the one that waits
    await pool.close()
    assert await ours(there) == []
    await there.close()


@pytest.fixture
async def remapping(api: Api) -> AsyncIterator[Daemon]:
    ranges = "nobody:200000:65536\nnogroup:300000:65536\n"
    etc = {"subuid": ranges, "subgid": ranges}
    async with daemon(api, DEFAULT, "--userns-remap=nobody:nogroup", etc=etc) as remapping:
        yield remapping


async def test_a_docker_that_remaps_ids_will_do(remapping: Daemon) -> None:
    """Inputs are written by another container than the one that reads them."""
    engine = DockerEngine(host=remapping.host)
    jar = await engine.create(Grant())
    await jar.put(Area.INPUTS, [InputFile("given", b"given\n")])
    script = "id -u; cat /workspace/inputs/given /proc/self/uid_map; echo > made; echo > /workspace/inputs/x"
    events = [event async for event in jar.exec(Command(argv=("sh", "-c", script)))]
    said = b"".join(event.data for event in events if isinstance(event, Output)).split()
    assert said[:5] == [b"1000", b"given", b"0", b"200000", b"65536"]
    assert b"Read-only" in said
    assert [artifact.path for artifact in (await jar.collect(None)).artifacts] == ["made"]
    await jar.destroy()
    await engine.close()
