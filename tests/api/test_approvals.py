"""Approvals over HTTP: who looks, who decides, what a decision is bound to, and what the caller is told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import TOKEN, client_of, client_with, code_of, events_in

from belljar.api.app import ROUTES, create_app_for
from belljar.api.approvals import MAX_SHOWN_CHARS
from belljar.client import AsyncClient, Event
from belljar.client.apps import AppTransport
from belljar.engines.jail.engine import JailEngine
from belljar.errors import ApprovalDenied, ApprovalNeeded
from belljar.flows.tools import catalogue
from belljar.service import Service
from belljar.settings import Profile
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2

RISKY = "import os\nos.system('ls')"
BODY: dict[str, Any] = {"code": RISKY, "request_id": "r1"}
PENDING_FIELDS = {
    "id",
    "exec_id",
    "request_id",
    "status",
    "approval_id",
    "tier",
    "expires_at",
    "message",
}


@pytest_asyncio.fixture(loop_scope="module")
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with opened(tmp_path, profile=Profile.SUPERVISED) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="module")
async def person(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_with(service, Role.APPROVER) as http:
        yield http


@pytest_asyncio.fixture(loop_scope="module")
async def agent(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_with(service, Role.AGENT, ("p1",)) as http:
        yield http


async def asked(http: httpx2.AsyncClient, /, route: str = "/run", **body: Any) -> Any:
    """What is told of a run that waits."""
    answer = await http.post(route, json=body or BODY)
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert set(told) >= PENDING_FIELDS
    assert told["status"] == "pending_approval"
    assert told["id"] == told["exec_id"]
    return told


async def say(http: httpx2.AsyncClient, approval_id: str, decision: str, **more: Any) -> httpx2.Response:
    return await http.post(f"/approvals/{approval_id}", json={"decision": decision, **more})


async def when_asked(service: Service) -> str:
    """The id of what waits, as soon as something does."""
    async with asyncio.timeout(30):
        while True:
            for approval in await service.lifecycle.approvals.known():
                return approval.id
            await asyncio.sleep(0.01)


async def while_it_waits(
    asking: Awaitable[httpx2.Response], service: Service, person: httpx2.AsyncClient, decision: str
) -> httpx2.Response:
    """The answer to a call that waits for a person, who decides meanwhile."""
    task = asyncio.ensure_future(asking)
    approval_id = await when_asked(service)
    assert not task.done()
    assert (await say(person, approval_id, decision, reason="because")).status_code == 200
    return await task


# What the caller is told


@pytest.mark.parametrize(
    ("route", "body"),
    [
        pytest.param("/run", {"code": RISKY}, id="run"),
        pytest.param("/run", {"command": ["rm", "-r", "x"]}, id="command"),
        pytest.param("/sandbox/execs", {"exec": {"kind": "shell", "command": "rm -r x"}}, id="exec"),
        pytest.param(
            "/sandbox/execs", {"exec": {"kind": "shell", "command": "rm -r x"}, "wait": False}, id="no wait"
        ),
        pytest.param("/tools/code_run", {"arguments": {"code": RISKY}}, id="tool"),
        pytest.param("/skills/python.run/invoke", {"inputs": {"code": RISKY}}, id="skill"),
    ],
)
async def test_a_run_that_waits_is_answered_at_once(
    service: Service, http: httpx2.AsyncClient, person: httpx2.AsyncClient, route: str, body: dict[str, Any]
) -> None:
    told = await asked(http, route, request_id="r1", **body)
    assert told["approval_id"] == (await when_asked(service))
    shown = (await person.get(f"/approvals/{told['approval_id']}")).json()
    assert shown["exec_id"] == told["exec_id"]
    assert await asked(http, route, request_id="r1", **body) == told


async def test_the_same_request_many_times_at_once_is_one_that_waits(http: httpx2.AsyncClient) -> None:
    told = await asyncio.gather(*(asked(http) for _ in range(20)))
    assert len({one["approval_id"] for one in told}) == 1
    assert len((await http.get("/approvals")).json()["approvals"]) == 1


@pytest_asyncio.fixture(loop_scope="module")
async def jailed(tmp_path: Path) -> AsyncIterator[Service]:
    async with opened(tmp_path, JailEngine(), profile=Profile.SUPERVISED) as service:
        yield service


async def test_a_run_in_a_session_waits_too(jailed: Service) -> None:
    async with client_of(jailed) as http:
        session = f"/sandbox/sessions/{(await http.post('/sandbox/sessions', json={})).json()['session_id']}"
        told = await asked(http, f"{session}/run", **BODY)
        assert await asked(http, f"{session}/run", **BODY) == told
        await say(http, told["approval_id"], "approve")
        answer = await http.post(f"{session}/run", json={**BODY, "approval_wait_s": 30})
        assert (answer.status_code, answer.json()["id"]) == (200, told["id"])
        assert (await http.get(session)).json()["runs"] == 1


async def test_a_yes_in_a_session_is_for_the_files_that_were_shown(jailed: Service) -> None:
    async with client_of(jailed) as http:
        session = f"/sandbox/sessions/{(await http.post('/sandbox/sessions', json={})).json()['session_id']}"

        async def put(content: bytes) -> None:
            await http.put(f"{session}/files/content", params={"path": "x.sh"}, content=content)

        await put(b"echo harmless")
        body = {"command": ["rm", "-r", "x.sh"], "request_id": "r1"}
        told = await asked(http, f"{session}/run", **body)
        shown = (await http.get(f"/approvals/{told['approval_id']}")).json()
        assert shown["session_files"] == {"work/x.sh": hashlib.sha256(b"echo harmless").hexdigest()}
        await put(b"echo something else")
        assert code_of(await say(http, told["approval_id"], "approve")) == "CONFLICT"
        await put(b"echo harmless")
        assert (await say(http, told["approval_id"], "approve")).json()["state"] == "approved"
        answer = await http.post(f"{session}/run", json={**body, "approval_wait_s": 30})
        assert answer.json()["verdict"] == "exited"


async def test_a_run_can_be_followed_by_its_id(http: httpx2.AsyncClient, person: httpx2.AsyncClient) -> None:
    told = await asked(http)
    route = f"/sandbox/execs/{told['exec_id']}"
    assert (await http.get(route)).json()["status"] == "pending_approval"
    await say(person, told["approval_id"], "approve", reason="fine")
    again = (await http.post("/run", json=BODY)).json()
    assert (again["id"], again["verdict"]) == (told["id"], "exited")
    record = (await http.get(route)).json()
    assert record["approval"]["decision"] == "approved"
    assert record["approval"]["reason"] == "fine"
    receipt = (await http.get(f"{route}/receipt")).json()
    assert told["approval_id"] in base64.b64decode(receipt["body"]).decode()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        pytest.param("/run", {"code": RISKY}, id="run"),
        pytest.param("/sandbox/execs", {"exec": {"kind": "shell", "command": "rm x"}}, id="exec"),
        pytest.param("/tools/code_run", {"arguments": {"code": RISKY}}, id="tool"),
        pytest.param("/skills/python.run/invoke", {"inputs": {"code": RISKY}}, id="skill"),
    ],
)
async def test_a_caller_may_wait_for_the_decision_and_then_for_the_end(
    service: Service, http: httpx2.AsyncClient, person: httpx2.AsyncClient, route: str, body: dict[str, Any]
) -> None:
    asking = http.post(route, json={**body, "approval_wait_s": 30})
    answer = await while_it_waits(asking, service, person, "approve")
    assert answer.status_code == 200, answer.text


async def test_a_wait_that_is_over_leaves_the_run_where_it_is(http: httpx2.AsyncClient) -> None:
    told = await asked(http, **BODY, approval_wait_s=0.05)
    assert (await http.get(f"/approvals/{told['approval_id']}")).json()["state"] == "waiting"


@pytest.mark.parametrize("seconds", [-1, 3601, "5", True, None])
async def test_nobody_waits_longer_than_an_hour(http: httpx2.AsyncClient, seconds: object) -> None:
    answer = await http.post("/run", json={**BODY, "approval_wait_s": seconds})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "approval_wait_s")


async def test_a_stream_tells_of_the_wait_and_goes_on_to_the_end(
    service: Service, http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    asking = http.post("/run", json=BODY, headers={"accept": "text/event-stream"})
    events = events_in((await while_it_waits(asking, service, person, "approve")).text)
    kinds = [kind for _, kind, _ in events]
    assert kinds[:2] == ["pending_approval", "approved"]
    assert kinds[-2:] == ["finished", "result"]


async def test_a_stream_of_what_is_denied_ends_with_the_reason(
    service: Service, http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    asking = http.post("/run", json=BODY, headers={"accept": "text/event-stream"})
    events = events_in((await while_it_waits(asking, service, person, "deny")).text)
    assert [kind for _, kind, _ in events] == ["pending_approval", "denied", "finished", "error"]
    assert events[-1][2]["error"]["code"] == "APPROVAL_DENIED"


async def test_what_is_denied_is_refused_with_the_reason_and_again(
    service: Service, http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    asking = http.post("/run", json={**BODY, "approval_wait_s": 30})
    first = await while_it_waits(asking, service, person, "deny")
    again = await http.post("/run", json=BODY)
    for answer in (first, again):
        assert (answer.status_code, code_of(answer)) == (403, "APPROVAL_DENIED")
        assert "because" in answer.json()["error"]["message"]


async def test_what_nobody_answered_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, profile=Profile.SUPERVISED, approval_expires_s=0.05) as service:
        async with client_of(service) as http:
            answer = await http.post("/run", json={**BODY, "approval_wait_s": 30})
            assert code_of(answer) == "APPROVAL_DENIED"
            found = (await http.get("/approvals?state=expired")).json()["approvals"]
            late = await say(http, found[0]["id"], "approve")
    assert (late.status_code, code_of(late)) == (409, "CONFLICT")


async def test_tests_do_not_wait_for_a_person(http: httpx2.AsyncClient) -> None:
    body = {"code": RISKY, "tests": [{"kind": "pair", "input": "", "expected": ""}]}
    answer = await http.post("/tests/run", json=body)
    assert code_of(answer) == "APPROVAL_NEEDED"
    assert (
        answer.json()["error"]["approval_id"] == (await http.get("/approvals")).json()["approvals"][0]["id"]
    )


# What a person sees


async def test_a_person_sees_all_that_decides_what_will_run(
    agent: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(
        agent,
        code=RISKY,
        args=["--all"],
        env={"API_KEY": "s3cret"},
        stdin="more",
        input_files=[{"path": "a.txt", "content_b64": "MQ=="}],
        limits={"memory_mb": 64},
    )
    answer = await person.get(f"/approvals/{told['approval_id']}")
    shown = answer.json()
    assert (shown["code"], shown["stdin"], shown["complete"]) == (RISKY, "more", True)
    assert (shown["args"], shown["env_keys"]) == (["--all"], ["API_KEY"])
    assert shown["files"] == {"a.txt": hashlib.sha256(b"1").hexdigest()}
    assert [(one["tier"], one["line"]) for one in shown["findings"]] == [("critical", 2)]
    assert shown["reasons"] == ["line 2: os.system starts programs"]
    fields = {row["field"]: (row["value"], row["layer"]) for row in shown["grant"]["fields"]}
    assert fields["limits.memory_mb"] == (64, "request")
    assert fields["approve_at"] == ("high", "settings")
    assert shown["asked_by"].startswith("tok-")
    assert "s3cret" not in answer.text


async def test_an_agent_does_not_read_what_another_asks_for(
    service: Service, agent: httpx2.AsyncClient
) -> None:
    told = await asked(agent, code=RISKY, stdin="more", request_id="r1")
    route = f"/approvals/{told['approval_id']}"
    own = (await agent.get(route)).json()
    assert (own["code"], own["stdin"], own["complete"]) == (RISKY, "more", True)
    async with client_with(service, Role.AGENT, ("p1",)) as other:
        shown = (await other.get(route)).json()
    assert (shown["code"], shown["stdin"], shown["complete"]) == (None, None, False)


async def test_afterwards_only_the_hash_of_the_code_is_left(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http)
    await say(person, told["approval_id"], "deny")
    shown = (await person.get(f"/approvals/{told['approval_id']}")).json()
    assert (shown["code"], shown["stdin"], shown["complete"]) == (None, None, False)
    assert shown["code_hash"] == f"sha256:{hashlib.sha256(RISKY.encode()).hexdigest()}"
    assert shown["answer"]["state"] == "denied"


async def test_a_program_too_long_to_be_shown_is_said_to_be(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http, code=RISKY + "\n#" + "x" * MAX_SHOWN_CHARS)
    shown = (await person.get(f"/approvals/{told['approval_id']}")).json()
    assert (len(shown["code"]), shown["complete"]) == (MAX_SHOWN_CHARS, False)


async def test_the_list_is_of_what_waits_or_of_another_state(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    first, second = [await asked(http, code=RISKY, project_id=name) for name in ("p1", "p2")]
    await say(person, first["approval_id"], "deny")

    async def ids(query: str = "") -> list[str]:
        return [one["id"] for one in (await person.get(f"/approvals{query}")).json()["approvals"]]

    assert await ids() == await ids("?state=waiting&project_id=p2") == [second["approval_id"]]
    assert await ids("?state=denied") == [first["approval_id"]]
    assert await ids("?project_id=p1") == []
    assert code_of(await person.get("/approvals?state=perhaps")) == "BAD_REQUEST"


# Who decides


@pytest.mark.parametrize("role", [Role.AGENT, Role.VIEWER])
async def test_who_may_look_may_not_decide(
    service: Service, http: httpx2.AsyncClient, agent: httpx2.AsyncClient, role: Role
) -> None:
    told = await asked(agent)
    async with client_with(service, role, ("p1",)) as looker:
        assert [one["id"] for one in (await looker.get("/approvals")).json()["approvals"]]
        assert (await looker.get(f"/approvals/{told['approval_id']}")).status_code == 200
        for decision in ("approve", "deny"):
            answer = await say(looker, told["approval_id"], decision)
            assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")
    assert (await http.get(f"/approvals/{told['approval_id']}")).json()["state"] == "waiting"


async def test_who_asked_does_not_answer(agent: httpx2.AsyncClient, service: Service) -> None:
    told = await asked(agent)
    assert code_of(await say(agent, told["approval_id"], "approve")) == "FORBIDDEN"
    assert (await service.lifecycle.approvals.of(told["exec_id"])).answer is None


async def test_no_route_but_one_decides_and_it_is_for_persons(service: Service) -> None:
    routes = [entry for entry in ROUTES if "approval" in entry.path and entry.method != "GET"]
    assert [(entry.method, entry.path) for entry in routes] == [("POST", "/approvals/{approval_id}")]
    assert routes[0].roles == {Role.OPERATOR, Role.APPROVER}


async def test_no_tool_or_skill_decides(service: Service, agent: httpx2.AsyncClient) -> None:
    names = [tool.name for tool in catalogue(service.lifecycle.policies, None)]
    names += [skill.id for skill in service.skills]
    assert names
    assert not [name for name in names if "appro" in name or "deny" in name]
    for name in ("approve", "approvals", "approvals.approve"):
        assert code_of(await agent.post(f"/tools/{name}", json={})) == "NOT_FOUND"
        assert code_of(await agent.post(f"/skills/{name}/invoke", json={})) == "NOT_FOUND"


async def test_what_is_not_of_the_token_s_projects_is_absent(
    service: Service, http: httpx2.AsyncClient
) -> None:
    told = await asked(http, code=RISKY, project_id="p2")
    async with client_with(service, Role.APPROVER, ("p1",)) as stranger:
        assert (await stranger.get("/approvals")).json()["approvals"] == []
        absent = [await stranger.get("/approvals/ap-none"), await say(stranger, "ap-none", "approve")]
        foreign = [
            await stranger.get(f"/approvals/{told['approval_id']}"),
            await say(stranger, told["approval_id"], "approve"),
        ]
    assert [answer.status_code for answer in foreign] == [404, 404]
    assert [answer.json() for answer in foreign] == [answer.json() for answer in absent]


async def test_policy_says_who_decides_on_which_tier(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  default: {approve_code_at: high}\n  approvers: {critical: [operator]}\n")
    async with opened(tmp_path / "data", policy=policy) as service:
        async with client_of(service) as operator, client_with(service, Role.APPROVER) as person:
            told = await asked(operator)
            answer = await say(person, told["approval_id"], "approve")
            assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")
            high = await asked(operator, code="open('x', 'w')\nimport socket")
            assert high["tier"] == "high"
            assert (await say(person, high["approval_id"], "approve")).status_code == 200
            assert (await say(operator, told["approval_id"], "approve")).status_code == 200


# What a decision is bound to


async def test_a_yes_to_something_else_than_what_was_seen_is_none(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http)
    answer = await say(person, told["approval_id"], "approve", digest="0" * 64)
    assert (answer.status_code, answer.json()["error"]["field"]) == (409, "digest")
    seen = (await person.get(f"/approvals/{told['approval_id']}")).json()["digest"]
    assert (await say(person, told["approval_id"], "approve", digest=seen)).status_code == 200


async def test_the_same_word_twice_counts_once_and_another_word_is_too_late(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http)
    for _ in range(2):
        answer = await say(person, told["approval_id"], "approve")
        assert (answer.status_code, answer.json()["state"]) == (200, "approved")
    assert (await say(person, told["approval_id"], "deny")).status_code == 409
    assert (await say(http, told["approval_id"], "approve")).status_code == 409
    await http.post("/run", json=BODY)
    assert len((await http.get("/sandbox/execs")).json()["execs"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="the same again"),
        pytest.param({"code": RISKY + "\n"}, id="a byte more"),
        pytest.param({"project_id": "p2"}, id="another project"),
        pytest.param({"timeout_s": 5}, id="another limit"),
        pytest.param({"args": ["x"]}, id="an argument"),
        pytest.param({"env": {"A": "1"}}, id="a variable"),
        pytest.param({"stdin": "x"}, id="other input"),
    ],
)
async def test_a_yes_is_for_one_run_only(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient, change: dict[str, Any]
) -> None:
    told = await asked(http)
    await say(person, told["approval_id"], "approve")
    await http.post("/run", json=BODY)
    another = await asked(http, **{"code": RISKY, "request_id": "r2", **change})
    assert another["approval_id"] != told["approval_id"]


async def test_a_request_that_is_changed_while_it_waits_is_not_that_request(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http)
    changed = await http.post("/run", json={**BODY, "code": "import os\nos.system('rm -rf /')"})
    assert (changed.status_code, code_of(changed)) == (409, "CONFLICT")
    assert (await person.get(f"/approvals/{told['approval_id']}")).json()["code"] == RISKY


async def test_a_yes_under_another_policy_than_was_shown_is_none(
    service: Service, http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http)
    policies = service.lifecycle.policies
    service.lifecycle.policies = replace(policies, settings=replace(policies.settings, memory_mb=100))
    answer = await say(person, told["approval_id"], "approve")
    assert (answer.status_code, code_of(answer)) == (409, "CONFLICT")
    assert (await say(person, told["approval_id"], "deny")).status_code == 200
    answer = await http.post("/run", json={**BODY, "approval_wait_s": 30})
    assert (answer.status_code, code_of(answer)) == (403, "APPROVAL_DENIED")


async def test_a_yes_can_be_remembered_for_that_very_digest(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient
) -> None:
    told = await asked(http)
    await say(person, told["approval_id"], "approve", remember_days=1)
    again = await http.post("/run", json={**BODY, "request_id": "r2"})
    assert again.status_code == 200
    record = (await http.get(f"/sandbox/execs/{again.json()['id']}")).json()
    assert record["approval"]["approval_id"] == told["approval_id"]
    await asked(http, code=RISKY + "\n", request_id="r3")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"decision": "maybe"}, "decision", id="no decision"),
        pytest.param({"decision": "approve", "remember_days": 366}, "remember_days", id="for ever"),
        pytest.param({"decision": "deny", "remember_days": 1}, "remember_days", id="a no for ever"),
        pytest.param({"decision": "approve", "reason": "x" * 2001}, "reason", id="a long story"),
        pytest.param({"decision": "approve", "token": "t"}, "token", id="unknown"),
    ],
)
async def test_a_decision_that_makes_no_sense_is_none(
    http: httpx2.AsyncClient, person: httpx2.AsyncClient, body: dict[str, Any], field: str
) -> None:
    told = await asked(http)
    answer = await person.post(f"/approvals/{told['approval_id']}", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert (await person.get(f"/approvals/{told['approval_id']}")).json()["state"] == "waiting"


# From Python


@pytest_asyncio.fixture(loop_scope="module")
async def client(service: Service) -> AsyncIterator[AsyncClient]:
    transport = AppTransport(create_app_for(service))
    async with AsyncClient("http://localhost", TOKEN, transport=transport) as client:
        yield client


async def test_a_client_is_told_which_run_waits_for_what(client: AsyncClient) -> None:
    asking = [
        client.run(RISKY),
        client.exec("shell", "rm x"),
        client.call_tool("code_run", arguments={"code": RISKY}),
        client.invoke("python.run", inputs={"code": RISKY}),
    ]
    for call in asking:
        with pytest.raises(ApprovalNeeded) as needed:
            await call
        shown = await client.approvals.show(needed.value.approval_id)
        assert shown["exec_id"] == needed.value.exec_id
    assert len(await client.approvals.list()) == len(asking)


async def test_a_client_that_does_not_wait_gets_the_record(client: AsyncClient) -> None:
    record = await client.exec("shell", "rm x", wait=False)
    assert (record["status"], record["approval_id"][:3]) == ("pending_approval", "ap-")


async def test_a_client_waits_as_long_as_it_says(service: Service, client: AsyncClient) -> None:
    asking = asyncio.create_task(client.run(RISKY, approval_wait_s=30))
    approval_id = await when_asked(service)
    await client.approvals.approve(approval_id, reason="fine")
    assert (await asking).stdout == RISKY
    with pytest.raises(ApprovalNeeded):
        await client.run(RISKY + "\n", approval_wait_s=0.05)


async def test_a_client_waits_for_the_end_of_a_run(client: AsyncClient) -> None:
    with pytest.raises(ApprovalNeeded) as needed:
        await client.run(RISKY)
    waiting = asyncio.create_task(client.wait(needed.value.exec_id))
    await client.approvals.approve(needed.value.approval_id)
    record = await waiting
    assert (record["verdict"], record["stdout"], record["stderr"]) == ("exited", RISKY, "")


async def test_a_client_is_told_that_it_was_denied(client: AsyncClient) -> None:
    with pytest.raises(ApprovalNeeded) as needed:
        await client.run(RISKY, request_id="r1")
    await client.approvals.deny(needed.value.approval_id, reason="not this")
    with pytest.raises(ApprovalDenied, match="not this"):
        await client.wait(needed.value.exec_id)
    with pytest.raises(ApprovalDenied, match="not this"):
        await client.run(RISKY, request_id="r1")


async def test_a_stream_of_a_client_waits_by_itself(service: Service, client: AsyncClient) -> None:
    kinds: list[str] = []
    async for event in client.stream(RISKY):
        kinds.append(event.kind if isinstance(event, Event) else "result")
        if kinds == ["pending_approval"]:
            await client.approvals.approve(await when_asked(service))
    assert kinds[:2] == ["pending_approval", "approved"]
    assert kinds[-1] == "result"
