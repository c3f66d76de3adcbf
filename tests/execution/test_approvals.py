"""A person's yes: what waits for it, what it is bound to, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.api.conftest import opened

from belljar.audit.records import Status
from belljar.errors import ApprovalDenied, BadRequest, Conflict, Forbidden, NotFound
from belljar.execution.approvals import Approval, ApprovalState, Approver
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.submissions import Submission
from belljar.models import InputFile, Language, RunRequest, Verdict
from belljar.service import Service
from belljar.settings import Profile

PERSON = Approver("tk-person", "approver")
RISKY = "import os\nos.system('ls')"


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        yield service


def asking(code: str = RISKY, **more: Any) -> Submission:
    request = RunRequest(language=Language.PYTHON, code=code, files=(InputFile("data.txt", b"1"),))
    return Submission(request=request, token_id="tk-agent", **more)


async def asked(service: Service, submission: Submission | None = None) -> tuple[LiveRun, Approval]:
    live = await service.lifecycle.submit(submission or asking())
    assert isinstance(live, LiveRun)
    assert live.approval is not None
    return live, live.approval


def waiting_files(folder: Path) -> list[Path]:
    return list(folder.rglob("pending/*.json"))


async def kinds(live: LiveRun) -> list[str]:
    return [event.kind async for event in live.log.follow()]


async def test_a_run_of_high_risk_waits_and_runs_when_a_person_says_yes(service: Service) -> None:
    live, approval = await asked(service)
    stored = await service.store.get(live.record.exec_id)
    assert stored is not None
    assert stored.status is Status.PENDING
    assert [one.id for one in await service.lifecycle.approvals.known()] == [approval.id]
    await service.lifecycle.approvals.decide(approval, PERSON, approve=True, reason="looks fine")
    record = (await live.outcome()).record
    assert record.status is Status.FINISHED
    assert record.verdict == Verdict.EXITED
    assert record.approval["by"] == "tk-person"
    assert record.approval["decision"] == "approved"
    assert record.approval["reason"] == "looks fine"
    assert record.receipt_hash
    assert (await kinds(live))[:2] == ["pending_approval", "approved"]


async def test_a_run_of_low_risk_does_not_wait(service: Service) -> None:
    live = await service.lifecycle.submit(asking("print(1)"))
    assert isinstance(live, LiveRun)
    assert (await live.outcome()).record.approval == {}


async def test_a_no_refuses_the_run_and_says_why(service: Service) -> None:
    live, approval = await asked(service)
    await service.lifecycle.approvals.decide(approval, PERSON, approve=False, reason="too dangerous")
    record = (await live.outcome()).record
    assert record.status is Status.REFUSED
    assert record.error_code == ApprovalDenied.code
    assert record.error_reason is not None
    assert "too dangerous" in record.error_reason
    assert record.approval["decision"] == "denied"
    assert record.receipt_hash
    assert record.started_at is None


async def test_what_is_shown_names_the_lines_the_inputs_and_the_grant(service: Service) -> None:
    _, approval = await asked(service)
    shown = (await service.lifecycle.approvals.get(approval.id)).shown
    assert [(one["line"], one["tier"]) for one in shown["findings"]] == [(2, "critical")]
    assert list(shown["files"]) == ["data.txt"]
    assert shown["grant"]["fields"]


async def test_it_is_decided_once(service: Service) -> None:
    live, approval = await asked(service)
    decisions = (service.lifecycle.approvals.decide(approval, PERSON, approve=n % 2 == 0) for n in range(8))
    outcomes = await asyncio.gather(*decisions, return_exceptions=True)
    assert sum(isinstance(one, Conflict) for one in outcomes) == 7
    await live.outcome()


@pytest.mark.parametrize("role", ["agent", "viewer", ""])
async def test_only_a_person_decides(service: Service, role: str) -> None:
    _, approval = await asked(service)
    with pytest.raises(Forbidden):
        await service.lifecycle.approvals.decide(approval, Approver("tk-agent", role), approve=True)


async def test_approvals_of_other_projects_are_not_there(service: Service) -> None:
    _, approval = await asked(service)
    with pytest.raises(NotFound):
        await service.lifecycle.approvals.get(approval.id, frozenset({"other"}))
    assert await service.lifecycle.approvals.known(frozenset({"other"})) == []


async def test_nobody_answers_and_it_expires(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED, approval_expires_s=0.05) as service:
        live, _ = await asked(service)
        record = (await live.outcome()).record
    assert record.status is Status.REFUSED
    assert record.approval["decision"] == "expired"


async def test_a_run_that_waits_can_be_cancelled_and_its_approval_is_void(service: Service) -> None:
    live, approval = await asked(service)
    await service.lifecycle.cancel(live.record.exec_id)
    assert (await live.outcome()).record.verdict == Verdict.CANCELLED
    assert (await service.lifecycle.approvals.get(approval.id)).state is ApprovalState.VOID
    with pytest.raises(Conflict):
        await service.lifecycle.approvals.decide(approval, PERSON, approve=True)


async def test_the_same_request_again_is_the_run_that_waits(service: Service) -> None:
    live, _ = await asked(service, asking(request_id="r1"))
    again = await service.lifecycle.submit(asking(request_id="r1"))
    assert again is live


def _lower_memory(service: Service) -> None:
    policies = service.lifecycle.policies
    service.lifecycle.policies = replace(policies, settings=replace(policies.settings, memory_mb=100))


async def test_a_policy_that_changed_meanwhile_voids_the_yes(service: Service) -> None:
    live, approval = await asked(service)
    _lower_memory(service)
    await service.lifecycle.approvals.decide(approval, PERSON, approve=True)
    record = (await live.outcome()).record
    assert record.status is Status.REFUSED
    assert record.error_reason is not None
    assert "any more" in record.error_reason


async def test_a_file_that_came_to_the_work_meanwhile_voids_the_yes(service: Service) -> None:
    work = service.workspace.project("default") / "work"
    work.mkdir(parents=True)
    (work / "kept.txt").write_text("as it was shown")
    live, approval = await asked(service, asking(persist_work=True))
    (work / "more.txt").write_text("nobody saw this")
    await service.lifecycle.approvals.decide(approval, PERSON, approve=True)
    assert (await live.outcome()).record.status is Status.REFUSED


async def test_a_yes_does_not_serve_other_code_files_or_limits(service: Service) -> None:
    live, approval = await asked(service)
    await service.lifecycle.approvals.decide(approval, PERSON, approve=True, remember_days=1)
    await live.outcome()
    same = await service.lifecycle.submit(asking())
    assert isinstance(same, LiveRun)
    assert same.approval is None
    assert (await same.outcome()).record.approval["approval_id"] == approval.id
    other_file = RunRequest(language=Language.PYTHON, code=RISKY, files=(InputFile("data.txt", b"2"),))
    for other in (
        asking(RISKY + " "),
        asking(project_id="other"),
        asking(overrides={"timeout_s": 5}),
        replace(asking(), request=other_file),
    ):
        _, another = await asked(service, other)
        assert another.state is ApprovalState.WAITING


async def test_a_remembered_yes_ends(service: Service) -> None:
    live, approval = await asked(service)
    await service.lifecycle.approvals.decide(approval, PERSON, approve=True, remember_days=1)
    await live.outcome()
    assert await service.lifecycle.approvals.standing(approval.digest) is not None
    service.lifecycle.approvals._now = lambda: datetime.now(UTC) + timedelta(days=2)
    assert await service.lifecycle.approvals.standing(approval.digest) is None


async def test_a_no_cannot_be_remembered(service: Service) -> None:
    _, approval = await asked(service)
    with pytest.raises(BadRequest, match="remember"):
        await service.lifecycle.approvals.decide(approval, PERSON, approve=False, remember_days=1)


async def restarted(tmp_path: Path, *, answer: bool) -> Outcome:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        service.lifecycle.epoch += "0"  # as if it had been another process
        live, approval = await asked(service, asking(request_id="r1"))
        exec_id = live.record.exec_id
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        again = service.lifecycle.live(exec_id)
        assert again is not None
        assert (await service.lifecycle.approvals.get(approval.id)).state is ApprovalState.WAITING
        await service.lifecycle.approvals.decide(approval, PERSON, approve=answer)
        return await again.outcome()


async def test_a_run_that_waits_survives_a_restart(tmp_path: Path) -> None:
    outcome = await restarted(tmp_path, answer=True)
    assert outcome.record.verdict == Verdict.EXITED
    assert outcome.record.approval["decision"] == "approved"
    assert not waiting_files(tmp_path)


async def test_a_run_that_waits_can_be_denied_after_a_restart(tmp_path: Path) -> None:
    outcome = await restarted(tmp_path, answer=False)
    assert outcome.record.status is Status.REFUSED


async def test_what_waits_is_readable_by_the_service_alone(service: Service, tmp_path: Path) -> None:
    await asked(service)
    (kept,) = waiting_files(tmp_path)
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_one_whose_bytes_are_gone_is_lost_not_run(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        service.lifecycle.epoch += "0"
        live, _ = await asked(service)
    (kept,) = waiting_files(tmp_path)
    kept.unlink()
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        record = await service.store.get(live.record.exec_id)
    assert record is not None
    assert record.verdict == Verdict.LOST
