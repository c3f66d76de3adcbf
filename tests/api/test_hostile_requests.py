"""Requests that mean harm: the W rows of the attack corpus. Each is refused, and others are served."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.served import TOKEN, client_at, client_of, code_of, exchange, request, serving, status_in

from belljar.api.desk import Patience
from belljar.service import Service

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    from tests.api.conftest import Opening

SMALL_BODIES = """
policies:
  ceilings:
    max_input_size: 1MB
  default:
    max_input_size: 1MB
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(shared_service: Service) -> AsyncIterator[int]:
    async with serving(shared_service) as port:
        yield port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(shared_service: Service) -> AsyncIterator[int]:
    """A port where those who are slow are not waited for long, but longer than anybody else may take here."""
    async with serving(shared_service, patience=Patience(headers_s=2, body_s=2)) as port:
        yield port


async def still_serves(port: int) -> None:
    async with client_at(port) as http:
        assert (await http.post("/run", json={"code": "alive"})).json()["stdout"] == "alive"


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came to that")


def resident_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# W1 huge-body


def pour(port: int) -> tuple[bytes, int]:
    """Send a body without end until nobody takes it; what came back, and how much was taken."""
    head = request("POST", "/run", None, "Content-Type: application/json", "Transfer-Encoding: chunked")
    sent, answer = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(head)
            while sent < 1 << 30:
                sock.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent += 65536
        while chunk := sock.recv(65536):
            answer += chunk
    return answer, sent


async def test_an_endless_body_is_refused_at_the_cap_and_costs_no_memory(
    open_service: Opening, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(SMALL_BODIES)
    async with open_service(policy=tmp_path / "policy.yaml") as service, serving(service) as port:
        before = resident_kb()
        answer, sent = await asyncio.to_thread(pour, port)
        assert status_in(answer) == 413
        assert b"connection: close" in answer
        assert sent < 32 << 20
        assert resident_kb() - before < 64 << 10
        await still_serves(port)


@pytest.mark.parametrize("length", [10 << 30, 10**30], ids=["10 GB", "more than there is"])
async def test_a_length_above_the_cap_is_refused_before_the_body(port: int, length: int) -> None:
    headers = ("Content-Type: application/json", f"Content-Length: {length}")
    answer = await exchange(port, request("POST", "/run", None, *headers) + b"{")
    assert status_in(answer) in (400, 413)  # a length of 30 digits is not even a number to the parser


async def test_a_body_shorter_than_it_says_is_not_waited_for_for_ever(impatient: int) -> None:
    answer = await exchange(
        impatient, request("POST", "/run", None, "Content-Type: application/json", "Content-Length: 9") + b"{"
    )
    assert status_in(answer) == 408
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["field"] == "body"


async def test_a_body_longer_than_it_says_is_not_another_request(port: int) -> None:
    body = b'{"code": "1"}'
    smuggled = request("POST", "/run", b'{"code": "smuggled", "request_id": "smuggled"}')
    plain = request("POST", "/run", body).replace(b"Connection: close\r\n", b"")
    answer = await exchange(port, plain + b"xx" + smuggled, patience_s=2)
    assert b"smuggled" not in answer
    await still_serves(port)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity"])
async def test_an_encoded_body_is_refused(shared: httpx2.AsyncClient, encoding: str) -> None:
    answer = await shared.post("/run", json={"code": "1"}, headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["field"]) == (415, "Content-Encoding")


async def test_bodies_share_the_memory_there_is_for_them(shared_service: Service) -> None:
    async with client_of(shared_service) as http:
        intake = http._transport.app._desk.intake  # type: ignore[attr-defined]
        held = intake._at_most - 10
        intake.take(held)
        answer = await http.post("/run", json={"code": "x" * 100})
        assert (answer.status_code, code_of(answer)) == (429, "QUEUE_FULL")
        intake.give_back(held)
        assert (await http.post("/run", json={"code": "x" * 100})).status_code == 200
        await until(lambda: intake.held == 0)


async def test_what_a_waiting_run_holds_is_given_back_when_it_is_over(open_service: Opening) -> None:
    async with open_service(max_concurrent_execs=1) as service, client_of(service) as http:
        intake = http._transport.app._desk.intake  # type: ignore[attr-defined]
        body = {"exec": {"kind": "python", "command": "sleep 0.2"}, "wait": False}
        for _ in range(3):
            await http.post("/sandbox/execs", json=body)
        assert intake.held > 0
        await http.post("/run", json={"code": "1"})
        await until(lambda: intake.held == 0)


# W3 big-int, NaN, duplicate keys, lone surrogates: test_strictjson has them all; here, that they are a 400


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"code":"1","timeout_s":' + b"9" * 5000 + b"}", id="5,000 digits"),
        pytest.param(b'{"code":"1","timeout_s":NaN}', id="NaN"),
        pytest.param(b'{"code":"1","timeout_s":1e999}', id="1e999"),
        pytest.param(b'{"code":"1","code":"2"}', id="duplicate key"),
        pytest.param(b'{"code":"\\ud800"}', id="lone surrogate"),
        pytest.param(b'{"env":' * 100_000, id="depth"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
    ],
)
async def test_json_that_is_none_is_a_bad_request(shared: httpx2.AsyncClient, body: bytes) -> None:
    answer = await shared.post("/run", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, code_of(answer)) == (400, "BAD_REQUEST")
    assert answer.json()["error"]["field"] == "body"


# W4 slowloris


async def test_who_sends_a_byte_at_a_time_is_dropped_and_others_are_served(impatient: int) -> None:
    async def dribble() -> bool:
        """Whether the connection was ended."""
        _, writer = await asyncio.open_connection("127.0.0.1", impatient)
        try:
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.1)
        except ConnectionError:
            return True
        finally:
            writer.close()
        return False

    slow = [asyncio.create_task(dribble()) for _ in range(200)]
    await asyncio.sleep(0.2)
    await still_serves(impatient)
    async with asyncio.timeout(60):
        assert all(await asyncio.gather(*slow))


async def test_who_sends_nothing_at_all_is_dropped(impatient: int) -> None:
    async with asyncio.timeout(30):
        assert await exchange(impatient, b"", patience_s=100) == b""


async def test_who_is_slow_with_a_second_request_is_dropped_too(impatient: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient)
    writer.write(request("GET", "/health").replace(b"Connection: close\r\n", b""))
    assert b"200" in await reader.readline()
    writer.write(b"GET /hea")
    async with asyncio.timeout(30):
        rest = await reader.read()
    writer.close()
    assert b"HTTP/1.1" not in rest


# W6 header-tricks


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(
            request("GET", "/metrics", None, f"Authorization: Bearer {TOKEN}"), 401, id="two tokens"
        ),
        pytest.param(request("GET", "/metrics", None, "Host: localhost"), 403, id="two hosts"),
        pytest.param(request("GET", "/metrics").replace(b"Host: localhost\r\n", b""), 403, id="no host"),
        pytest.param(
            request(
                "GET", "/metrics", None, "X-Forwarded-For: 127.0.0.1", "X-Forwarded-User: root", token=None
            ),
            401,
            id="forwarded",
        ),
        pytest.param(
            request("GET", "/metrics", None, "X-Forwarded-Host: evil.example"), 200, id="other host, ignored"
        ),
        pytest.param(request("GET", "/run", None, "X-HTTP-Method-Override: POST"), 405, id="method override"),
        pytest.param(request("GET", "/run?_method=POST"), 405, id="method in the query"),
        pytest.param(request("GET", "http://localhost/health"), 400, id="absolute form"),
        pytest.param(request("GET", "http://evil.example/health"), 400, id="absolute form of another"),
        pytest.param(request("CONNECT", "localhost:80"), 400, id="connect"),
        pytest.param(request("OPTIONS", "*"), 400, id="asterisk"),
        pytest.param(request("GET", "//health"), 400, id="two slashes"),
        pytest.param(request("GET", "/v1/../health"), 400, id="dots"),
        pytest.param(request("GET", "/./health"), 400, id="dot"),
        pytest.param(request("GET", "/%2e%2e/health"), 400, id="encoded dots"),
        pytest.param(request("GET", "/%68ealth"), 200, id="encoded letter is the letter"),
        pytest.param(request("GET", "/sandbox%2fhealth"), 400, id="encoded slash"),
        pytest.param(request("GET", "/health%0d%0aX:y"), 400, id="encoded line break"),
        pytest.param(request("GET", "/health%0a"), 400, id="encoded end of line"),
        pytest.param(request("GET", "/health%00"), 400, id="encoded NUL"),
        pytest.param(request("GET", "/health\\..\\x"), 400, id="backslash"),
        pytest.param(request("GET", "/HEALTH"), 404, id="capitals"),
        pytest.param(request("GET", "/health;x=y"), 404, id="parameters in the path"),
        pytest.param(
            request("POST", "/run", b'{"code":"1"}', "Transfer-Encoding: chunked"),
            400,
            id="two lengths, TE and CL",
        ),
        pytest.param(request("POST", "/run", b'{"code":"1"}', "Content-Length: 5"), 400, id="two lengths"),
        pytest.param(
            request("POST", "/run", None, "Transfer-Encoding: xchunked"), 400, id="unknown transfer"
        ),
        pytest.param(request("GET", "/health", None, "X: a\rb"), 400, id="bare CR"),
        pytest.param(request("GET", "/health", None, "X\0: a"), 400, id="NUL in a header"),
        pytest.param(
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".replace(b"1.1", b"9.9"), 400, id="HTTP/9.9"
        ),
    ],
)
async def test_a_trick_of_the_request_line_or_the_headers_does_not_work(
    port: int, data: bytes, status: int
) -> None:
    answer = await exchange(port, data)
    assert status_in(answer) == status, answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"x-content-type-options: nosniff" in answer
    if status >= 400:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == "error"


async def test_an_upgrade_that_is_none_is_refused_by_the_protocol_itself(port: int) -> None:
    answer = await exchange(
        port, request("GET", "/health", None, "Upgrade: websocket", "Connection: upgrade")
    )
    assert status_in(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1


# W7 base64


@pytest.mark.parametrize(
    "text", ["aGVs bG8=", "aGVsbG8", "aGVsbG8=\n", "aGVsbG8=!", "_-==", "\u00e9", "====", "A"]
)
async def test_lenient_base64_is_refused(shared: httpx2.AsyncClient, text: str) -> None:
    files = [{"path": "a", "content_b64": text}]
    answer = await shared.post("/run", json={"code": "1", "input_files": files})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "input_files.0.content_b64")


async def test_base64_larger_than_is_granted_is_refused(open_service: Opening, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(SMALL_BODIES)
    async with open_service(policy=tmp_path / "policy.yaml") as service, client_of(service) as http:
        content = base64.b64encode(bytes(2 << 20)).decode()
        body = {"code": "1", "input_files": [{"path": "a", "content_b64": content}]}
        answer = await http.post("/run", json=body)
        assert (answer.status_code, code_of(answer)) == (400, "LIMIT_EXCEEDED")
        huge = await http.post("/run", json={"code": "1", "stdin_b64": "A" * (8 << 20)})
        assert (huge.status_code, code_of(huge)) == (413, "LIMIT_EXCEEDED")


# W9 image-injection


@pytest.mark.parametrize(
    "image",
    [
        "-v/:/host",
        "--privileged",
        "a b",
        "x@sha256:" + "0" * 64,
        "../x",
        "https://registry.example/x",
        "registry.example:5000/x",
        "$(id)",
        "",
        "alpine",
        "x" * 10_000,
    ],
)
async def test_an_image_that_nobody_allowed_is_refused(shared: httpx2.AsyncClient, image: str) -> None:
    for path, body in (
        ("/run", {"code": "1", "image": image}),
        (
            "/sandbox/execs",
            {"exec": {"kind": "python", "command": "1"}, "policy_overrides": {"image": image}},
        ),
    ):
        answer = await shared.post(path, json=body)
        assert answer.status_code in (400, 403)
        assert code_of(answer) in ("BAD_REQUEST", "IMAGE_NOT_ALLOWED")
        assert answer.json()["error"]["field"] == "image"


# W10 command-injection (the program itself is in test_server, in a real jail)


@pytest.mark.parametrize(
    "body",
    [
        {"code": "1", "language": "python; id"},
        {"code": "1", "language": "$(id)"},
        {"code": "1", "language": "-c"},
        {"code": "1", "language": "bash\nid"},
        {"command": "ls; id"},
        {"code": "1", "working_dir": "a\nb"},
        {"code": "1", "input_files": [{"path": "a\nb", "content_b64": ""}]},
        {"code": "1", "output_files": ["a\nb"]},
        {"code": "1", "project_id": "-rf"},
        {"code": "1", "project_id": "a;b"},
    ],
    ids=str,
)
async def test_what_could_become_a_command_is_refused(shared: httpx2.AsyncClient, body: Any) -> None:
    assert (await shared.post("/run", json=body)).status_code == 400


async def test_shell_characters_are_only_characters(shared: httpx2.AsyncClient) -> None:
    name = "-rf $(id); `id` & x|y.txt"
    body = {
        "command": ["bash", "-c", 'cat "$NAME"'],
        "env": {"NAME": name},
        "input_files": [{"path": name, "content_b64": "aGVsbG8="}],
    }
    assert (await shared.post("/run", json=body)).json()["stdout"] == "hello"


# W12 disconnect and cancel storms


async def test_connections_that_break_at_any_point_leave_nothing(service: Service) -> None:
    whole = request("POST", "/run", json.dumps({"code": "sleep 0.02"}).encode())
    async with serving(service) as port:
        await still_serves(port)
        tasks, descriptors = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
        for cut in (*range(0, len(whole), 3), *[len(whole)] * 20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(whole[:cut])
            await asyncio.sleep(0 if cut % 2 else 0.003)
            writer.transport.abort()
        await still_serves(port)  # when this is answered, all that came before was taken, or never will be
        turns = service.lifecycle.turns
        await until(lambda: not asyncio.all_tasks() - tasks and not service.lifecycle.live_ids)
        await until(lambda: (turns.running, turns.waiting) == (0, 0))
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 4)
        async with client_at(port) as http:
            rows = (await http.get("/sandbox/execs?limit=200")).json()["execs"]
            assert {row["status"] for row in rows} == {"finished"}


@pytest.mark.parametrize("queued", [False, True], ids=["running", "queued"])
async def test_a_thousand_cancels_are_one(open_service: Opening, queued: bool) -> None:
    async with open_service(max_concurrent_execs=1) as service, client_of(service) as http:
        first = asyncio.create_task(http.post("/run", json={"code": "sleep 60", "request_id": "first"}))
        await until(lambda: any(live.jar for live in service.lifecycle.live_runs))
        if queued:
            body = {"exec": {"kind": "python", "command": "1"}, "wait": False}
            exec_id = (await http.post("/sandbox/execs", json=body)).json()["exec_id"]
        else:
            (exec_id,) = service.lifecycle.live_ids
        answers = await asyncio.gather(*(http.post(f"/sandbox/execs/{exec_id}/cancel") for _ in range(1000)))
        assert {answer.status_code for answer in answers} <= {200, 202}
        await until(lambda: exec_id not in service.lifecycle.live_ids)
        assert (await http.get(f"/sandbox/execs/{exec_id}")).json()["verdict"] == "cancelled"
        for left in service.lifecycle.live_ids:
            await http.post(f"/sandbox/execs/{left}/cancel")
        assert (await first).json()["verdict"] == "cancelled"
        assert (service.lifecycle.turns.running, service.lifecycle.turns.waiting) == (0, 0)


# W13 browser


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "http://evil.example"}, id="another site"),
        pytest.param({"origin": "null"}, id="a sandboxed frame"),
        pytest.param({"host": "rebound.evil.example"}, id="a rebound name"),
        pytest.param({"host": "evil.example", "origin": "http://evil.example"}, id="a rebound page"),
    ],
)
async def test_a_page_in_a_browser_is_refused_even_with_a_token(
    shared: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await shared.post("/run", json={"code": "1"}, headers=headers)
    assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "type_",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx"],
)
async def test_a_simple_post_is_refused(shared: httpx2.AsyncClient, type_: str) -> None:
    for path in ("/run", "/sandbox/execs", "/policy/explain"):
        answer = await shared.post(path, content=b'{"code":"1"}', headers={"content-type": type_})
        assert (answer.status_code, answer.json()["error"]["field"]) == (415, "Content-Type")


async def test_a_preflight_is_not_answered(shared: httpx2.AsyncClient) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert (await shared.options("/run", headers=headers)).status_code == 403
