"""What an MCP host can do with belljar: the same over standard input and output and over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from tests.api.conftest import opened
from tests.api.served import TOKEN, client_at, exchange, request, serving, status_in
from tests.mcp.hosts import over_http, over_stdio

from belljar.engines.jail.engine import JailEngine
from belljar.tokens import Role

if TYPE_CHECKING:
    from tests.mcp.conftest import Served

Connecting = Callable[[], AbstractAsyncContextManager[Client]]
LEAVES = "print('hi'); open('note.txt', 'w').write('a note'); open('raw.bin', 'wb').write(bytes([0, 255]))"


@pytest.fixture(params=["stdio", "http"])
def connecting(request: pytest.FixtureRequest, jail: None, tmp_path: Path, mode: str) -> Connecting:
    """A client of a service of its own."""

    @asynccontextmanager
    async def by_http() -> AsyncIterator[Client]:
        async with (
            opened(tmp_path, JailEngine()) as service,
            serving(service) as port,
            over_http(port, TOKEN, mode) as client,
        ):
            yield client

    return by_http if request.param == "http" else lambda: over_stdio(tmp_path, mode)


async def test_a_host_lists_runs_and_gets_what_the_run_left(connecting: Connecting) -> None:
    told: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with connecting() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "sandbox.run",
            "sandbox.health",
            "session.start",
            "session.run",
            "session.files",
            "session.stop",
            "skill.python.run",
            "skill.shell.run",
            "skill.table.summary",
        }
        assert tools["skill.python.run"].input_schema["properties"]["code"]["type"] == "string"

        ran = await client.call_tool("sandbox.run", {"code": LEAVES}, progress_callback=on_progress)
        assert not ran.is_error
        assert ran.structured_content["stdout"] == "hi\n"
        assert "exited with 0" in ran.content[0].text  # type: ignore[union-attr]
        assert {"queued", "started", "finished"} <= set(told)

        links = [block for block in ran.content if block.type == "resource_link"]
        note, raw = sorted(links, key=lambda link: link.name)
        [text] = (await client.read_resource(note.uri)).contents
        assert text.text == "a note"  # type: ignore[union-attr]
        [blob] = (await client.read_resource(raw.uri)).contents
        assert blob.blob == "AP8="  # type: ignore[union-attr]
        listed = {str(one.uri) for one in (await client.list_resources()).resources}
        assert {note.uri, raw.uri} <= listed

        health = await client.call_tool("sandbox.health", {})
        assert health.structured_content["status"] == "ok"


async def test_a_skill_is_a_tool(connecting: Connecting) -> None:
    async with connecting() as client:
        arguments = {"file": "t.csv", "_files": {"t.csv": "a,b\n1,2\n3,4\n"}}
        told = await client.call_tool("skill.table.summary", arguments)
        assert told.structured_content["status"] == "ok"
        assert told.structured_content["outputs"]["rows"] == 2


# The rest does not depend on the transport.


async def call(client: Client, name: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(name, arguments)
    return bool(result.is_error), result.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        pytest.param("sandbox.run", {}, "BAD_REQUEST", id="nothing to run"),
        pytest.param("sandbox.run", {"code": 1}, "arguments.code", id="type"),
        pytest.param("sandbox.run", {"code": "1", "image": "x"}, "BAD_REQUEST", id="unknown argument"),
        pytest.param("sandbox.run", {"code": "1", "timeout_s": 1e9}, "POLICY_ESCALATION", id="escalation"),
        pytest.param("sandbox.run", {"code": "1", "files": {"../x": ""}}, "PATH_NOT_ALLOWED", id="path"),
        pytest.param("skill.absent.one", {}, "NOT_FOUND", id="no such skill"),
        pytest.param("skill.python.run", {"code": 1}, "BAD_REQUEST", id="inputs of a skill"),
        pytest.param("skill.../x", {}, "BAD_REQUEST", id="path of a skill"),
        pytest.param("sandbox.Run", {"code": "1"}, "NOT_FOUND", id="another name"),
        pytest.param("run", {"code": "1"}, "NOT_FOUND", id="short name"),
    ],
)
async def test_what_belljar_refuses_the_model_is_told(
    served: Served, name: str, arguments: dict[str, Any], says: str
) -> None:
    async with over_http(served.port, TOKEN) as client:
        is_error, text = await call(client, name, **arguments)
    assert is_error
    assert says in text


async def test_a_program_that_fails_is_a_result_the_model_can_read(served: Served) -> None:
    async with over_http(served.port, TOKEN) as client:
        is_error, text = await call(client, "sandbox.run", code="1 / 0")
    assert not is_error
    assert "exited with 1" in text
    assert "ZeroDivisionError" in text


async def test_the_model_is_told_that_files_are_not_kept(jail: None, tmp_path: Path) -> None:
    async with opened(tmp_path, JailEngine()) as service, serving(service) as port:
        service.workspace.project("default").mkdir()
        (service.workspace.project("default") / "artifacts").touch()  # where folders are to go
        async with over_http(port, TOKEN) as client:
            told = await client.call_tool("sandbox.run", {"code": LEAVES})
    assert told.structured_content["error_code"] == "STORE_UNAVAILABLE"
    assert "STORE_UNAVAILABLE: the run's own files could not be kept" in told.content[0].text  # type: ignore[union-attr]


async def test_the_text_of_a_long_output_is_shortened_and_the_structure_is_not(served: Served) -> None:
    async with over_http(served.port, TOKEN) as client:
        told = await client.call_tool("sandbox.run", {"code": "print('x' * 100_000)"})
    assert len(told.content[0].text) < 20_000  # type: ignore[union-attr]
    assert len(told.structured_content["stdout"]) == 100_001


async def test_who_cancels_the_call_cancels_the_run(served: Served) -> None:
    started = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        if message == "started":
            started.set()

    async with over_http(served.port, TOKEN) as client:
        arguments = {"code": "import time; time.sleep(25)"}
        calling = asyncio.create_task(
            client.call_tool("sandbox.run", arguments, progress_callback=on_progress)
        )
        await started.wait()
        [exec_id] = served.service.lifecycle.live_ids
        running = served.service.lifecycle.live(exec_id)
        assert running is not None
        calling.cancel()
        assert (await running.outcome()).record.verdict == "cancelled"


@pytest.mark.parametrize(
    "uri",
    [
        "belljar://execs/ex-1/artifacts/x",
        "belljar://execs/../../health",
        "file:///etc/passwd",
        "belljar://execs/",
    ],
)
async def test_a_resource_that_is_not_there_is_an_error(served: Served, uri: str) -> None:
    async with over_http(served.port, TOKEN) as client:
        with pytest.raises(MCPError, match="NOT_FOUND"):
            await client.read_resource(uri)


# Whose token


async def test_a_caller_can_do_over_mcp_what_its_token_may_and_no_more(served: Served) -> None:
    _, token = served.service.tokens.create(Role.AGENT, ("p1",))
    async with over_http(served.port, token) as client:
        assert await call(client, "sandbox.run", code="1", project_id="p2") == (
            True,
            "FORBIDDEN (project_id): this token is not for that project",
        )
        await call(client, "sandbox.run", code="open('x', 'w').write('mine')", project_id="p1")
    _, other = served.service.tokens.create(Role.AGENT, ("p3",))
    async with over_http(served.port, other) as client:
        assert (await client.list_resources()).resources == []


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"authorization": "Bearer wrong"}, 401, id="token"),
        pytest.param({"origin": "https://evil.example"}, 403, id="origin"),
        pytest.param({"host": "evil.example"}, 403, id="host"),
        pytest.param({"content-type": "text/plain"}, 415, id="simple request of a page"),
    ],
)
async def test_the_door_is_the_same_as_for_everything_else(
    served: Served, headers: dict[str, str], status: int
) -> None:
    async with client_at(served.port) as http:
        answer = await http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, **headers})
    assert answer.status_code == status


async def test_a_viewer_s_token_may_not_call(served: Served) -> None:
    _, token = served.service.tokens.create(Role.VIEWER, None)
    async with client_at(served.port, token) as http:
        assert (await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)).status_code == 403


async def test_a_session_is_absent_to_every_other_token(served: Served) -> None:
    _, token = served.service.tokens.create(Role.AGENT, None)
    async with client_at(served.port) as owner, client_at(served.port, token) as other:
        opening = await owner.post("/mcp", json=INITIALIZE, headers=ACCEPT)
        session = {"mcp-session-id": opening.headers["mcp-session-id"]}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        for http, status in ((other, 404), (owner, 200)):
            answer = await http.post("/mcp", json=listing, headers={**ACCEPT, **session})
            assert answer.status_code == status


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Served) -> None:
    head = request("POST", "/mcp", None, "Content-Type: application/json", "Content-Length: 1000000000")
    assert status_in(await exchange(served.port, head)) == 413


def test_an_app_that_is_not_asked_for_mcp_does_not_import_it() -> None:
    program = "import sys, belljar.api.app; print('mcp.server' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
