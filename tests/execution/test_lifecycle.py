"""What holds for a run whoever asked for it, and however the store is."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import opened

from belljar.audit.records import NOTHING_ASKED, ExecRecord, Filter, NetworkAccount, Status
from belljar.engines.fake import FakeEngine
from belljar.engines.guestjar import GuestJar
from belljar.errors import BadRequest, BelljarError, StoreUnavailable
from belljar.execution import lifecycle
from belljar.execution.live import LiveRun
from belljar.execution.risks import risk_of
from belljar.execution.submissions import Submission
from belljar.models import Grant, Language, RunRequest, Verdict
from belljar.policy.risk import Assessment
from belljar.service import Service


def submission(code: str = "1", request_id: str | None = None) -> Submission:
    return Submission(request=RunRequest(language=Language.PYTHON, code=code), request_id=request_id)


class Store:
    """The real one, but for what a test does instead."""

    def __init__(self, service: Service, **instead: Any) -> None:
        self._real = service.store
        vars(self).update(instead)
        service.lifecycle.store = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def folders(data_dir: Path) -> list[Path]:
    return list(data_dir.glob("workspace/projects/*/artifacts/*"))


async def only_record(service: Service) -> ExecRecord:
    [record] = (await service.store.page(Filter(), limit=10)).records
    return record


async def test_a_run_can_be_cancelled_from_the_moment_its_row_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        real = service.store

        async def accept(record: ExecRecord) -> ExecRecord:
            accepted = await real.accept(record)
            assert service.lifecycle.live_ids == {record.exec_id}
            await service.lifecycle.cancel(record.exec_id)
            return accepted

        Store(service, accept=accept)
        live = await service.lifecycle.submit(submission("sleep 60"))
        assert isinstance(live, LiveRun)
        assert (await live.outcome()).record.verdict == Verdict.CANCELLED
        assert [event.kind async for event in live.log.follow()] == ["queued", "finished"]


async def test_a_run_that_was_not_accepted_is_not_known(tmp_path: Path) -> None:
    async def accept(record: ExecRecord) -> ExecRecord:
        raise StoreUnavailable("no room")

    async with opened(tmp_path) as service:
        Store(service, accept=accept)
        with pytest.raises(StoreUnavailable):
            await service.lifecycle.submit(submission())
        assert not service.lifecycle.live_ids
        assert (service.lifecycle.turns.running, service.lifecycle.turns.waiting) == (0, 0)


async def test_nobody_is_told_of_the_end_before_the_jar_is_gone(tmp_path: Path) -> None:
    leaving, let_go = asyncio.Event(), asyncio.Event()
    let_go.set()

    class Slow(FakeEngine):
        async def create(self, grant: Grant) -> GuestJar:
            jar = await super().create(grant)
            destroy = jar._destroy

            async def later() -> None:
                leaving.set()
                await let_go.wait()
                await destroy()

            jar._destroy = later
            return jar

    async with opened(tmp_path, Slow(), pool_max_idle=0) as service:
        leaving.clear()
        let_go.clear()
        code = RunRequest(language=Language.BASH, code="echo hi")
        live = await service.lifecycle.submit(Submission(request=code))
        assert isinstance(live, LiveRun)
        await leaving.wait()
        while not any((folder / "meta.json").exists() for folder in folders(tmp_path)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        told = (await only_record(service)).status
        let_go.set()
        assert told is not Status.FINISHED
        assert (await live.outcome()).record.status is Status.FINISHED


async def test_who_goes_away_while_a_run_is_accepted_leaves_a_run_that_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        real, accepting, gone = service.store, asyncio.Event(), asyncio.Event()

        async def accept(record: ExecRecord) -> ExecRecord:
            accepting.set()
            await gone.wait()
            return await real.accept(record)

        Store(service, accept=accept)
        caller = asyncio.create_task(service.lifecycle.submit(submission("exit 3")))
        await accepting.wait()
        caller.cancel()
        await asyncio.wait([caller])
        [live] = map(service.lifecycle.live, service.lifecycle.live_ids)
        assert live is not None
        gone.set()
        assert (await live.outcome()).record == await only_record(service)


async def refuses(record: ExecRecord) -> ExecRecord:
    raise StoreUnavailable("no room")


async def never_answers(record: ExecRecord) -> ExecRecord:
    await asyncio.Event().wait()
    return record


@pytest.mark.parametrize("finish", [refuses, never_answers])
async def test_the_end_comes_although_the_store_is_down_and_the_next_start_calls_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish: Any
) -> None:
    monkeypatch.setattr(lifecycle, "LAST_WORDS_S", 0.1)
    async with opened(tmp_path) as service:
        Store(service, finish=finish)
        live = await service.lifecycle.submit(submission("exit 3"))
        assert isinstance(live, LiveRun)
        waiting = asyncio.create_task(live.outcome())
        async with asyncio.timeout(20):
            await service.lifecycle.close(0)
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], Exception)
        assert not service.lifecycle.live_ids
    monkeypatch.setattr("belljar.processes.Presence.is_alive", lambda self, epoch: False)
    async with opened(tmp_path) as service:
        record = await only_record(service)
        assert (record.status, record.verdict) == (Status.FINISHED, Verdict.LOST)
        assert not folders(tmp_path)
        assert f'"{record.exec_id}"' in (tmp_path / "audit.jsonl").read_text()


async def test_an_outcome_that_cannot_be_written_is_lost_and_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as service:
        real = service.store

        async def finish(record: ExecRecord, account: NetworkAccount = NOTHING_ASKED) -> ExecRecord:
            if record.verdict != Verdict.LOST:
                raise BadRequest("no number of the store's")
            return await real.finish(record, account)

        Store(service, finish=finish)
        live = await service.lifecycle.submit(submission("write f x"))
        assert isinstance(live, LiveRun)
        outcome = await live.outcome()
        assert (outcome.record.status, outcome.record.verdict) == (Status.FINISHED, Verdict.LOST)
        assert (outcome.record.error_code, outcome.result) == ("INTERNAL", None)
        assert outcome.record == await only_record(service)
        assert not folders(tmp_path)
    assert "no number of the store's" in caplog.text


async def test_who_waits_for_a_run_that_the_store_does_not_take_at_all_is_answered(tmp_path: Path) -> None:
    async def finish(record: ExecRecord, account: NetworkAccount = NOTHING_ASKED) -> ExecRecord:
        raise BadRequest("no number of the store's")

    async with opened(tmp_path) as service:
        Store(service, finish=finish)
        live = await service.lifecycle.submit(submission())
        assert isinstance(live, LiveRun)
        with pytest.raises(BelljarError, match="a fault of the service"):
            await live.outcome()
        assert not service.lifecycle.live_ids


async def test_a_long_program_is_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by = []

    def watched(request: RunRequest, grant: Grant, secrets: Sequence[str]) -> Assessment:
        read_by.append(threading.current_thread())
        return risk_of(request, grant, secrets)

    monkeypatch.setattr(lifecycle, "risk_of", watched)
    async with opened(tmp_path) as service:
        for code in ("1", "# long\n" * 1000):
            live = await service.lifecycle.submit(submission(code))
            assert isinstance(live, LiveRun)
            await live.outcome()
    short, long = read_by
    assert short is threading.main_thread()
    assert long is not threading.main_thread()


async def test_work_that_cannot_be_kept_costs_the_files_not_the_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as service:
        (service.workspace.project("default") / "work/f").mkdir(parents=True)  # where a file is to go
        live = await service.lifecycle.submit(replace(submission("write f x"), persist_work=True))
        assert isinstance(live, LiveRun)
        record = (await live.outcome()).record
    assert (record.verdict, record.error_code) == ("exited", "STORE_UNAVAILABLE")
    assert record.error_reason == "the project's work could not be kept: f: Is a directory"
    assert record.artifacts_path is not None
    assert json.loads((service.workspace.root / record.artifacts_path / "meta.json").read_bytes())[
        "error_code"
    ]
    told = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert told == [f"{record.exec_id}: {record.error_reason}"]


async def begun(service: Service, code: str) -> LiveRun:
    request = RunRequest(language=Language.BASH, code=code)
    live = await service.lifecycle.submit(Submission(request=request, persist_work=True))
    assert isinstance(live, LiveRun)
    return live


async def kept(service: Service, code: str) -> ExecRecord:
    return (await (await begun(service, code)).outcome()).record


def work_of(service: Service) -> list[str]:
    work = service.workspace.project("default") / "work"
    return sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())


async def test_what_a_run_removes_from_kept_work_stays_away(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        await kept(service, "echo 1 > a\necho 2 > b")
        await kept(service, "rm a\necho 3 > c")
        assert work_of(service) == ["b", "c"]
        await kept(service, "rm b\nkill -KILL $$\nsleep 60")
        assert work_of(service) == ["b", "c"]


async def test_a_run_does_not_remove_what_another_has_added_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        await kept(service, "echo 1 > a")
        slow = await begun(service, "rm a\nrm b\nsleep 0.3")
        await kept(service, "echo 2 > b")
        await slow.outcome()
        assert work_of(service) == ["b"]


async def test_a_name_that_no_run_may_be_given_does_not_lock_the_project(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        record = await kept(service, "echo x > .netrc\necho y > good")
        assert record.skipped == ({"path": ".netrc", "reason": "not_kept"},)
        assert [artifact["path"] for artifact in record.artifacts] == [".netrc", "good"]
        assert (await kept(service, "cat good")).verdict == Verdict.EXITED
        assert (service.workspace.project("default") / "work/good").exists()
        assert work_of(service) == ["good"]
