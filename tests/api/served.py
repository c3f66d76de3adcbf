"""What the tests of the HTTP door share: a service's settings, its clients, and a pretended Python."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from belljar.api.app import create_app_for
from belljar.api.desk import Patience
from belljar.api.server import Server, listen
from belljar.engines.fake import Process
from belljar.service import Service
from belljar.settings import Config, WeakerLimits
from belljar.tokens import Role

TOKEN = "operator-token-of-the-tests"


async def python3(process: Process) -> int:
    """Just enough of a Python: it repeats its program, and does one thing if that says so."""
    program = process.argv[-1]
    if program.endswith(".py"):
        program = process.files.read(program).decode()
    verb, _, rest = program.partition(" ")
    if verb == "sleep":
        await asyncio.sleep(float(rest))
    elif verb == "write":
        name, _, text = rest.partition(" ")
        path = process.path_to_write(name)
        process.files.make_folders(path.rpartition("/")[0])
        process.files.add(path, bytearray(text.encode()))
    elif verb == "read":
        await process.out(process.files.read(process.path(rest)))
        return 0
    elif verb == "stdin":
        await process.out(await process.stdin.read())
        return 0
    elif verb == "flood":
        for _ in range(int(rest)):
            await process.out(b"x" * 65536)
        return 0
    elif verb == "exit":
        return int(rest)
    await process.out(program.encode())
    return 0


def config_for(folder: Path, **settings: Any) -> Config:
    given: dict[str, Any] = {
        "data_dir": folder,
        "token": TOKEN,
        "max_concurrent_execs": 4,
        "jail_accept_weaker_limits": WeakerLimits.ALWAYS,
    }
    return Config(**given | settings)


def client_of(
    service: Service, token: str | None = TOKEN, patience: Patience | None = None
) -> httpx2.AsyncClient:
    """In this process."""
    transport = httpx2.ASGITransport(app=create_app_for(service, patience))
    return _client("http://localhost", token, transport)


def client_at(port: int, token: str | None = TOKEN) -> httpx2.AsyncClient:
    """Over a socket."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    return _client(f"http://127.0.0.1:{port}", token, httpx2.AsyncHTTPTransport(limits=limits))


def _client(url: str, token: str | None, transport: httpx2.AsyncBaseTransport) -> httpx2.AsyncClient:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(transport=transport, base_url=url, headers=headers, timeout=30)


def client_with(service: Service, role: Role, projects: tuple[str, ...] | None = None) -> httpx2.AsyncClient:
    _, token = service.tokens.create(role, projects)
    return client_of(service, token)


@asynccontextmanager
async def serving(service: Service, **settings: Any) -> AsyncIterator[int]:
    """The service on a port of its own; which one."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = Server(service, on_ready=ready.set_result, **settings)
    with listen(Config(data_dir=service.config.data_dir, port=0)) as sock:
        task = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield int((await ready).rpartition(":")[2])
        finally:
            server.should_exit = True
            await task


def code_of(answer: httpx2.Response) -> str:
    """The error's code, when everything about the error is as it should be."""
    body = answer.json()
    assert set(body) == {"request_id", "status", "error"}
    assert body["status"] == "error"
    assert {"code", "message"} <= set(body["error"])
    assert answer.headers["content-type"] == "application/json"
    assert "Traceback" not in answer.text
    code: str = body["error"]["code"]
    return code


def events_in(text: str) -> list[tuple[str | None, str, Any]]:
    """Id, kind and data of each event of a stream."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines.get("id"), lines["event"], json.loads(lines["data"])))
    return found


async def exchange(port: int, data: bytes, *, patience_s: float = 30.0) -> bytes:
    """What comes back for these bytes until the other side closes, or says no more for so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(data)
        async with asyncio.timeout(patience_s):
            while chunk := await reader.read(65536):
                answer += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


def request(
    method: str, path: str, body: bytes | None = None, *headers: str, token: str | None = TOKEN
) -> bytes:
    """A request as bytes; what is not given is as it should be, and the connection is closed after it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def status_in(answer: bytes) -> int | None:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None
