"""`POST /tests/run`, on the fake engine: its form and its refusals. What a judge says is in tests/flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.api.served import client_with, code_of

from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2

PAIR = {"kind": "pair", "name": "echo", "input": "hi", "expected": "hi"}


async def test_each_test_has_its_verdict(shared: httpx2.AsyncClient) -> None:
    wrong = {**PAIR, "name": "wrong", "expected": "ho"}
    answer = await shared.post("/tests/run", json={"code": "stdin", "tests": [PAIR, wrong]})
    body = answer.json()
    assert (answer.status_code, body["status"], body["passed"]) == (200, "ok", False)
    assert [(test["id"], test["outcome"]) for test in body["tests"]] == [
        ("echo", "passed"),
        ("wrong", "failed"),
    ]
    assert body["counts"]["passed"] == 1
    records = [await shared.get(f"/sandbox/execs/{exec_id}") for exec_id in body["runs"]]
    assert [record.status_code for record in records] == [200, 200]


async def test_a_judge_that_is_not_heard_of_fails_them_all(shared: httpx2.AsyncClient) -> None:
    test = {"kind": "pytest", "text": "def test_x(): pass"}
    body = (await shared.post("/tests/run", json={"code": "", "tests": [test]})).json()
    assert [test["outcome"] for test in body["tests"]] == ["error"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"code": "x", "tests": []}, "tests", id="none"),
        pytest.param({"tests": [PAIR]}, "code", id="no-code"),
        pytest.param({"code": "x", "tests": [{"kind": "pair", "input": ""}]}, "tests.0.expected", id="half"),
        pytest.param({"code": "x", "tests": [{**PAIR, "text": ""}]}, "tests.0.text", id="too-much"),
        pytest.param({"code": "x", "tests": [{"kind": "unittest"}]}, "tests.0.kind", id="kind"),
        pytest.param({"code": "x", "tests": [PAIR], "timeout_s": -1}, "timeout_s", id="time"),
        pytest.param({"code": "x", "tests": [PAIR], "limits": {"timeout_s": 1}}, "limits", id="twice"),
        pytest.param(
            {"code": "x", "tests": [{"kind": "docstrings"}], "language": "bash"}, "tests", id="language"
        ),
        pytest.param(
            {"code": "x", "tests": [{"kind": "docstrings"}], "module": "a-b"}, "module", id="module"
        ),
        pytest.param({"code": "x", "tests": [PAIR], "time_out": 1}, "time_out", id="unknown"),
    ],
)
async def test_what_makes_no_sense_names_the_field(
    shared: httpx2.AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await shared.post("/tests/run", json=body)
    assert (answer.status_code, code_of(answer)) == (400, "BAD_REQUEST")
    assert answer.json()["error"]["field"] == field


async def test_policy_decides_on_them_too(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post(
        "/tests/run", json={"code": "x", "tests": [PAIR], "limits": {"memory_mb": 10**9}}
    )
    assert (answer.status_code, code_of(answer)) == (403, "POLICY_ESCALATION")


async def test_a_project_of_others_is_theirs(shared_service: Service) -> None:
    async with client_with(shared_service, Role.AGENT, ("mine",)) as agent:
        answer = await agent.post("/tests/run", json={"code": "x", "tests": [PAIR], "project_id": "theirs"})
        assert answer.status_code == 403
        mine = await agent.post("/tests/run", json={"code": "stdin", "tests": [PAIR]})
        assert mine.json()["passed"] is True
        shown = await agent.get("/sandbox/execs", params={"project_id": "mine"})
        assert len(shown.json()["execs"]) == 1
    async with client_with(shared_service, Role.VIEWER) as viewer:
        assert (await viewer.post("/tests/run", json={"code": "x", "tests": [PAIR]})).status_code == 403
