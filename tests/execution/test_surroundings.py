"""A person's yes to a run in a session: bound to the files that lie there, until the run is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.execution.test_sessions import until

from belljar.audit.records import Status
from belljar.config import load
from belljar.engines.base import Area
from belljar.errors import ApprovalDenied, Conflict, Refused
from belljar.execution.approvals import Approval, Approver
from belljar.execution.live import LiveRun
from belljar.execution.session import Session
from belljar.execution.submissions import Submission
from belljar.models import InputFile, Language, RunRequest, Verdict
from belljar.service import Service

PERSON = Approver("tk-person", "approver")
ASKED: dict[str, object] = {"approve_at": "safe"}


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    config = load(environ={}, cwd=Path("/"), home=tmp_path, machine_file=tmp_path / "none")
    async with Service.open(replace(config, data_dir=tmp_path / "data"), person=True) as service:
        yield service


@pytest_asyncio.fixture
async def session(service: Service) -> Session:
    session = await service.sessions.start("p")
    await session.kept.put(Area.WORK, [InputFile("x.sh", b"echo harmless")])
    return session


async def taken(service: Service, session: Session, overrides: Any = ASKED, **request: Any) -> LiveRun:
    asked = RunRequest(**request or {"command": ("bash", "x.sh")})
    live = await service.sessions.submit(session, Submission(request=asked, overrides=overrides))
    assert isinstance(live, LiveRun)
    return live


def asked_of(live: LiveRun) -> Approval:
    assert live.approval is not None
    return live.approval


async def approve(service: Service, live: LiveRun, **more: Any) -> None:
    await service.lifecycle.approvals.decide(asked_of(live), PERSON, approve=True, **more)


async def test_what_lies_in_the_session_is_shown_and_runs_as_it_was_shown(
    service: Service, session: Session
) -> None:
    await session.kept.put(Area.INPUTS, [InputFile("in/data", b"1")])
    live = await taken(service, session)
    shown = asked_of(live).shown
    assert shown["session_id"] == session.id
    assert shown["session_files"] == {
        "inputs/in/data": sha256(b"1").hexdigest(),
        "work/x.sh": sha256(b"echo harmless").hexdigest(),
    }
    await approve(service, live)
    outcome = await live.outcome()
    assert outcome.result is not None
    assert outcome.result.stdout == b"harmless\n"


@pytest.mark.parametrize("area", [pytest.param(area, id=area) for area in Area])
async def test_a_file_that_is_put_after_the_question_undoes_the_yes(
    service: Service, session: Session, area: Area
) -> None:
    live = await taken(service, session)
    await session.kept.put(area, [InputFile("x.sh", b"echo something else")])
    await approve(service, live)
    record = (await live.outcome()).record
    assert (record.status, record.error_code) == (Status.REFUSED, ApprovalDenied.code)
    assert record.started_at is None


async def test_a_file_that_is_put_after_the_yes_undoes_it_too(service: Service, tmp_path: Path) -> None:
    config = replace(service.config, data_dir=tmp_path / "one", max_concurrent_execs=1)
    async with Service.open(config, person=True) as narrow:
        session = await narrow.sessions.start("p")
        await session.kept.put(Area.WORK, [InputFile("x.sh", b"echo harmless")])
        live = await taken(narrow, session)
        before = await narrow.lifecycle.submit(Submission(request=RunRequest(command=("sleep", "30"))))
        assert isinstance(before, LiveRun)
        await approve(narrow, live)
        await until(lambda: live.record.status is Status.QUEUED)  # its turn comes after the one before
        await session.kept.put(Area.WORK, [InputFile("x.sh", b"echo something else")])
        before.cancel()
        record = (await live.outcome()).record
        assert (record.status, record.error_code) == (Status.REFUSED, ApprovalDenied.code)


async def test_a_run_that_leaves_no_file_after_the_question_undoes_the_yes_too(
    service: Service, session: Session
) -> None:
    live = await taken(service, session, command=("bash", "/tmp/x.sh"))
    await (await taken(service, session, {}, command=("cp", "x.sh", "/tmp/x.sh"))).outcome()
    await approve(service, live)
    assert (await live.outcome()).record.error_code == ApprovalDenied.code


async def test_a_yes_that_is_remembered_is_for_the_same_files(service: Service, session: Session) -> None:
    live = await taken(service, session)
    await approve(service, live, remember_days=1)
    assert (await live.outcome()).record.verdict == Verdict.EXITED
    again = await taken(service, session)
    assert again.approval is None
    assert (await again.outcome()).record.verdict == Verdict.EXITED
    await session.kept.put(Area.WORK, [InputFile("x.sh", b"echo something else")])
    other = await taken(service, session)
    assert other.record.status is Status.PENDING
    other.cancel()
    await other.outcome()


async def test_what_cannot_be_told_by_its_bytes_cannot_be_approved(
    service: Service, session: Session
) -> None:
    linking = await taken(service, session, {}, command=("ln", "-s", "x.sh", "y.sh"))
    await linking.outcome()
    with pytest.raises(Refused, match=r"work/y\.sh"):
        await taken(service, session, command=("bash", "y.sh"))


async def test_what_is_typed_later_cannot_be_approved(service: Service, session: Session) -> None:
    with pytest.raises(Refused) as refused:
        await taken(service, session, command=("bash",), stdin_open=True)
    assert refused.value.field == "stdin_open"


async def test_what_was_begun_before_stands_still_meanwhile(service: Service, session: Session) -> None:
    more = "was=$(wc -c < /tmp/ticks); until [ $(wc -c < /tmp/ticks) -gt $was ]; do sleep 0.01; done"
    loop = "(while :; do echo x >> /tmp/ticks; sleep 0.01; done) > /dev/null 2>&1 &"
    code = f"touch /tmp/ticks\n{loop}\n{more}"
    await (await taken(service, session, {}, language=Language.BASH, code=code)).outcome()
    ticks = "wc -c < /tmp/ticks; sleep 0.3; wc -c < /tmp/ticks"
    live = await taken(service, session, language=Language.BASH, code=ticks)
    await approve(service, live)
    outcome = await live.outcome()
    assert outcome.result is not None, outcome.record.error_reason
    first, second = outcome.result.stdout.split()
    assert first == second
    after = await (await taken(service, session, {}, language=Language.BASH, code=more)).outcome()
    assert after.record.verdict == Verdict.EXITED


async def test_nobody_else_uses_the_session_meanwhile(service: Service, session: Session) -> None:
    live = await taken(service, session, command=("sleep", "30"))
    await approve(service, live)
    await until(lambda: live.jar is not None)
    with pytest.raises(Conflict, match="to itself"):
        await taken(service, session, {}, command=("true",))
    with pytest.raises(Conflict, match="to itself"), session.changing():
        pass
    with pytest.raises(Conflict, match="to itself"):
        await service.sessions.pause(session)
    live.cancel()
    await live.outcome()
    with session.changing() as kept:
        await kept.remove(Area.WORK, "x.sh")


async def test_a_run_that_goes_on_in_the_session_undoes_the_yes(service: Service, session: Session) -> None:
    other = await taken(service, session, {}, command=("sleep", "30"))
    await until(lambda: other.jar is not None)
    live = await taken(service, session)
    await approve(service, live)
    record = (await live.outcome()).record
    assert record.error_code == ApprovalDenied.code
    assert "another run" in str(record.error_reason)
    other.cancel()
    await other.outcome()
