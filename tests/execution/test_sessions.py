"""Sessions of a real service on the real engine: one jar, several runs, each with a record of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from belljar.config import load
from belljar.engines.base import Area
from belljar.errors import (
    BadRequest,
    Conflict,
    LimitExceeded,
    NotFound,
    PolicyEscalation,
    StoreUnavailable,
)
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.session import Session
from belljar.execution.submissions import Submission
from belljar.models import InputFile, Language, RunRequest, RunResult, Verdict
from belljar.service import Service

Opening = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Service]:
        config = replace(
            load(environ={}, cwd=Path("/"), home=tmp_path, machine_file=tmp_path / "none"),
            data_dir=tmp_path / "data",
            **settings,
        )
        async with Service.open(config, person=True) as service:
            yield service

    return opened


@pytest_asyncio.fixture
async def service(opening: Opening) -> AsyncIterator[Service]:
    async with opening() as service:
        yield service


async def begun(
    service: Service, session: Session, code: str, *, context: str | None = None, **overrides: object
) -> LiveRun:
    language = Language.PYTHON if context else Language.BASH
    request = RunRequest(language=language, code=code, context=context)
    live = await service.sessions.submit(session, Submission(request=request, overrides=overrides))
    assert isinstance(live, LiveRun)
    return live


async def run(
    service: Service, session: Session, code: str, *, context: str | None = None, **overrides: object
) -> tuple[Outcome, RunResult]:
    outcome = await (await begun(service, session, code, context=context, **overrides)).outcome()
    assert outcome.result is not None, outcome.record.error_reason
    return outcome, outcome.result


async def until(so: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not so():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def test_runs_of_a_session_share_files_and_each_has_a_record(service: Service) -> None:
    session = await service.sessions.start("p")
    first, _ = await run(service, session, "echo one > a")
    second, result = await run(service, session, "cat a")
    assert result.stdout == b"one\n"
    assert first.record.exec_id != second.record.exec_id
    assert {first.record.session_id, second.record.session_id} == {session.id}
    assert first.record.receipt_hash
    assert second.record.receipt_hash
    assert first.record.files_written == ("a",)
    assert second.record.files_written == ()


async def test_variables_of_a_context_live_on_and_results_are_rich(service: Service) -> None:
    session = await service.sessions.start("p")
    await run(service, session, "x = 20", context="main")
    _, result = await run(service, session, "x + 22", context="main")
    assert result.results == ({"text/plain": "42"},)


async def test_environment_and_folder_of_a_session_are_those_of_its_runs(service: Service) -> None:
    session = await service.sessions.start("p", env={"COLOUR": "green"}, working_dir="sub/folder")
    _, result = await run(service, session, "echo $COLOUR $PWD")
    assert result.stdout == b"green /workspace/work/sub/folder\n"


async def test_a_run_can_have_its_own_clock_but_not_its_own_memory(service: Service) -> None:
    session = await service.sessions.start("p", overrides={"memory_mb": 64})
    _, result = await run(service, session, "sleep 20", timeout_s=0.2, grace_s=0)
    assert result.verdict is Verdict.TIMEOUT
    request = RunRequest(language=Language.BASH, code="true")
    for memory_mb in (32, 128):
        with pytest.raises(BadRequest) as refused:
            await service.sessions.submit(
                session, Submission(request=request, overrides={"memory_mb": memory_mb})
            )
        assert refused.value.field == "limits.memory_mb"


async def test_a_run_of_a_tool_that_may_have_more_has_what_the_session_has(
    tmp_path: Path, opening: Opening
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  tools:\n    code_run:\n      max_memory: 1GB\n")
    async with opening(policy=policy) as service:
        session = await service.sessions.start("p", overrides={"memory_mb": 64})
        request = RunRequest(language=Language.PYTHON, code="print(1)")
        live = await service.sessions.submit(session, Submission(request=request, tool="code_run"))
        assert isinstance(live, LiveRun)
        assert (await live.outcome()).record.policy_snapshot["limits.memory_mb"]["value"] == 64


async def test_a_run_that_may_have_less_than_the_session_is_refused(service: Service) -> None:
    session = await service.sessions.start("p")
    small = replace(session.grant, limits=replace(session.grant.limits, memory_mb=64), image=session.image)
    with pytest.raises(BadRequest, match="memory_mb 512, and policy gives this run 64"):
        await session.fit(small, Language.PYTHON)


async def test_a_session_cannot_be_granted_more_than_policy_allows(service: Service) -> None:
    with pytest.raises(PolicyEscalation):
        await service.sessions.start("p", overrides={"memory_mb": 1 << 30})


async def test_a_context_outside_a_session_is_refused(service: Service) -> None:
    request = RunRequest(language=Language.PYTHON, code="1", context="main")
    with pytest.raises(BadRequest, match="session"):
        await service.lifecycle.submit(Submission(request=request))


async def test_an_idle_session_ends_and_says_why(service: Service) -> None:
    session = await service.sessions.start("p")
    session.idle_s = 0.1  # only now: it may take longer until it is begun
    await until(lambda: session not in service.sessions)
    with pytest.raises(NotFound):
        service.sessions.get(session.id)
    facts = await service.sessions.facts(session.id)
    assert facts["state"] == "ended"
    assert "nobody used it" in facts["reason"]


async def test_the_making_of_a_session_is_no_idle_time(service: Service) -> None:
    session = await service.sessions.start("p")
    assert session.last_used > session.created_at


async def test_a_session_that_runs_is_not_idle(service: Service) -> None:
    session = await service.sessions.start("p")
    live = await begun(service, session, "sleep 2; echo done")
    session.idle_s = 0.1
    result = (await live.outcome()).result
    assert result is not None
    assert result.stdout == b"done\n"


async def test_a_session_ends_at_its_age_although_it_is_used(service: Service) -> None:
    session = await service.sessions.start("p", max_age_s=100)
    live = await begun(service, session, "sleep 30")
    await until(lambda: live.jar is not None)
    assert (session.ends_at - session.created_at).total_seconds() == 100
    session.ends_at = session.created_at
    outcome = await live.outcome()
    assert outcome.record.verdict == Verdict.LOST
    assert session.reason == "it reached its greatest age"


async def test_a_session_can_be_extended_within_what_is_allowed(opening: Opening) -> None:
    async with opening(session_max_age_s=100.0) as service:
        session = await service.sessions.start("p", max_age_s=5)
        service.sessions.extend(session, 50)
        ends_at = session.ends_at
        assert (ends_at - session.created_at).total_seconds() >= 50
        service.sessions.extend(session, 1)
        assert session.ends_at == ends_at
        with pytest.raises(LimitExceeded):
            service.sessions.extend(session, 5000)
        with pytest.raises(BadRequest, match="more than 0"):
            service.sessions.extend(session, 0)


async def test_a_project_has_only_so_many(opening: Opening) -> None:
    async with opening(session_per_project=2) as service:
        first, _ = await asyncio.gather(service.sessions.start("p"), service.sessions.start("p"))
        with pytest.raises(LimitExceeded, match="per_project"):
            await service.sessions.start("p")
        await service.sessions.start("q")
        await service.sessions.end(first)
        await service.sessions.start("p")


async def test_a_paused_session_takes_no_run_and_goes_on_when_resumed(service: Service) -> None:
    session = await service.sessions.start("p")
    await service.sessions.pause(session)
    with pytest.raises(Conflict, match="paused"):
        await run(service, session, "true")
    await service.sessions.resume(session)
    _, result = await run(service, session, "echo again")
    assert result.stdout == b"again\n"


async def test_a_session_that_could_not_be_written_down_as_paused_is_not(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await service.sessions.start("p")

    async def fails(*_: Any) -> None:
        raise StoreUnavailable("no room")

    with monkeypatch.context() as patch:
        patch.setattr(service.store, "move_matter", fails)
        with pytest.raises(StoreUnavailable):
            await service.sessions.pause(session)
    _, result = await run(service, session, "echo goes on")
    assert result.stdout == b"goes on\n"
    await service.sessions.pause(session)
    assert (await service.sessions.facts(session.id))["state"] == "paused"


async def test_a_session_is_paused_once_and_can_end_at_the_same_time(service: Service) -> None:
    session = await service.sessions.start("p")
    outcomes = await asyncio.gather(
        service.sessions.pause(session),
        service.sessions.pause(session),
        service.sessions.end(session),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes] == [type(None), Conflict, type(None)]
    assert (await service.sessions.facts(session.id))["state"] == "ended"


async def test_sessions_of_other_projects_are_not_there(service: Service) -> None:
    session = await service.sessions.start("p")
    with pytest.raises(NotFound) as foreign:
        service.sessions.get(session.id, frozenset({"q"}))
    with pytest.raises(NotFound) as absent:
        service.sessions.get("se-none", frozenset({"q"}))
    assert foreign.value.message == absent.value.message
    assert await service.sessions.known(frozenset({"q"})) == []


async def test_a_snapshot_begins_another_session_with_the_same_files(service: Service) -> None:
    session = await service.sessions.start("p")
    await run(service, session, "mkdir d; echo deep > d/f; echo art > /workspace/artifacts/a")
    taken = await service.sessions.snapshot(session)
    assert (taken.files, taken.size) == (
        3,
        5 + 4 + len("mkdir d; echo deep > d/f; echo art > /workspace/artifacts/a"),
    )
    assert await service.sessions.snapshot(session) == taken
    other = await service.sessions.start("p", snapshot=taken.digest)
    _, result = await run(service, other, "cat d/f /workspace/artifacts/a")
    assert result.stdout == b"deep\nart\n"
    with pytest.raises(NotFound):
        await service.sessions.start("q", snapshot=taken.digest)


async def test_forks_have_the_files_and_go_their_own_ways(service: Service) -> None:
    session = await service.sessions.start("p")
    await session.kept.put(Area.WORK, [InputFile("a", b"common")])
    forks = await service.sessions.fork(session, 2)
    await run(service, forks[0], "echo mine > a")
    _, result = await run(service, forks[1], "cat a")
    assert result.stdout == b"common"


async def test_a_fork_is_for_the_same_role_and_as_long(tmp_path: Path, opening: Opening) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  agent_roles:\n    small:\n      max_memory: 64MB\n")
    async with opening(policy=policy, session_idle_s=50.0) as service:
        session = await service.sessions.start("p", role="small", max_age_s=70)
        service.sessions.extend(session, 60)
        [fork] = await service.sessions.fork(session, 1)
        assert fork.role == "small"
        assert fork.grant.limits.memory_mb == 64
        assert (fork.ends_at - fork.created_at).total_seconds() == 70


async def test_sessions_that_a_service_left_open_are_lost_and_say_so(opening: Opening) -> None:
    async with opening() as service:
        session = await service.sessions.start("p")
        matter = await service.store.matter("session", session.id)
        assert matter is not None
        dead = replace(matter, id="se-dead", body={**matter.body, "epoch": service.lifecycle.epoch + "0"})
        await service.store.open_matter(dead)
    async with opening() as service:
        assert (await service.sessions.facts("se-dead"))["state"] == "lost"
        assert (await service.sessions.facts(session.id))["reason"] == "the service was stopped"


async def test_a_jar_that_dies_ends_its_session(service: Service) -> None:
    session = await service.sessions.start("p")
    await session.kept.destroy()
    await until(lambda: session not in service.sessions)
    assert session.reason == "its jar died"
