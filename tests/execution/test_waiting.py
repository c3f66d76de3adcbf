"""Waiting for a person when something goes wrong: one outcome all the same, and no bytes left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import opened
from tests.execution.test_approvals import PERSON, asked, asking, waiting_files

from belljar.audit.records import ExecRecord, Status
from belljar.errors import EngineUnavailable, QueueFull, StoreUnavailable
from belljar.execution import approvals, waiting
from belljar.execution.approvals import ApprovalState
from belljar.execution.live import LiveRun
from belljar.execution.sessions import Sessions
from belljar.models import Grant, Language, Verdict
from belljar.service import Service
from belljar.settings import Profile


class Store:
    """The real one, but for what a test does instead."""

    def __init__(self, service: Service, **instead: Any) -> None:
        self._real = service.store
        vars(self).update(instead)
        service.lifecycle._waiting = replace(service.lifecycle._waiting, store=self)
        service.lifecycle.approvals._store = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def fails(*_: Any) -> Any:
    raise StoreUnavailable("no room")


async def test_a_run_that_is_not_accepted_leaves_no_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        Store(service, accept=fails)
        with pytest.raises(StoreUnavailable):
            await service.lifecycle.submit(asking())
        assert not waiting_files(tmp_path)
        assert not service.lifecycle.live_ids


async def test_a_request_that_is_another_run_already_leaves_only_that_one_s_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        live, _ = await asked(service, asking(request_id="r1"))
        real = service.store

        async def unknown(*_: Any) -> None:
            """Both were asked for at the same instant."""

        service.lifecycle.store = type("Store", (), {"find_request": unknown})()
        again = await service.lifecycle.submit(asking(request_id="r1"))
        service.lifecycle.store = real
        assert again is live
        assert [path.stem for path in waiting_files(tmp_path)] == [live.record.exec_id]


async def test_a_run_that_nobody_could_be_asked_about_is_lost_and_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        Store(service, open_matter=fails)
        live = await service.lifecycle.submit(asking())
        assert isinstance(live, LiveRun)
        record = (await live.outcome()).record
        assert (record.status, record.verdict) == (Status.FINISHED, Verdict.LOST)
        assert "nobody could be asked" in str(record.error_reason)
        assert not waiting_files(tmp_path)


async def test_a_run_that_is_cancelled_leaves_no_bytes_although_the_store_is_down(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        live, approval = await asked(service)
        Store(service, move_matter=fails)
        await service.lifecycle.cancel(live.record.exec_id)
        assert (await live.outcome()).record.verdict == Verdict.CANCELLED
        assert not waiting_files(tmp_path)
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        assert (await service.lifecycle.approvals.get(approval.id)).state is ApprovalState.VOID


async def test_a_run_that_is_cancelled_before_it_waits_does_not_wait(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        real = service.store

        async def accepted(record: ExecRecord) -> ExecRecord:
            await service.lifecycle.cancel(record.exec_id)
            return await real.accept(record)

        Store(service, accept=accepted)
        live = await service.lifecycle.submit(asking())
        assert isinstance(live, LiveRun)
        assert (await live.outcome()).record.verdict == Verdict.CANCELLED
        assert not service.lifecycle.approvals._waiting
        assert not await service.lifecycle.approvals.known()
        assert not waiting_files(tmp_path)


async def test_those_that_ask_at_the_same_instant_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MAX_WAITING_PER_PROJECT", 3)
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        taken = await asyncio.gather(
            *(service.lifecycle.submit(asking()) for _ in range(10)), return_exceptions=True
        )
        assert sum(isinstance(one, LiveRun) for one in taken) == 3
        assert sum(isinstance(one, QueueFull) for one in taken) == 7
        assert len(waiting_files(tmp_path)) == 3


async def test_a_service_that_cannot_start_leaves_nobody_waiting_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        service.lifecycle.epoch += "0"  # as if it had been another process
        live, _ = await asked(service)
    with monkeypatch.context() as patch:
        patch.setattr(Sessions, "recover", fails)
        with pytest.raises(StoreUnavailable):
            async with opened(tmp_path, profile=Profile.SUPERVISED):
                pass
    assert live.record.exec_id not in {task.get_name() for task in asyncio.all_tasks()}
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        assert service.lifecycle.live_ids == {live.record.exec_id}


async def test_a_yes_outlasts_a_store_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RETRY_S", 0.01)
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        tries: list[ExecRecord] = []

        async def late(record: ExecRecord) -> None:
            tries.append(record)
            if len(tries) < 3:
                raise StoreUnavailable("not yet")
            await service.store.release(record)

        Store(service, release=late)
        live, approval = await asked(service)
        await service.lifecycle.approvals.decide(approval, PERSON, approve=True)
        assert (await live.outcome()).record.verdict == Verdict.EXITED
        assert len(tries) == 3


async def test_an_engine_that_is_gone_when_the_yes_comes_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        live, approval = await asked(service)

        async def gone(grant: Grant, language: Language | None) -> Grant:
            raise EngineUnavailable("it does not answer")

        monkeypatch.setattr(service.engine, "fit", gone)
        await service.lifecycle.approvals.decide(approval, PERSON, approve=True)
        record = (await live.outcome()).record
        assert (record.verdict, record.approval["decision"]) == (Verdict.LOST, "approved")
        assert not waiting_files(tmp_path)


async def test_a_caller_s_own_session_id_does_not_keep_it_from_waiting_on(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        service.lifecycle.epoch += "0"  # as if it had been another process
        live, _ = await asked(service, asking(session_id="mine"))
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        assert service.lifecycle.live_ids == {live.record.exec_id}
        assert len(waiting_files(tmp_path)) == 1


async def test_what_is_asked_of_a_lost_run_is_void(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        service.lifecycle.epoch += "0"
        _, approval = await asked(service)
    (kept,) = waiting_files(tmp_path)
    kept.unlink()
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        assert (await service.lifecycle.approvals.get(approval.id)).state is ApprovalState.VOID


async def test_bytes_of_no_run_go_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        for exec_id in ("ex-1", "ex-2"):
            service.lifecycle.pending.save(exec_id, asking())
        (tmp_path / "pending" / "ex-2.json").rename(tmp_path / "pending" / ".ex-2.json")
    async with opened(tmp_path, profile=Profile.SUPERVISED):
        assert not list((tmp_path / "pending").iterdir())
