"""That a terminal was there is written down, and so is its end, however it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from belljar.config import Config, load
from belljar.engines import kept
from belljar.errors import LimitExceeded
from belljar.execution.terminals import KIND, terminal
from belljar.service import Service


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = load(environ={}, cwd=Path("/"), home=tmp_path, machine_file=tmp_path / "none")
    return replace(found, data_dir=tmp_path / "data")


@pytest_asyncio.fixture
async def service(config: Config) -> AsyncIterator[Service]:
    async with Service.open(config, person=True) as service:
        yield service


async def test_one_that_could_not_be_begun_has_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MAX_TERMINALS", 0)
    session = await service.sessions.start("p")
    with pytest.raises(LimitExceeded):
        async with terminal(service.lifecycle, session, rows=24, columns=80, kind="xterm"):
            pass
    assert not await service.store.matters(KIND, "open")
    assert len(await service.store.matters(KIND, "ended")) == 1


async def test_those_of_a_service_that_was_killed_have_ended_with_it(config: Config) -> None:
    async with Service.open(config, person=True) as service:
        session = await service.sessions.start("p")
        async with terminal(service.lifecycle, session, rows=24, columns=80, kind="xterm"):
            [matter] = await service.store.matters(KIND, "open")
            dead = replace(matter, id="te-dead", body={**matter.body, "epoch": service.lifecycle.epoch + "0"})
            await service.store.open_matter(dead)
            await service.store.open_matter(replace(matter, id="te-old", body={"session_id": session.id}))
    async with Service.open(config, person=True) as service:
        assert not await service.store.matters(KIND, "open")
        assert {one.id for one in await service.store.matters(KIND, "ended")} >= {"te-dead", "te-old"}
