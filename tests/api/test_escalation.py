"""What policy does not give cannot be had: not by asking for it, not by a policy that is broken or changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.conftest import opened
from tests.api.served import client_of, code_of

from belljar.errors import BadPolicy

if TYPE_CHECKING:
    import httpx2

CLOSED = "policies:\n  default: {max_memory: 64MB}\n  ceilings: {max_memory: 128MB, max_cpu: 1}\n"
OPEN = "policies:\n  ceilings: {max_memory: 64GB, max_cpu: 64, network_access: true}\n"
DOORS = [
    pytest.param("/run", lambda asked: {"code": "1", "limits": asked}, id="run"),
    pytest.param(
        "/sandbox/execs",
        lambda asked: {"exec": {"kind": "python", "command": "1"}, "policy_overrides": {"limits": asked}},
        id="exec",
    ),
    pytest.param(
        "/skills/python.run/invoke",
        lambda asked: {"inputs": {"code": "1"}, "policy_overrides": {"limits": asked}},
        id="skill",
    ),
]


# Q1


@pytest.mark.parametrize(("route", "body"), DOORS)
@pytest.mark.parametrize("name", ["memory_mb", "cpu_cores", "timeout_s", "pids"])
@pytest.mark.parametrize(
    "value", ["-1", "0", "1e309", "1e30", '"64m"', "true", "null", "9223372036854775807", "[64]", "NaN"]
)
async def test_a_limit_that_nobody_gives_is_refused_and_named(
    shared: httpx2.AsyncClient, route: str, body: Any, name: str, value: str
) -> None:
    text = json.dumps(body({name: 7})).replace(f'"{name}": 7', f'"{name}": {value}')
    answer = await shared.post(route, content=text, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 403), answer.text
    assert code_of(answer) in ("BAD_REQUEST", "POLICY_ESCALATION")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"network": {"enabled": True}}, id="network"),
        pytest.param({"network_access": True}, id="by its other name"),
        pytest.param({"allowed_domains": ["*.example.com"]}, id="hosts"),
        pytest.param({"sandboxed": False}, id="out of the jar"),
        pytest.param({"approve_at": "off"}, id="nobody asked"),
        pytest.param({"accept_weaker_limits": True}, id="weaker"),
        pytest.param({"image": "python:3.12"}, id="image"),
    ],
)
async def test_an_override_opens_nothing(shared: httpx2.AsyncClient, overrides: dict[str, Any]) -> None:
    body = {"exec": {"kind": "python", "command": "1"}, "policy_overrides": overrides}
    answer = await shared.post("/sandbox/execs", json=body)
    if answer.status_code == 200:  # it is what everybody has anyway
        granted = {name: row["value"] for name, row in answer.json()["policy_snapshot"].items()}
        plain = (await shared.post("/sandbox/execs", json={"exec": body["exec"]})).json()["policy_snapshot"]
        assert granted == {name: row["value"] for name, row in plain.items()}
    else:
        assert answer.status_code == 403, answer.text


async def test_what_was_granted_is_told(shared: httpx2.AsyncClient) -> None:
    body = {"exec": {"kind": "python", "command": "1"}, "policy_overrides": {"limits": {"memory_mb": 64}}}
    told = (await shared.post("/sandbox/execs", json=body)).json()["policy_snapshot"]
    assert told["limits.memory_mb"] == {"value": 64, "layer": "request"}


# Q2, Q4, Q5: a policy that cannot be read grants nothing, and nothing is served with it


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("policies:\n  agent_roles:\n    a: {inherits: b}\n    b: {inherits: a}\n", id="loop"),
        pytest.param("policies:\n  agent_roles:\n    a: {inherits: absent}\n", id="no parent"),
        pytest.param(
            "policies:\n  agent_roles:\n    r0: {}\n"
            + "".join(f"    r{n}: {{inherits: r{n - 1}}}\n" for n in range(1, 5000)),
            id="too deep",
        ),
        pytest.param("policies:\n  default: {netwrok_access: false}\n", id="unknown key"),
        pytest.param("network: {allowlist: {enabled: true}}\n", id="a list of nothing"),
        pytest.param("", id="empty"),
        pytest.param("\0", id="no text"),
        pytest.param(None, id="missing"),
    ],
)
async def test_with_a_policy_that_is_none_nothing_is_served(tmp_path: Path, policy: str | None) -> None:
    file = tmp_path / "policy.yaml"
    if policy is not None:
        file.write_text(policy)
    with pytest.raises(BadPolicy):
        async with opened(tmp_path / "data", policy=file):
            pass


async def test_an_empty_list_allows_nothing(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  default: {allowed_commands: [], supported_languages: [bash]}\n")
    async with opened(tmp_path / "data", policy=policy) as service, client_of(service) as http:
        ran = await http.post("/run", json={"code": "ls", "language": "bash"})
        assert code_of(ran) == "COMMAND_NOT_ALLOWED"
        assert code_of(await http.post("/run", json={"code": "1"})) == "UNSUPPORTED_LANGUAGE"


async def test_a_policy_file_that_changes_meanwhile_changes_nothing(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(CLOSED)
    body = {"code": "1", "limits": {"memory_mb": 1024}}
    async with opened(tmp_path / "data", policy=policy) as service, client_of(service) as http:
        for text in (OPEN, "", "policies: ["):
            policy.write_text(text)
            assert code_of(await http.post("/run", json=body)) == "POLICY_ESCALATION"
        assert (await http.post("/run", json={"code": "1"})).status_code == 200
