"""A session by MCP: its variables and files live from one call to the next, for whom it belongs to."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.served import TOKEN
from tests.mcp.hosts import over_http, over_stdio

from belljar.mcp.sessions import MAX_READ
from belljar.tokens import Role

if TYPE_CHECKING:
    from mcp.client.client import Client
    from tests.mcp.conftest import Served

Call = Callable[..., Any]

PNG = b"\x89PNG and so on"


def calls_of(client: Client, **always: Any) -> Call:
    async def call(name: str, **arguments: Any) -> Any:
        """The structure of an answer; of an error, its text."""
        result = await client.call_tool(name, {**always, **arguments})
        return result.content[0].text if result.is_error else result.structured_content  # type: ignore[union-attr]

    return call


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_variables_and_files_live_as_long_as_the_session(
    transport: str, served: Served, tmp_path: Path, mode: str
) -> None:
    there: AbstractAsyncContextManager[Client]
    there = over_http(served.port, TOKEN, mode) if transport == "http" else over_stdio(tmp_path, mode)
    async with there as client:
        started = await calls_of(client)("session.start", env={"WHO": "jar"})
        assert started["state"] == "ready"
        call = calls_of(client, session_id=started["session_id"])

        await call("session.run", code="import os\nx = 41", context="main")
        ran = await call("session.run", code="x + 1, os.environ['WHO']", context="main")
        assert ran["results"] == [{"text/plain": "(42, 'jar')"}]
        assert "NameError" in (await call("session.run", code="x", context="other"))["stderr"]

        await call("session.files", action="write", path="data/in.txt", content="grüße\n")
        ran = await call("session.run", code="print(open('data/in.txt').read())", files={"more.txt": ""})
        assert ran["stdout"] == "grüße\n\n"
        listed = await call("session.files", action="list", depth=2)
        assert {"data", "data/in.txt", "more.txt"} <= {file["path"] for file in listed["files"]}
        read = await call("session.files", action="read", path="data/in.txt")
        assert (read["content"], read["more"]) == ("grüße\n", False)

        ran = await call("session.run", code="open('/workspace/artifacts/a.txt', 'w').write('left')")
        [left] = ran["artifacts"]
        ended = await call("session.stop")
        assert ended["state"] == "ended"
        [resource] = (await client.read_resource(left["uri"])).contents
        assert resource.text == "left"  # type: ignore[union-attr]
        assert "CONFLICT" in await call("session.run", code="1")


# What follows does not depend on the transport.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session_id(served: Served) -> AsyncIterator[str]:
    session = await served.service.sessions.start("default")
    yield session.id
    await served.service.sessions.end(session)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"text"])
async def test_a_file_is_read_as_it_was_written(served: Served, session_id: str, content: bytes) -> None:
    async with over_http(served.port, TOKEN) as client:
        call = calls_of(client, session_id=session_id, path="file")
        encoded = base64.b64encode(content).decode()
        written = await call("session.files", action="write", content_b64=encoded)
        read = await call("session.files", action="read")
    assert written["size"] == read["size"] == len(content)
    assert base64.b64decode(read.get("content_b64", "")) + read.get("content", "").encode() == content


async def test_a_long_file_is_read_in_pieces(served: Served, session_id: str) -> None:
    async with over_http(served.port, TOKEN) as client:
        call = calls_of(client, session_id=session_id, path="long")
        await call("session.files", action="write", content="x" * MAX_READ + "end")
        first = await call("session.files", action="read")
        rest = await call("session.files", action="read", start=first["size"])
    assert (first["size"], first["more"]) == (MAX_READ, True)
    assert (rest["content"], rest["more"]) == ("end", False)


async def test_a_picture_that_code_shows_is_shown_to_the_model(served: Served, session_id: str) -> None:
    shows = f"class Picture:\n    def _repr_png_(self): return {PNG!r}\nPicture()"
    async with over_http(served.port, TOKEN) as client:
        arguments = {"session_id": session_id, "code": shows, "context": "main"}
        ran = await client.call_tool("session.run", arguments)
    [picture] = [block for block in ran.content if block.type == "image"]
    assert base64.b64decode(picture.data) == PNG


async def test_what_is_no_picture_is_not_shown_as_one(served: Served, session_id: str) -> None:
    shows = "class Picture:\n    def _repr_png_(self): return b'<script>'\nPicture()"
    async with over_http(served.port, TOKEN) as client:
        arguments = {"session_id": session_id, "code": shows, "context": "main"}
        ran = await client.call_tool("session.run", arguments)
    assert [block.type for block in ran.content] == ["text"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        pytest.param("session.run", {}, "BAD_REQUEST", id="nothing to run"),
        pytest.param("session.run", {"code": "1", "project_id": "p"}, "BAD_REQUEST", id="unknown argument"),
        pytest.param("session.run", {"code": "1", "session_id": "no"}, "NOT_FOUND", id="no such session"),
        pytest.param(
            "session.run", {"code": "1", "session_id": "../x"}, "BAD_REQUEST", id="path of a session"
        ),
        pytest.param("session.run", {"code": "1", "timeout_s": 1e9}, "POLICY_ESCALATION", id="escalation"),
        pytest.param("session.stop", {"session_id": ".."}, "NOT_FOUND", id="nothing to stop"),
        pytest.param("session.files", {"action": "remove"}, "BAD_REQUEST", id="no such action"),
        pytest.param("session.files", {"action": "read", "start": 10**30}, "BAD_REQUEST", id="start"),
        pytest.param("session.files", {"action": "read"}, "PATH_NOT_ALLOWED", id="read what"),
        pytest.param("session.files", {"action": "read", "path": "no"}, "NOT_FOUND", id="no such file"),
        pytest.param("session.files", {"action": "read", "path": "../x"}, "PATH_NOT_ALLOWED", id="read up"),
        pytest.param("session.files", {"action": "list", "path": "/etc"}, "PATH_NOT_ALLOWED", id="list all"),
        pytest.param("session.files", {"action": "write", "path": "x"}, "BAD_REQUEST", id="write what"),
        pytest.param(
            "session.files", {"action": "write", "path": "x", "content_b64": "?"}, "BAD_REQUEST", id="base64"
        ),
    ],
)
async def test_what_belljar_refuses_the_model_is_told(
    served: Served, session_id: str, name: str, arguments: dict[str, Any], says: str
) -> None:
    async with over_http(served.port, TOKEN) as client:
        told = await calls_of(client, session_id=session_id)(name, **arguments)
    assert isinstance(told, str)
    assert told.startswith(says)


async def test_a_session_is_absent_to_a_token_of_another_project(served: Served, session_id: str) -> None:
    _, token = served.service.tokens.create(Role.AGENT, ("p1",))
    async with over_http(served.port, token) as client:
        call = calls_of(client, session_id=session_id)
        assert "NOT_FOUND" in await call("session.run", code="1")
        assert "NOT_FOUND" in await call("session.files", action="list")
        assert "NOT_FOUND" in await call("session.stop")
        assert "FORBIDDEN" in await calls_of(client)("session.start", project_id="default")
