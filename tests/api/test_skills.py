"""Skills over HTTP: called under the ceiling of their manifest, with inputs and outputs that are checked."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import client_of, code_of, events_in

from belljar.engines.jail.engine import JailEngine
from belljar.errors import BadPolicy
from belljar.service import Service

if TYPE_CHECKING:
    import httpx2
    from tests.api.conftest import Opening

MANIFEST: dict[str, Any] = {
    "schema_version": "1",
    "id": "my.skill",
    "name": "Mine",
    "description": "Runs a program of its own.",
    "interface": {
        "inputs": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "outputs": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    "runtime": {"kind": "docker", "entrypoint": ["python3", "main.py"]},
    "permissions": {"fs": {"read": ["inputs/**"], "write": ["artifacts/**"]}},
    "limits": {"memory_mb": 64, "timeout_s": 30},
}
DOUBLE = """
import json, sys
import helper
n = helper.double(json.load(sys.stdin)["n"])
open("/workspace/artifacts/output.json", "w").write(json.dumps({"n": n}))
open("/workspace/artifacts/note.txt", "w").write("done")
open("scratch.txt", "w").write("not mine to leave")
"""
HELPER = "def double(n): return 2 * n\n"
CSV = b"city,people,since\nOslo,709037,1048-01-01\nBergen,291940,1070-01-01\nMoss,,\n"


def write_skill(folder: Path, program: str = DOUBLE, **changes: Any) -> Path:
    skill = folder / "my.skill"
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "manifest.json").write_text(json.dumps({**MANIFEST, **changes}))
    (skill / "main.py").write_text(program)
    (skill / "helper.py").write_text(HELPER)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(jail: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    folder = tmp_path_factory.mktemp("skills")
    skills = write_skill(folder / "skills")
    async with opened(folder, JailEngine(), skills_dir=skills) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(service) as http:
        yield http


def given(name: str, content: bytes) -> dict[str, str]:
    return {"path": name, "content_b64": base64.b64encode(content).decode()}


async def invoke(http: httpx2.AsyncClient, skill: str, **body: Any) -> Any:
    answer = await http.post(f"/skills/{skill}/invoke", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_skills_are_listed_with_their_interface(http: httpx2.AsyncClient) -> None:
    skills = {one["id"]: one for one in (await http.get("/skills")).json()["skills"]}
    assert set(skills) == {"my.skill", "python.run", "shell.run", "table.summary"}
    assert skills["my.skill"]["inputs"] == MANIFEST["interface"]["inputs"]
    assert (await http.get("/skills/my.skill")).json() == skills["my.skill"]


async def test_a_skill_s_outputs_are_checked_and_given_back(http: httpx2.AsyncClient) -> None:
    told = await invoke(http, "my.skill", inputs={"n": 21})
    assert (told["status"], told["reason"], told["outputs"]) == ("ok", None, {"n": 42})
    assert sorted(file["path"] for file in told["artifacts"]) == [
        "artifacts/note.txt",
        "artifacts/output.json",
    ]


async def test_a_skill_whose_artifacts_are_not_kept_has_failed(
    http: httpx2.AsyncClient, service: Service
) -> None:
    service.workspace.project("full").mkdir()
    (service.workspace.project("full") / "artifacts").touch()  # where folders are to go
    told = await invoke(http, "my.skill", inputs={"n": 21}, project_id="full")
    assert (told["status"], told["outputs"], told["error_code"]) == ("failed", {"n": 42}, "STORE_UNAVAILABLE")
    assert told["reason"] == "the run's own files could not be kept: Not a directory"


async def test_a_run_of_a_skill_is_held_to_its_manifest(http: httpx2.AsyncClient) -> None:
    told = await invoke(http, "my.skill", inputs={"n": 1})
    record = (await http.get(f"/sandbox/execs/{told['exec_id']}")).json()
    assert record["skill_id"] == "my.skill"
    assert record["policy_snapshot"]["limits.memory_mb"] == {"value": 64, "layer": "skill:my.skill"}
    body = {"inputs": {"n": 1}, "policy_overrides": {"limits": {"memory_mb": 65}}}
    assert code_of(await http.post("/skills/my.skill/invoke", json=body)) == "POLICY_ESCALATION"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"inputs": {}}, "BAD_REQUEST", id="inputs"),
        pytest.param({"inputs": {"n": 1}, "digest": "0" * 64}, "CONFLICT", id="another version"),
        pytest.param({"inputs": {"n": 1}, "image": "x"}, "BAD_REQUEST", id="unknown field"),
        pytest.param({"inputs": {"n": 1}, "files": [given("../x", b"")]}, "PATH_NOT_ALLOWED", id="path"),
        pytest.param(
            {"inputs": {"n": 1}, "policy_overrides": {"image": "x"}}, "IMAGE_NOT_ALLOWED", id="image"
        ),
        pytest.param(
            {"inputs": {"n": 1}, "policy_overrides": {"network_access": True}},
            "POLICY_ESCALATION",
            id="network",
        ),
    ],
)
async def test_a_call_that_may_not_be_is_refused(
    http: httpx2.AsyncClient, body: dict[str, Any], code: str
) -> None:
    assert code_of(await http.post("/skills/my.skill/invoke", json=body)) == code


async def test_a_version_that_is_meant_is_used(http: httpx2.AsyncClient, service: Service) -> None:
    digest = service.skills.get("my.skill").digest
    assert (await invoke(http, "my.skill", inputs={"n": 1}, digest=digest))["digest"] == digest


async def test_a_call_streams_its_events_and_ends_with_the_answer(http: httpx2.AsyncClient) -> None:
    headers = {"accept": "text/event-stream"}
    answer = await http.post("/skills/my.skill/invoke", json={"inputs": {"n": 2}}, headers=headers)
    events = events_in(answer.text)
    assert [kind for _, kind, _ in events][:3] == ["queued", "running", "started"]
    assert (events[-1][1], events[-1][2]["outputs"]) == ("result", {"n": 4})


async def test_the_same_request_is_the_same_call(http: httpx2.AsyncClient) -> None:
    first = await invoke(http, "my.skill", inputs={"n": 3}, request_id="again")
    assert await invoke(http, "my.skill", inputs={"n": 3}, request_id="again") == first


@pytest.mark.parametrize("skill", ["my.Skill", "my.skill.", "skill.my.skill", "my.skill%20"])
async def test_another_id_is_another_skill(http: httpx2.AsyncClient, skill: str) -> None:
    assert code_of(await http.post(f"/skills/{skill}/invoke", json={"inputs": {"n": 1}})) == "NOT_FOUND"


async def test_a_service_with_a_broken_skill_does_not_start(open_service: Opening, tmp_path: Path) -> None:
    skills = write_skill(tmp_path / "skills", limits={"memory_mb": -1})
    with pytest.raises(BadPolicy, match="memory_mb"):
        async with open_service(skills_dir=skills):
            pass


# Ours


async def test_python_run_runs_python(http: httpx2.AsyncClient) -> None:
    told = await invoke(http, "python.run", inputs={"code": "import sys; print(6 * 7); sys.exit(3)"})
    assert told["outputs"] == {"exit_code": 3, "stdout": "42\n", "stderr": ""}


async def test_shell_run_runs_bash_on_the_given_files(http: httpx2.AsyncClient) -> None:
    script = "wc -c < /workspace/inputs/x; cp /workspace/inputs/x /workspace/artifacts/y"
    told = await invoke(http, "shell.run", inputs={"script": script}, files=[given("x", b"hello")])
    assert told["outputs"]["stdout"].strip() == "5"
    assert [file["path"] for file in told["artifacts"]] == ["artifacts/y"]


async def test_rules_for_a_shell_hold_for_shell_run(open_service: Opening, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {shell_exec: {risk_level: high, allowed_commands: [ls]}}}")
    async with open_service(policy=policy) as service, client_of(service) as http:
        answer = await http.post("/skills/shell.run/invoke", json={"inputs": {"script": "curl --version"}})
    assert code_of(answer) == "COMMAND_NOT_ALLOWED"


async def test_table_summary_says_what_is_in_a_table(http: httpx2.AsyncClient) -> None:
    told = await invoke(http, "table.summary", inputs={"file": "t.csv"}, files=[given("t.csv", CSV)])
    city, people, since = told["outputs"]["columns"]
    assert told["outputs"]["rows"] == 3
    assert (city["kind"], people["kind"], since["kind"]) == ("text", "integer", "date")
    assert (people["min"], people["max"], people["missing"]) == (291940, 709037, 1)
    assert people["mean"] == 500488.5
    path = f"/sandbox/execs/{told['exec_id']}/artifacts/artifacts/summary.md"
    assert "| people | integer | 2 | 1 |" in (await http.get(path)).text


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"a;b\n1;2\n", 1, id="semicolons"),
        pytest.param(b"\xff\xfe,b\n\x00,2\n", 1, id="not text"),
        pytest.param(b"a,a\n1\n1,2,3\n", 2, id="ragged"),
        pytest.param(b'a\n"' + b"x" * 1000, 1, id="open quote"),
    ],
)
async def test_table_summary_takes_whatever_it_is_given(
    http: httpx2.AsyncClient, content: bytes, rows: int
) -> None:
    told = await invoke(http, "table.summary", inputs={"file": "t.csv"}, files=[given("t.csv", content)])
    assert told["outputs"]["rows"] == rows, told["stderr"]


async def test_a_skill_that_fails_is_a_result(http: httpx2.AsyncClient) -> None:
    told = await invoke(http, "table.summary", inputs={"file": "absent.csv"})
    assert (told["status"], told["outputs"], told["exit_code"]) == ("failed", None, 1)
    assert "absent.csv" in told["stderr"]
