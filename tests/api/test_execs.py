"""`/sandbox/execs`: submitting, listing, showing, cancelling, and the receipt."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.served import client_of, client_with, code_of
from tests.audit.databases import ended, queued
from tests.audit.test_network import decisions

from belljar.audit.receipts import verify_receipt
from belljar.audit.records import NetworkAccount, Receipt
from belljar.engines.jail.engine import JailEngine
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    from tests.api.conftest import Opening

EXECS = "/sandbox/execs"


def python(command: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"kind": "python", "command": command}, **more}


async def when(http: httpx2.AsyncClient, exec_id: str, status: str) -> dict[str, Any]:
    """The record, when the run has come that far."""
    while True:
        record: dict[str, Any] = (await http.get(f"{EXECS}/{exec_id}")).json()
        if record["status"] == status:
            return record
        await asyncio.sleep(0.01)


async def over(http: httpx2.AsyncClient, exec_id: str) -> dict[str, Any]:
    return await when(http, exec_id, "finished")


async def test_an_exec_answers_with_its_record_and_where_its_output_lies(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post(EXECS, json=python("hello", project_id="p"))
    assert answer.status_code == 200
    body = answer.json()
    folder = f"projects/p/artifacts/{body['exec_id']}"
    assert (body["status"], body["exit_code"], body["stdout"]) == ("finished", 0, "hello")
    assert body["artifacts_dir"] == folder
    assert (body["stdout_path"], body["stderr_path"]) == (f"{folder}/stdout.txt", f"{folder}/stderr.txt")
    assert "epoch" not in body


async def test_the_paths_of_an_exec_lead_to_its_output(
    shared_service: Service, shared: httpx2.AsyncClient
) -> None:
    body = (await shared.post(EXECS, json=python("hello"))).json()
    assert (shared_service.workspace.root / body["stdout_path"]).read_bytes() == b"hello"


async def test_no_answer_tells_where_the_service_keeps_things(shared_service: Service) -> None:
    async with client_with(shared_service, Role.AGENT) as http:
        body = await http.post(EXECS, json=python("write f x"))
        exec_id = body.json()["exec_id"]
        pages = [
            await http.get(f"{EXECS}/{exec_id}{rest}") for rest in ("", "/artifacts", "/events", "/receipt")
        ]
        pages += [await http.get(path) for path in (EXECS, "/sandbox/health", "/policy/explain", "/metrics")]
    place = str(shared_service.config.data_dir)
    assert not [page.url for page in [body, *pages] if place in page.text]
    receipt = base64.b64decode(pages[3].json()["body"]).decode()
    assert place not in receipt


@pytest.mark.parametrize(
    ("program", "stdout"),
    [
        pytest.param({"command": "hello"}, "hello", id="code"),
        pytest.param({"args": ["-c", "hello"]}, "hello", id="arguments"),
        pytest.param({"command": "python", "args": ["-c", "hello"]}, "hello", id="the interpreter's name"),
        pytest.param({"command": "main.py"}, "from a file", id="a file of inputs"),
        pytest.param({"command": "/workspace/inputs/main.py"}, "from a file", id="its whole path"),
        pytest.param({"args": ["/workspace/inputs/main.py"]}, "from a file", id="its path as an argument"),
    ],
)
async def test_python_is_code_or_a_file_of_inputs(
    shared: httpx2.AsyncClient, program: dict[str, Any], stdout: str
) -> None:
    inputs = [{"path": "main.py", "content_b64": base64.b64encode(b"from a file").decode()}]
    answer = await shared.post(EXECS, json={"exec": {"kind": "python", **program}, "inputs": inputs})
    assert answer.json()["stdout"] == stdout


async def test_without_waiting_the_answer_is_where_to_look(http: httpx2.AsyncClient) -> None:
    answer = await http.post(EXECS, json=python("sleep 0.1", wait=False))
    assert answer.status_code == 202
    assert answer.json()["status"] in ("queued", "running")
    record = await over(http, answer.json()["exec_id"])
    assert (record["verdict"], record["exit_code"]) == ("exited", 0)


async def test_the_context_of_a_run_is_kept(shared: httpx2.AsyncClient) -> None:
    ref = {"task_id": "t", "conversation_id": "c", "session_id": "s", "agent_id": "a", "org_id": "o"}
    body = (await shared.post(EXECS, json=python("1", skill_id="shell.run", task_ref=ref))).json()
    assert {name: body[name] for name in ref} == ref
    assert body["skill_id"] == "shell.run"
    assert body["project_id"] == "c"  # a conversation is a project where there is no other


async def test_overrides_narrow_and_the_record_says_who_set_what(shared: httpx2.AsyncClient) -> None:
    overrides = {"limits": {"memory_mb": 64}, "timeout_ms": 5000, "net": {"mode": "none"}}
    exec_id = (await shared.post(EXECS, json=python("1", policy_overrides=overrides))).json()["exec_id"]
    policy = (await shared.get(f"{EXECS}/{exec_id}")).json()["policy_snapshot"]
    assert policy["limits.memory_mb"] == {"value": 64, "layer": "request"}
    assert policy["limits.timeout_s"] == {"value": 5.0, "layer": "request"}
    assert policy["limits.pids"]["layer"] == "system"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({}, "exec", id="nothing"),
        pytest.param({"exec": {}}, "exec.kind", id="no kind"),
        pytest.param({"exec": {"kind": "docker"}}, "exec.kind", id="kind"),
        pytest.param({"exec": {"kind": "python", "command": ["ls"]}}, "exec.command", id="command"),
        pytest.param({"exec": {"kind": "python", "comand": "x"}}, "exec.comand", id="unknown in exec"),
        pytest.param(python("1", wait="yes"), "wait", id="wait"),
        pytest.param(python("1", wait=1), "wait", id="wait as number"),
        pytest.param(python("1", task_ref={"task": "x"}), "task_ref.task", id="unknown in task_ref"),
        pytest.param(python("1", task_ref={"task_id": "x\0"}), "task_ref.task_id", id="NUL in an id"),
        pytest.param(python("1", inputs=["main.py"]), "inputs.0", id="inputs by name"),
        pytest.param(python("1", inputs=[{"path": "../x", "content_b64": ""}]), "inputs", id="input up"),
        pytest.param(python("1", policy_overrides={"netwrok": 1}), "netwrok", id="unknown override"),
        pytest.param(python("1", policy_overrides=[]), "policy_overrides", id="overrides"),
        pytest.param({"exec": {"kind": "python", "cwd": "/etc"}}, "exec.cwd", id="cwd"),
    ],
)
async def test_a_bad_exec_names_the_field(shared: httpx2.AsyncClient, body: Any, field: str) -> None:
    answer = await shared.post(EXECS, json=body)
    assert answer.status_code == 400, answer.text
    code_of(answer)
    assert answer.json()["error"]["field"] == field


async def test_a_shell_command_is_run_by_bash(open_service: Opening) -> None:
    async with open_service(JailEngine()) as service, client_of(service) as http:
        script = 'cat /workspace/inputs/x; echo "$1" | tr a-z A-Z; pwd; echo art > ../artifacts/f'
        program = {"kind": "shell", "command": script, "args": ["hi"], "cwd": "", "env": {"A": "b"}}
        inputs = [{"path": "x", "content_b64": base64.b64encode(b"in\n").decode()}]
        body = (await http.post(EXECS, json={"exec": program, "inputs": inputs})).json()
        literal = {"kind": "shell", "command": "bash", "args": ["-lc", "echo $((6*7))"]}
        seeded = (await http.post(EXECS, json={"exec": literal})).json()
    assert (body["stdout"], body["exit_code"]) == ("in\nHI\n/workspace/work\n", 0), body["stderr"]
    assert [artifact["path"] for artifact in body["artifacts"]] == ["artifacts/f"]
    assert (body["cmd"], seeded["stdout"]) == ("bash", "42\n")


ONLY_LS = """
policies:
  tools:
    shell_exec: {allowed_commands: [ls]}
    code_run: {max_memory: 64MB}
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param({"kind": "shell", "command": "ls"}, id="script"),
        pytest.param({"kind": "shell", "command": "ls $1", "args": ["/"]}, id="script with arguments"),
        pytest.param({"kind": "shell", "command": "bash", "args": ["-lc", "ls"]}, id="said in full"),
        pytest.param({"kind": "python", "command": "print(1)"}, id="python"),
    ],
)
async def test_a_list_of_commands_is_for_what_the_caller_says(
    open_service: Opening, tmp_path: Path, program: dict[str, Any]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(ONLY_LS)
    async with open_service(JailEngine(), policy=policy) as service, client_of(service) as http:
        answer = await http.post(EXECS, json={"exec": program})
        assert (answer.status_code, answer.json()["exit_code"]) == (200, 0), answer.text
        for more in ({"command": "curl x"}, {"args": ["-c", "curl x"]}, {"args": ["x.sh"]}):
            refused = await http.post(EXECS, json={"exec": {"kind": "shell", **more}})
            assert (refused.status_code, code_of(refused)) == (403, "COMMAND_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("program", "tool", "memory_mb"),
    [
        pytest.param({"kind": "python", "command": "1"}, "code_run", 64, id="python"),
        pytest.param({"kind": "python", "args": ["x.py"]}, "code_run", 64, id="python with arguments"),
        pytest.param({"kind": "shell", "command": "ls"}, "shell_exec", 512, id="shell"),
    ],
)
async def test_an_exec_is_a_run_of_a_tool(
    open_service: Opening, tmp_path: Path, program: dict[str, Any], tool: str, memory_mb: int
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(ONLY_LS)
    async with open_service(policy=policy) as service, client_of(service) as http:
        body = (await http.post(EXECS, json={"exec": program})).json()
    assert body["tool"] == tool
    assert body["policy_snapshot"]["limits.memory_mb"]["value"] == memory_mb


@pytest.mark.parametrize(
    ("program", "code", "args"),
    [
        pytest.param(
            {"kind": "python", "command": "hello", "args": ["a"]}, "hello", ["-c", "a"], id="python"
        ),
        pytest.param({"kind": "python", "args": ["-c", "hello"]}, "hello", ["-c"], id="in its arguments"),
        pytest.param({"kind": "shell", "command": "ls"}, "ls", ["-lc"], id="shell"),
        pytest.param({"kind": "shell", "args": ["-c", "ls", "0"]}, "ls", ["-c", "0"], id="said in full"),
    ],
)
async def test_the_program_of_an_exec_is_kept_as_code_and_not_among_its_arguments(
    shared: httpx2.AsyncClient, program: dict[str, Any], code: str, args: list[str]
) -> None:
    body = (await shared.post(EXECS, json={"exec": program})).json()
    told = (await shared.get(f"{EXECS}/{body['exec_id']}/code")).json()
    assert (body["args"], told["code"]) == (args, code)
    assert body["code_hash"] == told["code_hash"] == f"sha256:{hashlib.sha256(code.encode()).hexdigest()}"


async def test_an_exec_for_a_skill_is_held_to_its_manifest(open_service: Opening, tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "text.count"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text("")
    manifest = {
        "schema_version": "1",
        "id": "text.count",
        "name": "Count",
        "description": "Counts.",
        "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
        "runtime": {"kind": "docker", "entrypoint": ["python3", "main.py"]},
        "limits": {"memory_mb": 32},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    async with open_service(skills_dir=tmp_path / "skills") as service, client_of(service) as http:
        body = (await http.post(EXECS, json=python("1", skill_id="text.count"))).json()
        asked = python("1", skill_id="text.count", policy_overrides={"memory_mb": 64})
        more = await http.post(EXECS, json=asked)
        unknown = await http.post(EXECS, json=python("1", skill_id="text.cuont"))
    assert body["policy_snapshot"]["limits.memory_mb"] == {"value": 32, "layer": "skill:text.count"}
    assert (more.status_code, code_of(more)) == (403, "POLICY_ESCALATION")
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (404, "skill_id")


# Listing


async def test_runs_are_listed_newest_first_and_by_page(http: httpx2.AsyncClient) -> None:
    ids = [(await http.post(EXECS, json=python(str(n)))).json()["exec_id"] for n in range(5)]
    seen, cursor = [], ""
    while cursor is not None:
        page = (await http.get(EXECS, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [row["exec_id"] for row in page["execs"]]
        cursor = page["cursor"]
    assert seen == ids[::-1]


async def test_the_list_is_filtered(http: httpx2.AsyncClient) -> None:
    before = datetime.now(UTC)
    await http.post(
        EXECS, json=python("1", project_id="a", skill_id="python.run", task_ref={"task_id": "t1"})
    )
    await http.post(EXECS, json=python("2", project_id="b", skill_id="shell.run", task_ref={"task_id": "t2"}))
    after = datetime.now(UTC) + timedelta(seconds=1)

    async def found(**asked: str) -> list[str]:
        return [row["project_id"] for row in (await http.get(EXECS, params=asked)).json()["execs"]]

    assert await found() == ["b", "a"]
    assert await found(task_id="t1") == ["a"]
    assert await found(skill_id="shell.run") == ["b"]
    assert await found(project_id="a") == ["a"]
    assert await found(status="finished") == ["b", "a"]
    assert await found(status="queued") == []
    assert await found(since=before.isoformat()) == ["b", "a"]
    assert await found(since=after.isoformat()) == []
    assert await found(task_id="t1", skill_id="shell.run") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=done", "status"),
        ("since=yesterday", "since"),
        ("since=0001-01-01T00:00:00%2B23:59", "since"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=-1", "limit"),
        ("limit=%D9%A3", "limit"),
        ("cursor=nonsense", "cursor"),
        ("tsk_id=1", "tsk_id"),
        ("task_id=1&task_id=2", "task_id"),
    ],
)
async def test_a_bad_filter_is_named(shared: httpx2.AsyncClient, query: str, field: str) -> None:
    answer = await shared.get(f"{EXECS}?{query}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize("query", ["task_id=%00", "project_id=%FF%FE", "skill_id=" + "x" * 5000, "task_id="])
async def test_a_filter_that_matches_nothing_finds_nothing(shared: httpx2.AsyncClient, query: str) -> None:
    answer = await shared.get(f"{EXECS}?{query}")
    assert (answer.status_code, answer.json()["execs"]) == (200, [])


# Cancelling


async def test_a_run_that_goes_on_is_cancelled(http: httpx2.AsyncClient) -> None:
    exec_id = (await http.post(EXECS, json=python("sleep 60", wait=False))).json()["exec_id"]
    await when(http, exec_id, "running")
    assert (await http.post(f"{EXECS}/{exec_id}/cancel")).status_code == 202
    assert (await over(http, exec_id))["verdict"] == "cancelled"


async def test_a_run_that_waits_is_cancelled(open_service: Opening) -> None:
    async with open_service(max_concurrent_execs=1) as service, client_of(service) as http:
        first = (await http.post(EXECS, json=python("sleep 60", wait=False))).json()["exec_id"]
        await when(http, first, "running")
        second = (await http.post(EXECS, json=python("2", wait=False))).json()["exec_id"]
        waiting = asyncio.create_task(http.post("/run", json={"code": "2", "request_id": "r"}))
        queued: list[dict[str, str]] = []
        while len(queued) < 2:
            queued = (await http.get(f"{EXECS}?status=queued")).json()["execs"]
        third = queued[0]["exec_id"]
        for exec_id in (second, third, first):
            await http.post(f"{EXECS}/{exec_id}/cancel", json={})
        assert [(await over(http, exec_id))["verdict"] for exec_id in (first, second)] == ["cancelled"] * 2
        answer = (await waiting).json()
    assert (answer["verdict"], answer["exit_code"], answer["stdout"]) == ("cancelled", None, "")


async def test_a_run_that_is_over_stays_as_it_was(http: httpx2.AsyncClient) -> None:
    before = (await http.post(EXECS, json=python("1"))).json()
    answer = await http.post(f"{EXECS}/{before['exec_id']}/cancel")
    assert (answer.status_code, answer.json()["verdict"]) == (200, "exited")


async def test_a_cancel_has_nothing_to_say(shared: httpx2.AsyncClient) -> None:
    exec_id = (await shared.post(EXECS, json=python("1"))).json()["exec_id"]
    answer = await shared.post(f"{EXECS}/{exec_id}/cancel", json={"force": True})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "force")


# Network


async def test_the_code_of_a_run_is_told_afterwards_to_the_byte(shared: httpx2.AsyncClient) -> None:
    code = "print 1 \u00e9 \r\n"
    run = (await shared.post("/run", json={"code": code})).json()
    told = (await shared.get(f"/sandbox/execs/{run['id']}/code")).json()
    assert told["code"] == code
    assert told["code_hash"] == f"sha256:{hashlib.sha256(code.encode()).hexdigest()}"


async def test_code_that_is_not_what_ran_is_not_told(http: httpx2.AsyncClient, service: Service) -> None:
    run = (await http.post("/run", json={"code": "1"})).json()
    kept = service.workspace.run_folder("default", run["id"]) / "code.txt"
    for change in (lambda: kept.write_text("2"), kept.unlink):
        change()
        answer = await http.get(f"/sandbox/execs/{run['id']}/code")
        assert (answer.status_code, code_of(answer)) == (404, "NOT_FOUND")


async def test_an_agent_is_told_its_own_code_only(http: httpx2.AsyncClient, service: Service) -> None:
    theirs = (await http.post("/run", json={"code": "secret tests"})).json()["id"]
    async with client_with(service, Role.AGENT) as caller:
        own = (await caller.post("/run", json={"code": "1"})).json()["id"]
        assert (await caller.get(f"/sandbox/execs/{own}/code")).json()["code"] == "1"
        answer = await caller.get(f"/sandbox/execs/{theirs}/code")
        assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")


async def test_what_was_decided_of_a_runs_way_out_is_shown(
    shared_service: Service, shared: httpx2.AsyncClient
) -> None:
    record = await shared_service.store.accept(queued(project_id="default"))
    rows = decisions(record, 2)
    await shared_service.store.finish(ended(record), NetworkAccount(decisions=rows, total=9, refused=4))
    said = (await shared.get(f"{EXECS}/{record.exec_id}/network")).json()
    assert (said["exec_id"], said["total"], said["refused"]) == (record.exec_id, 9, 4)
    assert [(row["number"], row["host"], row["sent"]) for row in said["decisions"]] == [
        (1, "api.example.com", 100),
        (2, "api.example.com", None),
    ]


async def test_a_run_that_asked_for_no_way_out_shows_none(shared: httpx2.AsyncClient) -> None:
    exec_id = (await shared.post(EXECS, json=python("hello"))).json()["exec_id"]
    said = (await shared.get(f"{EXECS}/{exec_id}/network")).json()
    assert said == {"exec_id": exec_id, "total": 0, "refused": 0, "decisions": []}


# Receipts


async def test_the_receipt_can_be_checked_by_itself(
    shared_service: Service, shared: httpx2.AsyncClient
) -> None:
    run = (await shared.post(EXECS, json=python("hello"))).json()
    said = (await shared.get(f"{EXECS}/{run['exec_id']}/receipt")).json()
    body, signature = base64.b64decode(said["body"]), base64.b64decode(said["signature"])
    receipt = Receipt(said["number"], said["exec_id"], body, said["hash"], signature)
    assert verify_receipt(receipt, shared_service.signer.public_key) == []
    assert run["receipt"] == said["hash"] == hashlib.sha256(body).hexdigest()


async def test_a_run_that_is_not_over_has_no_receipt_yet(http: httpx2.AsyncClient) -> None:
    exec_id = (await http.post(EXECS, json=python("sleep 60", wait=False))).json()["exec_id"]
    answer = await http.get(f"{EXECS}/{exec_id}/receipt")
    assert (answer.status_code, code_of(answer)) == (404, "NOT_FOUND")
    await http.post(f"{EXECS}/{exec_id}/cancel")
