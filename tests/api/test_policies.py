"""`/policy/explain` over HTTP says what a run is really granted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.served import client_of, client_with, code_of
from typer.testing import CliRunner

from belljar.cli import app
from belljar.engines.jail.engine import JailEngine
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    from tests.api.conftest import Opening

POLICY = """
policies:
  default:
    max_memory: 256MB
    denied_paths: ["/workspace/secret/**"]
    denied_commands: [sudo]
  tools:
    shell_exec:
      risk_level: high
      allowed_commands: [ls, cat]
"""


def field(answer: httpx2.Response, name: str) -> Any:
    return next(row for row in answer.json()["fields"] if row["field"] == name)


async def test_every_field_has_a_value_a_layer_and_a_ceiling(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post("/policy/explain", json={"policy_overrides": {"limits": {"memory_mb": 64}}})
    row = field(answer, "limits.memory_mb")
    assert (row["value"], row["layer"]) == (64, "request")
    assert (row["ceiling"], row["ceiling_layer"]) == (4096, "settings")
    assert answer.json()["grant"]["limits"]["memory_mb"] == 64


async def test_asking_and_telling_nothing_are_the_same(shared: httpx2.AsyncClient) -> None:
    asked, told = await shared.get("/policy/explain"), await shared.post("/policy/explain", json={})
    assert asked.json() == told.json()


async def test_the_explained_grant_is_the_one_a_run_gets(shared: httpx2.AsyncClient) -> None:
    overrides = {"limits": {"pids": 8}}
    explained = (await shared.post("/policy/explain", json={"policy_overrides": overrides})).json()
    body = {"exec": {"kind": "python", "command": "1"}, "policy_overrides": overrides}
    assert (await shared.post("/sandbox/execs", json=body)).json()["grant_digest"] == explained["digest"]


ROLES = """
policies:
  tools:
    code_run: {max_memory: 256MB}
    shell_exec: {max_memory: 128MB}
  agent_roles:
    coder: {tools: [code_run], max_pids: 9}
    typist: {tools: [shell_exec]}
    reader: {tools: [file_read]}
"""


@pytest.mark.parametrize(
    ("role", "memory_mb", "layer"),
    [
        pytest.param(None, 256, "tool:code_run", id="no role"),
        pytest.param("coder", 256, "tool:code_run", id="code"),
        pytest.param("typist", 128, "tool:shell_exec", id="commands"),
        pytest.param("reader", 512, "system", id="runs nothing"),
    ],
)
async def test_what_is_not_said_is_as_in_a_run_of_the_caller(
    open_service: Opening, tmp_path: Path, role: str | None, memory_mb: int, layer: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(ROLES)
    async with open_service(policy=policy) as service:
        _, token = service.tokens.create(Role.AGENT, None, agent_role=role)
        async with client_of(service, token) as http:
            row = field(await http.get("/policy/explain"), "limits.memory_mb")
            body = {"exec": {"kind": "python", "command": "1"}}
            ran = await http.post("/sandbox/execs", json=body)
            explained = (await http.post("/policy/explain", json={})).json()
    assert (row["value"], row["layer"]) == (memory_mb, layer)
    allowed = role in (None, "coder")
    assert (ran.status_code == 200) is allowed
    assert not allowed or ran.json()["grant_digest"] == explained["digest"]


async def test_a_skill_is_a_layer_of_what_is_explained(shared: httpx2.AsyncClient) -> None:
    row = field(await shared.get("/policy/explain?skill=table.summary"), "paths")
    assert row["layer"] == "skill:table.summary"
    unknown = await shared.post("/policy/explain", json={"skill": "no.such"})
    assert (unknown.status_code, code_of(unknown)) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        pytest.param("/run", {"language": "bash", "code": "curl x"}, id="run"),
        pytest.param("/run", {"command": ["curl", "x"]}, id="command"),
        pytest.param("/sandbox/execs", {"exec": {"kind": "shell", "command": "curl x"}}, id="exec"),
        pytest.param("/tools/shell_exec", {"arguments": {"command": "curl x"}}, id="tool"),
    ],
)
async def test_the_rules_of_a_tool_hold_whatever_the_door(
    open_service: Opening, tmp_path: Path, route: str, body: Any
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with open_service(policy=policy) as service, client_of(service) as http:
        refused = await http.post(route, json=body)
        rows = (await http.get("/sandbox/execs")).json()["execs"]
        record = (await http.get(f"/sandbox/execs/{rows[0]['exec_id']}")).json()
    assert (refused.status_code, code_of(refused)) == (403, "COMMAND_NOT_ALLOWED")
    assert record["tool"] == "shell_exec"


async def test_the_rules_of_a_tool_hold_in_a_session(open_service: Opening, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(ROLES)
    async with open_service(JailEngine(), policy=policy) as service, client_of(service) as http:
        session = (await http.post("/sandbox/sessions", json={})).json()["session_id"]
        runs = f"/sandbox/sessions/{session}/run"
        answers = [
            await http.post(runs, json={"language": language, "code": "echo" if language == "bash" else "1"})
            for language in ("bash", "python")
        ]
        tools = [row["tool"] for row in (await http.get("/sandbox/execs")).json()["execs"]]
    assert [answer.json().get("exit_code") for answer in answers] == [0, 0], [one.text for one in answers]
    assert tools == ["code_run", "shell_exec"]


async def test_it_says_what_the_command_line_says(open_service: Opening, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with open_service(policy=policy) as service, client_of(service) as http:
        over_http = (await http.get("/policy/explain?tool=shell_exec")).json()
    asked = ["policy", "explain", "--policy", str(policy), "--tool", "shell_exec", "--json"]
    printed = CliRunner().invoke(app, asked)
    differs = "accept_weaker_limits"  # what the service accepts is a setting of the service
    assert [row for row in over_http["fields"] if row["field"] != differs] == [
        row for row in json.loads(printed.stdout)["fields"] if row["field"] != differs
    ]


async def test_a_run_under_rules_is_recorded_with_them(open_service: Opening, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with open_service(policy=policy) as service, client_of(service) as http:
        run = await http.post("/run", json={"code": "1"})
        assert run.status_code == 200, run.text
        record = (await http.get(f"/sandbox/execs/{run.json()['id']}")).json()
    assert record["policy_snapshot"]["limits.memory_mb"]["value"] == 256


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param({"role": "nobody"}, 400, "BAD_REQUEST", id="role"),
        pytest.param({"tool": "hammer"}, 400, "BAD_REQUEST", id="tool"),
        pytest.param({"rol": "x"}, 400, "BAD_REQUEST", id="unknown"),
        pytest.param({"policy_overrides": {"memory_mb": 10**6}}, 403, "POLICY_ESCALATION", id="too much"),
        pytest.param({"policy_overrides": {"image": "alpine"}}, 403, "IMAGE_NOT_ALLOWED", id="image"),
    ],
)
async def test_what_would_be_refused_is_refused(
    shared: httpx2.AsyncClient, body: Any, status: int, code: str
) -> None:
    answer = await shared.post("/policy/explain", json=body)
    assert (answer.status_code, code_of(answer)) == (status, code)


async def test_who_only_looks_may_ask_too(shared_service: Service) -> None:
    async with client_with(shared_service, Role.VIEWER) as http:
        assert (await http.post("/policy/explain", json={})).status_code == 200
