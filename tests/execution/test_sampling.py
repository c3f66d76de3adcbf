"""What jars take right now, on the real engine; looked at by hand, so that nothing depends on a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest_asyncio

from belljar.config import load
from belljar.execution.live import LiveRun
from belljar.execution.sampling import CPU_IN_A_ROW, Alert, Sampler
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest
from belljar.service import Service

if TYPE_CHECKING:
    import pytest


async def _never(_: Sampler) -> None:
    """The service's own would tell of the same once more."""


@pytest_asyncio.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(Sampler, "watch", _never)
    config = load(environ={}, cwd=Path("/"), home=tmp_path, machine_file=tmp_path / "none")
    async with Service.open(replace(config, data_dir=tmp_path / "data"), person=True) as service:
        yield service


@pytest_asyncio.fixture
async def sampler(service: Service) -> Sampler:
    """One that only looks when it is told to."""
    return Sampler(service.lifecycle, service.sessions, service.metrics)


async def begin(service: Service, code: str, **overrides: object) -> LiveRun:
    """A run that has written something."""
    request = RunRequest(language=Language.PYTHON, code=code)
    live = await service.lifecycle.submit(Submission(request=request, overrides=overrides, project_id="p"))
    assert isinstance(live, LiveRun)
    async for event in live.log.follow():
        if event.kind == "stdout":
            break
    return live


async def end(live: LiveRun) -> list[str]:
    live.cancel()
    outcome = await live.outcome()
    assert outcome.record.verdict == "cancelled"
    return [f"{event.kind} {event.data.get('resource')}" async for event in live.log.follow()]


async def test_a_busy_run_is_told_of_once(service: Service, sampler: Sampler) -> None:
    live = await begin(service, "print(1, flush=True)\nwhile True: pass")
    # However much of the machine others take.
    live.grant = replace(live.grant, limits=replace(live.grant.limits, cpu_cores=0.01))
    async with asyncio.timeout(60):
        while not any(one.alerts for one in sampler.usage()):
            await asyncio.sleep(0.3)
            await sampler.look()
    [usage] = sampler.usage()
    assert usage.alerts == (Alert.CPU,)
    assert usage.cpu_usage_percent > 0
    await sampler.look()
    assert (await end(live)).count("alert cpu") == 1
    assert b'sandbox_alerts_total{resource="cpu"} 1.0' in service.metrics.text()
    await sampler.look()
    assert sampler.usage() == []


async def test_a_run_near_its_memory_is_told_of(service: Service, sampler: Sampler) -> None:
    code = "x = bytearray(95 << 20)\nprint(1, flush=True)\nimport time\ntime.sleep(60)"
    live = await begin(service, code, memory_mb=100)
    live.grant = replace(live.grant, limits=replace(live.grant.limits, memory_mb=90))
    await sampler.look()
    [usage] = sampler.usage()
    assert usage.alerts == (Alert.MEMORY,)
    assert usage.memory_usage_mb > 90
    assert "alert memory" in await end(live)


async def test_a_session_is_one_jar_however_many_run_in_it(service: Service, sampler: Sampler) -> None:
    session = await service.sessions.start("p")
    request = RunRequest(language=Language.BASH, code="sleep 60 & sleep 60 & wait")
    live = await service.sessions.submit(session, Submission(request=request))
    assert isinstance(live, LiveRun)
    async with asyncio.timeout(60):
        while (
            not (pids := [one.pids_current for one in sampler.usage() if one.id == session.id]) or pids[0] < 3
        ):
            await sampler.look()
    assert [(one.kind, one.project_id) for one in sampler.usage()] == [("session", "p")]
    assert sampler.usage(frozenset({"q"})) == []
    live.cancel()


async def test_an_idle_session_raises_nothing(service: Service, sampler: Sampler) -> None:
    await service.sessions.start("p")
    for _ in range(CPU_IN_A_ROW + 1):
        await asyncio.sleep(0.1)  # so long that what a jar does just after its start is little
        await sampler.look()
    [usage] = sampler.usage()
    assert usage.alerts == ()
    assert 0 < usage.memory_usage_mb < usage.memory_limit_mb
