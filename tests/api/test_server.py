"""The server around the application: what it takes, how it starts, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.api.served import TOKEN, client_at, code_of, exchange, request, serving, status_in

from belljar.api.desk import Patience
from belljar.api.server import MAX_HEADER_BYTES, MAX_HEADERS, listen
from belljar.errors import BadConfig
from belljar.service import Service
from belljar.settings import Config

if TYPE_CHECKING:
    import httpx2

SERVE = """
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from belljar.api.server import serve
from belljar.settings import Config, WeakerLimits
serve(
    Config(
        data_dir=Path(sys.argv[1]),
        port=0,
        token=sys.argv[2],
        jail_accept_weaker_limits=WeakerLimits.ALWAYS,
    ),
    on_ready=lambda address: print(address, flush=True),
)
"""


def test_an_address_that_is_taken_is_a_clear_error(tmp_path: Path) -> None:
    with listen(Config(data_dir=tmp_path, port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(
            BadConfig, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        ):
            listen(Config(data_dir=tmp_path, port=port))


def test_a_host_that_is_not_here_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot listen on 192.0.2.1"):
        listen(Config(data_dir=tmp_path, host="192.0.2.1", port=0))


async def test_a_connection_is_used_again(service: Service) -> None:
    async with serving(service) as port, client_at(port) as http:
        answers = [await http.post("/run", json={"code": str(n)}) for n in range(3)]
        assert [answer.json()["stdout"] for answer in answers] == ["0", "1", "2"]
        assert not any("connection" in answer.headers or "server" in answer.headers for answer in answers)


async def test_an_error_before_the_body_was_read_reaches_the_caller(service: Service) -> None:
    async with serving(service) as port:
        async with client_at(port, token="wrong") as http:
            for size in (10, 200_000):
                answer = await http.post("/run", json={"code": "x" * size})
                assert (answer.status_code, code_of(answer)) == (401, "UNAUTHORIZED")


async def test_room_for_connections_is_limited_and_said_so(service: Service) -> None:
    async with serving(service, room=2) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.1)
        answer = await exchange(port, request("GET", "/health", token=None))
        assert status_in(answer) == 503
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "UNAVAILABLE"
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(30):
            while status_in(await exchange(port, request("GET", "/health", token=None))) != 200:
                pass


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", id="long path"
        ),
        pytest.param(request("GET", "/health", None, "X: " + "x" * MAX_HEADER_BYTES), id="long header"),
        pytest.param(request("GET", "/health", None, *["X: x"] * (MAX_HEADERS + 1)), id="many headers"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX" + b"x" * 70_000, id="endless name"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS"),
        pytest.param(b"hello\r\n\r\n", id="not HTTP"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: localhost\r\n X: folded\r\n\r\n", id="folded"),
        pytest.param(b"GET /health HTTP/1.1\nHost: localhost\nX : y\n\n", id="space before colon"),
    ],
)
async def test_what_is_no_proper_request_is_told_so(service: Service, data: bytes) -> None:
    async with serving(service, patience=Patience(headers_s=1)) as port:
        answer = await exchange(port, data)
        if answer:  # or the connection just ended
            assert status_in(answer) == 400
            assert b"x-content-type-options: nosniff" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == "error"


async def test_a_second_request_before_the_first_answer_is_not_taken(service: Service) -> None:
    async with serving(service) as port:
        body = b'{"code": "sleep 0.2"}'
        first = request("POST", "/run", body).replace(b"Connection: close\r\n", b"")
        assert await exchange(port, first + first) == b""
        async with client_at(port) as http:
            assert (await http.get("/health")).status_code == 200


async def test_who_waits_when_the_service_ends_gets_an_answer(service: Service) -> None:
    async with AsyncExitStack() as later:
        async with serving(service) as port:
            http = await later.enter_async_context(client_at(port))
            waiting = asyncio.create_task(http.post("/run", json={"code": "sleep 0.5"}))
            while not service.lifecycle.live_ids:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answer = await waiting
    assert (answer.status_code, answer.json()["verdict"]) == (200, "exited")


# As a process of its own, on the jail


def start(folder: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), TOKEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline()
    if not address:
        _, errors = process.communicate(timeout=30)
        pytest.fail(errors)
    return process, int(address.rpartition(":")[2])


async def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, errors


async def running(http: httpx2.AsyncClient) -> None:
    """Something is."""
    while True:
        if (await http.get("/sandbox/execs?status=running")).json()["execs"]:
            return
        await asyncio.sleep(0.05)


async def refused(http: httpx2.AsyncClient) -> httpx2.Response:
    """What who comes late is told, once the service has heard that it is to end."""
    while True:
        late = await http.post("/run", json={"code": "1"})
        if late.status_code != 200:
            return late
        await asyncio.sleep(0.05)


async def test_a_real_program_is_run_over_a_real_socket(tmp_path: Path) -> None:
    process, port = start(tmp_path)
    try:
        async with client_at(port) as http:
            code = "import os; print(sum(range(10)), open('d/x').read()); open('out.txt', 'w').write('made')"
            files = [{"path": "d/x", "content_b64": "aGVsbG8="}]
            answer = await http.post("/run", json={"language": "python", "code": code, "input_files": files})
            assert answer.json()["stdout"] == "45 hello\n"
            assert [file["content_b64"] for file in answer.json()["output_files"]] == ["bWFkZQ=="]
            injected = await http.post("/run", json={"command": ["echo", "; $(id)", "`id`", "-n", "a\nb"]})
            assert injected.json()["stdout"] == "; $(id) `id` -n a\nb\n"
            assert (await http.get("/audit/verify")).json()["ok"] is True
    finally:
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == (0, "")


async def test_at_the_end_nothing_is_taken_what_runs_may_end_and_all_is_recorded(tmp_path: Path) -> None:
    process, port = start(tmp_path)
    async with client_at(port) as http:
        begun = asyncio.create_task(
            http.post("/run", json={"code": "import time; time.sleep(5); print('done')"})
        )
        await running(http)
        process.send_signal(signal.SIGTERM)
        late = await refused(http)
        assert (late.status_code, code_of(late)) == (503, "SHUTTING_DOWN")
        assert int(late.headers["retry-after"]) >= 1
        assert (await begun).json()["stdout"] == "done\n"
    assert await ended(process) == (0, "")


async def test_a_second_signal_ends_what_runs(tmp_path: Path) -> None:
    process, port = start(tmp_path)
    async with client_at(port) as http:
        begun = asyncio.create_task(http.post("/run", json={"code": "import time; time.sleep(60)"}))
        await running(http)
        process.send_signal(signal.SIGINT)
        await refused(http)
        process.send_signal(signal.SIGINT)
        assert (await begun).json()["verdict"] == "cancelled"
    assert await ended(process) == (0, "")


def test_the_token_file_is_there_when_the_service_is(tmp_path: Path) -> None:
    script = SERVE.replace("token=sys.argv[2],", "")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert os.stat(tmp_path / "token").st_mode & 0o777 == 0o600
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()
