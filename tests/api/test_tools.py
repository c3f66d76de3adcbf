"""Tools over HTTP: for whom, on what, and that no other name or route gets around policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import pytest_asyncio
from tests.api.conftest import Opening
from tests.api.served import client_of, client_with, code_of

from belljar.audit.records import Filter, Status
from belljar.engines.jail.engine import JailEngine
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2
    from tests.api.conftest import Opening

POLICY = """
policies:
  default: {approve_code_at: off}
  tools:
    file_read: {risk_level: low, denied_paths: [/workspace/.env, "/workspace/**/*.key"]}
    search: {risk_level: low, denied_paths: ["/workspace/**/*.key"], max_execution_time: 8s}
    file_write: {risk_level: medium, allowed_paths: ["/workspace/work/docs/**", /workspace/.env, "/workspace/*.key", /workspace/main.py]}
    shell_exec: {risk_level: high, allowed_commands: [ls, cat]}
  agent_roles:
    reader: {tools: [file_read, search]}
    coder: {tools: [code_run], max_memory: 100MB, denied_paths: [/workspace/.env]}
"""


@pytest_asyncio.fixture(loop_scope="module")
async def service(jail: None, open_service: Opening, tmp_path: Path) -> AsyncIterator[Service]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with open_service(JailEngine(), policy=policy) as service:
        yield service


def role_client(service: Service, agent_role: str) -> httpx2.AsyncClient:
    _, token = service.tokens.create(Role.AGENT, None, agent_role=agent_role)
    return client_of(service, token)


async def use(http: httpx2.AsyncClient, tool: str, /, **arguments: Any) -> Any:
    answer = await http.post(f"/tools/{tool}", json={"arguments": arguments})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(http: httpx2.AsyncClient, tool: str, /, **arguments: Any) -> str:
    return code_of(await http.post(f"/tools/{tool}", json={"arguments": arguments}))


async def test_what_one_tool_writes_the_others_find(http: httpx2.AsyncClient) -> None:
    made = await use(http, "file_write", path="docs/a.txt", content="one\ntwo\nthree\n")
    assert made["status"] == "success"
    read = await use(http, "file_read", path="docs/a.txt", offset=2, limit=1)
    assert read["data"] == {
        "path": "docs/a.txt",
        "text": "two\n",
        "first_line": 2,
        "total_lines": 3,
        "truncated": True,
        "next_offset": 3,
    }
    await use(http, "file_edit", path="docs/a.txt", old="two", new="2")
    found = await use(http, "search", query="^[0-9]$", regex=True)
    assert found["data"]["matches"] == [{"path": "docs/a.txt", "line": 2, "text": "2"}]
    ran = await use(http, "code_run", code="print(open('docs/a.txt').read().split())")
    assert ran["data"]["stdout"] == "['one', '2', 'three']\n"
    listed = await use(http, "shell_exec", command="ls docs")
    assert listed["data"]["stdout"] == "a.txt\n"


async def test_what_a_program_removes_or_renames_stays_so(http: httpx2.AsyncClient) -> None:
    for path in ("docs/a", "docs/b"):
        await use(http, "file_write", path=path, content="x")
    await use(http, "code_run", code="import os\nos.remove('docs/a')\nos.rename('docs', 'papers')")
    told = await use(http, "code_run", code="import os; print(sorted(os.listdir()), os.listdir('papers'))")
    assert told["data"]["stdout"] == "['main.py', 'papers'] ['b']\n"


@pytest.mark.parametrize(
    "path", ["'.netrc'", "'.ssh/x'", "'a\\\\b'", "'a\\tb'", "b'\\xff'", "'/'.join(['d'] * 40)"]
)
async def test_a_file_that_cannot_be_given_again_does_not_lock_the_project(
    http: httpx2.AsyncClient, path: str
) -> None:
    code = f"import os\np = {path}\nos.makedirs(os.path.dirname(p) or '.', exist_ok=True)\nopen(p, 'w')"
    told = await use(http, "code_run", code=code)
    record = (await http.get(f"/sandbox/execs/{told['exec_id']}")).json()
    assert [skip["reason"] for skip in record["skipped"]] == ["not_kept"]
    assert (await use(http, "code_run", code="print('goes on')"))["status"] == "success"


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        pytest.param("file_read", {"path": "absent"}, "NOT_FOUND", id="absent"),
        pytest.param("file_write", {"path": "docs/a", "content": "2"}, "CONFLICT", id="exists"),
        pytest.param("file_edit", {"path": "docs/a", "old": "z", "new": ""}, "NOT_FOUND", id="not in it"),
        pytest.param("file_edit", {"path": "docs/a", "old": "x", "new": ""}, "CONFLICT", id="twice"),
        pytest.param("file_read", {"path": "docs"}, "BAD_REQUEST", id="folder"),
        pytest.param("search", {"query": "(", "regex": True}, "BAD_REQUEST", id="no expression"),
    ],
)
async def test_what_a_tool_cannot_do_it_says(
    http: httpx2.AsyncClient, tool: str, arguments: dict[str, Any], code: str
) -> None:
    await use(http, "file_write", path="docs/a", content="xx")
    told = await use(http, tool, **arguments)
    assert (told["status"], told["data"]["code"]) == ("error", code)


async def test_an_expression_that_would_take_for_ever_costs_the_run_and_not_the_service(
    http: httpx2.AsyncClient,
) -> None:
    await use(http, "file_write", path="docs/a", content="a" * 40 + "!")
    body = {"arguments": {"query": "(a+)+$", "regex": True}}
    told = (await http.post("/tools/search", json=body, timeout=60)).json()
    assert (told["status"], told["summary"][:7]) == ("error", "timeout")


async def test_a_file_that_policy_denies_is_not_read_found_or_written(http: httpx2.AsyncClient) -> None:
    for path in (".env", "site.key"):
        await use(http, "file_write", path=path, content="SECRET")
        assert (await use(http, "file_read", path=path))["data"]["code"] == "PATH_NOT_ALLOWED"
    found = await use(http, "search", query="SECRET")
    assert [one["path"] for one in found["data"]["matches"]] == [".env"]
    denied = await use(http, "file_write", path="elsewhere.txt", content="")
    assert denied["data"]["code"] == "PATH_NOT_ALLOWED"


async def test_a_file_that_policy_denies_is_not_there_for_a_program(
    http: httpx2.AsyncClient, service: Service
) -> None:
    for path in (".env", "docs/a.txt"):
        await use(http, "file_write", path=path, content="SECRET")
    async with role_client(service, "coder") as coder:
        told = await use(
            coder, "code_run", code="import os; print(os.path.exists('.env'), os.listdir('docs'))"
        )
    assert told["data"]["stdout"] == "False ['a.txt']\n"
    kept = await use(http, "shell_exec", command="cat .env")
    assert kept["data"]["stdout"] == "SECRET"


async def test_code_runs_in_a_project_that_has_a_file_of_the_script_s_name(http: httpx2.AsyncClient) -> None:
    await use(http, "file_write", path="main.py", content="print('the project')")
    told = await use(http, "code_run", code="print('the call')")
    assert told["data"]["stdout"] == "the call\n"
    assert (await use(http, "file_read", path="main.py"))["data"]["text"] == "print('the project')"


async def test_a_command_that_is_not_listed_is_refused(http: httpx2.AsyncClient) -> None:
    assert await refused(http, "shell_exec", command="ls | xargs rm") == "COMMAND_NOT_ALLOWED"


async def test_a_call_is_a_run_with_a_record(http: httpx2.AsyncClient, service: Service) -> None:
    told = await use(http, "file_write", path="docs/a.txt", content="x")
    record = (await http.get(f"/sandbox/execs/{told['exec_id']}")).json()
    assert (record["tool"], record["files_written"]) == ("file_write", ["docs/a.txt"])
    assert record["receipt"]


async def test_the_same_request_is_the_same_call(http: httpx2.AsyncClient) -> None:
    body = {"request_id": "r1", "arguments": {"path": "docs/a.txt", "content": "x"}}
    first = (await http.post("/tools/file_write", json=body)).json()
    assert (await http.post("/tools/file_write", json=body)).json() == first


# For whom


async def test_a_role_sees_and_uses_its_tools_only(service: Service) -> None:
    async with role_client(service, "reader") as reader:
        tools = (await reader.get("/tools")).json()["tools"]
        assert [tool["name"] for tool in tools] == ["file_read", "search"]
        assert await refused(reader, "file_write", path="docs/a", content="") == "TOOL_NOT_ALLOWED"


async def test_that_a_role_was_refused_is_written_down(service: Service) -> None:
    async with role_client(service, "reader") as reader:
        await refused(reader, "code_run", code="print(1)")
    [record] = (await service.store.page(Filter(status=Status.REFUSED), limit=10)).records
    assert (record.role, record.tool, record.error_code) == ("reader", "code_run", "TOOL_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        pytest.param("/run", {"code": "print(1)"}, id="code"),
        pytest.param("/run", {"command": ["ls"]}, id="command"),
        pytest.param("/run", {"code": "ls", "language": "shell"}, id="shell"),
        pytest.param("/sandbox/execs", {"exec": {"kind": "python", "command": "print(1)"}}, id="exec"),
        pytest.param("/skills/python.run/invoke", {"inputs": {"code": "print(1)"}}, id="skill"),
        pytest.param("/skills/shell.run/invoke", {"inputs": {"script": "ls"}}, id="shell skill"),
    ],
)
async def test_no_other_route_does_what_a_role_may_not(
    service: Service, route: str, body: dict[str, Any]
) -> None:
    async with role_client(service, "reader") as reader:
        assert code_of(await reader.post(route, json=body)) == "TOOL_NOT_ALLOWED"


async def test_a_role_that_may_run_code_is_held_to_its_limits_everywhere(service: Service) -> None:
    async with role_client(service, "coder") as coder:
        ran = (await coder.post("/run", json={"code": "print(1)"})).json()
        record = (await coder.get(f"/sandbox/execs/{ran['id']}")).json()
        assert record["policy_snapshot"]["limits.memory_mb"] == {"value": 100, "layer": "role:coder"}
        body = {"code": "print(1)", "limits": {"memory_mb": 101}}
        assert code_of(await coder.post("/run", json=body)) == "POLICY_ESCALATION"


@pytest.mark.parametrize(
    "tool", ["Bash", "bash", "code_run%20", "%EF%BD%83ode_run", "functions.code_run", "code_run."]
)
async def test_another_name_of_a_tool_is_no_tool(http: httpx2.AsyncClient, tool: str) -> None:
    assert await refused(http, tool, code="print(1)") == "NOT_FOUND"


@pytest.mark.parametrize("tool", ["system_admin", "network_scan"])
async def test_a_tool_that_is_not_built_is_refused(http: httpx2.AsyncClient, tool: str) -> None:
    answer = await http.post(f"/tools/{tool}", json={})
    assert (answer.status_code, code_of(answer)) == (403, "TOOL_UNAVAILABLE")


async def test_a_token_that_may_not_run_may_not_use_a_tool(service: Service) -> None:
    async with client_with(service, Role.VIEWER) as viewer:
        assert (await viewer.get("/tools")).status_code == 200
        assert await refused(viewer, "file_read", path="a") == "FORBIDDEN"


async def test_a_tool_works_on_a_project_of_the_token_only(service: Service) -> None:
    async with client_with(service, Role.AGENT, ("p1",)) as agent:
        body = {"project_id": "p2", "arguments": {"path": "a"}}
        assert code_of(await agent.post("/tools/file_read", json=body)) == "FORBIDDEN"


@pytest.mark.parametrize("form", ["openai", "anthropic"])
async def test_the_catalogue_comes_in_the_form_of_an_llm_s_api(http: httpx2.AsyncClient, form: str) -> None:
    tools = (await http.get(f"/tools?format={form}")).json()["tools"]
    names = [tool["function"]["name"] if form == "openai" else tool["name"] for tool in tools]
    assert "code_run" in names


async def test_an_unknown_form_is_refused(http: httpx2.AsyncClient) -> None:
    assert code_of(await http.get("/tools?format=xml")) == "BAD_REQUEST"


async def test_what_a_tool_wrote_and_could_not_be_kept_is_an_error(
    http: httpx2.AsyncClient, service: Service
) -> None:
    (service.workspace.project("default") / "work/docs/a").mkdir(parents=True)  # where the file is to go
    told = await use(
        http, "code_run", code="import os; os.makedirs('docs', exist_ok=True); open('docs/a', 'w')"
    )
    assert (told["status"], told["error_code"]) == ("error", "STORE_UNAVAILABLE")
    assert told["summary"].endswith("; but the project's work could not be kept: docs/a: Is a directory")
    read = await use(http, "search")
    assert (read["status"], read["error_code"]) == ("success", None)
