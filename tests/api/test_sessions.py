"""Sessions over HTTP, on the real engine: what each route does, for whom, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import client_of, client_with, code_of, events_in

from belljar.engines.jail.engine import JailEngine
from belljar.execution.session import Session
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2

SESSIONS = "/sandbox/sessions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jailed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with opened(tmp_path_factory.mktemp("jailed"), JailEngine(), session_per_project=8) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(jailed: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(jailed) as http:
        yield http


@asynccontextmanager
async def started(client: httpx2.AsyncClient, **asked: Any) -> AsyncIterator[str]:
    """The path of a session that ends with the block."""
    answer = await client.post(SESSIONS, json=asked)
    assert answer.status_code == 200, answer.text
    path = f"{SESSIONS}/{answer.json()['session_id']}"
    yield path
    await client.delete(path)


@pytest_asyncio.fixture(loop_scope="module")
async def session(client: httpx2.AsyncClient) -> AsyncIterator[str]:
    async with started(client) as path:
        yield path


async def run(client: httpx2.AsyncClient, session: str, code: str, **asked: Any) -> Any:
    body = {"language": "bash", "code": code} | asked
    answer = await client.post(f"{session}/run", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def cell(client: httpx2.AsyncClient, session: str, code: str, context: str = "main") -> Any:
    return await run(client, session, code, language="python", context=context)


# Its life


async def test_a_session_is_told_listed_and_ended(client: httpx2.AsyncClient) -> None:
    async with started(client, project_id="life", env={"A": "b"}, idle_s=60) as session:
        told = (await client.get(session)).json()
        assert (told["state"], told["env_keys"], told["idle_s"]) == ("ready", ["A"], 60)
        listed = await client.get(SESSIONS, params={"project_id": "life"})
        assert listed.json()["sessions"] == [told]
        ended = (await client.delete(session)).json()
        assert (ended["state"], ended["reason"]) == ("ended", "closed")
        assert (await client.delete(session)).json() == ended
    assert (await client.get(SESSIONS, params={"project_id": "life"})).json()["sessions"] == []
    past = await client.get(SESSIONS, params={"project_id": "life", "ended": "true"})
    assert past.json()["sessions"] == [ended]
    assert "epoch" not in ended


async def test_a_session_that_is_over_says_so(client: httpx2.AsyncClient) -> None:
    async with started(client) as session:
        await client.delete(session)
        answer = await client.post(f"{session}/run", json={"code": "1"})
    assert (answer.status_code, code_of(answer)) == (409, "CONFLICT")
    assert "closed" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        pytest.param({"idle_s": 0}, "idle_s", id="no-idle-time"),
        pytest.param({"max_age_s": 1e12}, "max_age_s", id="too-old"),
        pytest.param({"env": {"A=B": ""}}, "env", id="variable-name"),
        pytest.param({"env": {"A": "x" * 200_000}}, "env.A", id="long-variable"),
        pytest.param({"working_dir": "../x"}, "working_dir", id="working-dir"),
        pytest.param({"snapshot": "../../x"}, "snapshot", id="snapshot"),
        pytest.param({"project_id": "../x"}, "project_id", id="project"),
        pytest.param({"memory": 1}, "memory", id="unknown-field"),
        pytest.param({"policy_overrides": {"limits": {"memory_mb": 1 << 40}}}, "limits.memory_mb", id="more"),
    ],
)
async def test_a_session_that_cannot_be_had_names_the_field(
    client: httpx2.AsyncClient, asked: dict[str, Any], field: str
) -> None:
    answer = await client.post(SESSIONS, json=asked)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["field"] == field


async def test_a_project_has_only_so_many_sessions(client: httpx2.AsyncClient) -> None:
    made = await asyncio.gather(*(client.post(SESSIONS, json={"project_id": "many"}) for _ in range(9)))
    refused = [answer for answer in made if answer.status_code != 200]
    assert [code_of(answer) for answer in refused] == ["LIMIT_EXCEEDED"]
    for answer in made:
        if answer not in refused:
            await client.delete(f"{SESSIONS}/{answer.json()['session_id']}")


async def test_a_session_is_extended_paused_and_resumed(client: httpx2.AsyncClient, session: str) -> None:
    extended = await client.post(f"{session}/extend", json={"seconds": 3600})
    assert extended.json()["idle_s"] == 3600
    assert (await client.post(f"{session}/pause")).json()["state"] == "paused"
    refused = await client.post(f"{session}/run", json={"code": "1"})
    assert code_of(refused) == "CONFLICT"
    assert (await client.post(f"{session}/resume")).json()["state"] == "ready"
    assert (await run(client, session, "echo on"))["stdout"] == "on\n"
    too_long = await client.post(f"{session}/extend", json={"seconds": 1e9})
    assert (code_of(too_long), too_long.json()["error"]["field"]) == ("LIMIT_EXCEEDED", "seconds")


# Running


async def test_runs_share_files_and_variables(client: httpx2.AsyncClient, session: str) -> None:
    await run(client, session, "echo one > a", input_files=[{"path": "b", "content_b64": "dHdv"}])
    assert (await run(client, session, "cat a b"))["stdout"] == "one\ntwo"
    await cell(client, session, "x = 40")
    answer = await cell(client, session, "print('hi'); x + 2")
    assert (answer["stdout"], answer["results"]) == ("hi\n", [{"text/plain": "42"}])
    assert answer["session_id"] == session.rpartition("/")[2]
    record = (await client.get(f"/sandbox/execs/{answer['id']}")).json()
    assert record["session_id"] == answer["session_id"]


async def test_the_same_request_is_the_same_run_with_its_results(
    client: httpx2.AsyncClient, session: str
) -> None:
    body = {
        "request_id": f"once-{session[-8:]}",
        "code": "n = globals().get('n', 0) + 1; n",
        "context": "main",
    }
    first, second = [(await client.post(f"{session}/run", json=body)).json() for _ in range(2)]
    assert first == second
    assert first["results"] == [{"text/plain": "1"}]
    async with started(client) as other:
        assert code_of(await client.post(f"{other}/run", json=body)) == "CONFLICT"


async def test_a_run_streams_its_output_and_what_it_shows(client: httpx2.AsyncClient, session: str) -> None:
    body = {"code": "print('a')\n6 * 7", "context": "main"}
    answer = await client.post(f"{session}/run", json=body, headers={"accept": "text/event-stream"})
    events = events_in(answer.text)
    kinds = [kind for _, kind, _ in events]
    assert kinds == ["queued", "running", "started", "stdout", "shown", "ended", "finished", "result"]
    assert events[4][2] == {"forms": {"text/plain": "42"}}
    assert events[-1][2]["results"] == [{"text/plain": "42"}]


async def test_what_is_no_json_is_not_shown_and_breaks_nothing(
    client: httpx2.AsyncClient, session: str
) -> None:
    code = "class V:\n def _repr_json_(self): return {'a': float('nan')}\nV()"
    assert [*(await cell(client, session, code))["results"][0]] == ["text/plain"]
    forged = (
        "import os, struct\n"
        'note = b\'{"result": {"application/json": NaN}}\'\n'
        "os.write(5, struct.pack('>BII', 6, 0, len(note)) + note)\n"
        "'after'"
    )
    assert (await cell(client, session, forged))["results"] == [{"text/plain": "'after'"}]


async def test_a_session_keeps_its_size(client: httpx2.AsyncClient, session: str) -> None:
    refused = await client.post(f"{session}/run", json={"code": "1", "limits": {"memory_mb": 32}})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "limits.memory_mb")
    assert (await run(client, session, "sleep 9", limits={"timeout_s": 0.2, "grace_s": 0}))["timed_out"]


async def begun(session: Session) -> None:
    """The only run in it has written something."""
    async with asyncio.timeout(30):
        while not session.live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        [live] = session.live.values()
        async for event in live.log.follow():
            if event.kind == "stdout":
                return


async def test_an_interrupted_context_keeps_its_variables(
    client: httpx2.AsyncClient, jailed: Service, session: str
) -> None:
    await cell(client, session, "x = 1")
    code = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"
    endless = asyncio.create_task(cell(client, session, code))
    await begun(jailed.sessions.get(session.rpartition("/")[2]))
    [exec_id] = (await client.post(f"{session}/interrupt", json={})).json()["interrupted"]
    answer = await endless
    assert (answer["id"], answer["verdict"]) == (exec_id, "cancelled")
    assert "KeyboardInterrupt" in answer["stderr"]
    assert (await cell(client, session, "x"))["results"] == [{"text/plain": "1"}]
    absent = await client.post(f"{session}/interrupt", json={"exec_id": exec_id})
    assert (absent.status_code, absent.json()["error"]["field"]) == (404, "exec_id")


async def test_contexts_are_listed_and_ended(client: httpx2.AsyncClient, session: str) -> None:
    await cell(client, session, "x = 1", context="a")
    await cell(client, session, "x = 2", context="b")
    assert (await client.get(f"{session}/contexts")).json()["contexts"] == ["a", "b"]
    assert (await client.delete(f"{session}/contexts/a")).status_code == 200
    assert (await client.delete(f"{session}/contexts/never")).status_code == 404
    answer = await cell(client, session, "'x' in globals()", context="a")
    assert answer["results"] == [{"text/plain": "False"}]


# Snapshots


async def test_a_snapshot_begins_another_session_until_it_is_removed(client: httpx2.AsyncClient) -> None:
    async with started(client, project_id="snap") as session:
        await client.put(f"{session}/files/content", params={"path": "d/f"}, content=b"kept")
        taken = (await client.post(f"{session}/snapshot")).json()
        assert (taken["files"], taken["size"]) == (1, 4)
    known = await client.get("/sandbox/snapshots", params={"project_id": "snap"})
    assert known.json()["snapshots"] == [taken]
    async with started(client, project_id="snap", snapshot=taken["digest"]) as session:
        assert (await run(client, session, "cat d/f"))["stdout"] == "kept"
    one = f"/sandbox/snapshots/{taken['digest']}"
    assert (await client.delete(one, params={"project_id": "other"})).status_code == 404
    assert (await client.delete(one, params={"project_id": "snap"})).status_code == 200
    assert (await client.delete(one, params={"project_id": "snap"})).status_code == 404


async def test_a_session_is_forked(client: httpx2.AsyncClient, session: str) -> None:
    await client.put(f"{session}/files/content", params={"path": "f"}, content=b"common")
    made = (await client.post(f"{session}/fork", json={"count": 2})).json()["sessions"]
    for one in made:
        fork = f"{SESSIONS}/{one['session_id']}"
        assert (await client.get(f"{fork}/files/content", params={"path": "f"})).content == b"common"
        await client.delete(fork)
    assert len(made) == 2
    refused = await client.post(f"{session}/fork", json={"count": 0})
    assert refused.json()["error"]["field"] == "count"


# Who may


async def test_a_viewer_looks_and_touches_nothing(
    client: httpx2.AsyncClient, jailed: Service, session: str
) -> None:
    await client.put(f"{session}/files/content", params={"path": "f"}, content=b"x")
    async with client_with(jailed, Role.VIEWER) as viewer:
        for look in ("", "/contexts", "/files", "/files/content?path=f", "/files/archive"):
            assert (await viewer.get(session + look)).status_code == 200, look
        for touch in ("run", "pause", "resume", "extend", "snapshot", "fork", "interrupt", "files/move"):
            assert (await viewer.post(f"{session}/{touch}", json={})).status_code == 403, touch
        for touch in ("", "/files?path=f", "/contexts/main"):
            assert (await viewer.delete(session + touch)).status_code == 403, touch
        for touch in ("content", "archive"):
            assert (await viewer.put(f"{session}/files/{touch}?path=f", content=b"")).status_code == 403
        assert (await viewer.post(SESSIONS, json={})).status_code == 403


async def test_a_session_of_another_project_is_as_absent_as_none(
    client: httpx2.AsyncClient, jailed: Service, session: str
) -> None:
    async with client_with(jailed, Role.AGENT, ("other",)) as agent:
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/run"),
            ("POST", "/pause"),
            ("GET", "/files"),
            ("GET", "/files/content?path=f"),
            ("PUT", "/files/content?path=f"),
            ("GET", "/files/watch"),
        ):
            body = {"json": {"code": "1"}} if rest == "/run" else {}
            foreign = await agent.request(method, session + rest, **body)  # type: ignore[arg-type]
            absent = await agent.request(method, f"{SESSIONS}/se-none{rest}", **body)  # type: ignore[arg-type]
            assert (foreign.status_code, foreign.content) == (404, absent.content), rest
        assert (await agent.get(SESSIONS)).json()["sessions"] == []
        assert (await agent.post(SESSIONS, json={"project_id": "default"})).status_code == 403
    assert (await client.get(session)).json()["state"] == "ready"
