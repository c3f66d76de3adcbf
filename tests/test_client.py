"""The client against a small server of our own, which answers what each test tells it to."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import errors
from belljar.client import AsyncClient, Client, Event, ForeignError, Result, Retry, Unreachable, wire
from belljar.client.discovery import address_of, token_for
from belljar.config import Config, load
from belljar.errors import (
    BadConfig,
    BadRequest,
    BelljarError,
    GrantNotEnforceable,
    NotFound,
    PathNotAllowed,
    PolicyEscalation,
    QueueFull,
    StoreUnavailable,
)
from belljar.models import SkipReason, Verdict

QUICK = Retry(attempts=3, first_s=0.001, longest_s=0.002)

ANSWER: dict[str, Any] = {
    "id": "ex-1",
    "request_id": "r-1",
    "status": "ok",
    "verdict": "exited",
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "stdout": "hi\n",
    "stderr": "",
    "truncated": {"stdout": False, "stderr": False},
    "stdout_bytes": 3,
    "stderr_bytes": 0,
    "duration_ms": 4,
    "started_at": "2026-01-01T00:00:00Z",
    "finished_at": "2026-01-01T00:00:02+00:00",
    "outputs": [{"path": "a.txt", "size": 2, "sha256": "ff", "mime": "text/plain"}],
    "output_files": [{"path": "a.txt", "content_b64": "aGk=", "size": 2}],
    "skipped": [{"path": "link", "reason": "symlink"}],
    "usage": {"wall_s": 0.004, "held_by": {"memory": "cgroup"}, "of_a_newer_service": 1},
    "receipt": "ab" * 32,
}


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: Any


def answer(status: int, body: object, **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(content)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def refusal(status: int, code: str, message: str = "no", field: str | None = None, **headers: str) -> bytes:
    error = {"code": code, "message": message, "field": field}
    return answer(status, {"request_id": None, "status": "error", "error": error}, **headers)


def events(*each: tuple[int, str, object]) -> bytes:
    """A stream that ends with the connection."""
    head = b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return head + b"".join(
        f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode() for number, kind, data in each
    )


DROPPED = b""
"""The connection ends without an answer."""


class Server:
    """Gives its answers in turn, the last one for ever, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[bytes] = [answer(200, ANSWER)]
        self.asked: list[Request] = []
        self.url = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {
                name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append(Request(method, path, headers, json.loads(body) if body else None))
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def url_of(listening: asyncio.Server) -> str:
    return f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with await asyncio.start_server(server.talk, "127.0.0.1", 0) as listening:
        server.url = url_of(listening)
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, "t0ken", retry=QUICK) as client:
        yield client


# Running


async def test_run_sends_code_and_token_and_returns_what_it_led_to(
    server: Server, client: AsyncClient
) -> None:
    result = await client.run("print('hi')", files={"data/a.txt": "text", "b": b"\xff"}, timeout_s=3)
    asked = server.asked[0]
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/run", "Bearer t0ken")
    assert asked.body.pop("request_id")
    assert asked.body == {
        "language": "python",
        "code": "print('hi')",
        "timeout_s": 3,
        "input_files": [
            {"path": "data/a.txt", "content_b64": "dGV4dA=="},
            {"path": "b", "content_b64": "/w=="},
        ],
    }
    assert (result.ok, result.verdict, result.stdout) == (True, Verdict.EXITED, "hi\n")
    assert result.output_files == {"a.txt": b"hi"}
    assert result.outputs[0].mime == "text/plain"
    assert result.skipped[0].reason is SkipReason.SYMLINK
    assert (result.usage.wall_s, result.usage.held_by) == (0.004, {"memory": "cgroup"})
    assert result.started_at is not None
    assert result.finished_at is not None
    assert (result.finished_at - result.started_at).total_seconds() == 2
    assert result.answer == ANSWER


async def test_a_run_that_failed_is_a_result(server: Server, client: AsyncClient) -> None:
    server.answers = [answer(200, ANSWER | {"exit_code": 3})]
    result = await client.run("raise SystemExit(3)")
    assert (result.ok, result.exit_code) == (False, 3)


async def test_exec_is_packed_as_its_route_wants_it(server: Server, client: AsyncClient) -> None:
    server.answers = [answer(200, {"exec_id": "ex-1"})]
    done = await client.exec("shell", "ls", args=["-l"], inputs={"a": b"x"}, project_id="p", wait=False)
    assert done == {"exec_id": "ex-1"}
    assert server.asked[0].body.pop("request_id")
    assert server.asked[0].body == {
        "project_id": "p",
        "wait": False,
        "exec": {"kind": "shell", "command": "ls", "args": ["-l"]},
        "inputs": [{"path": "a", "content_b64": "eA=="}],
    }


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"code": "'\ud800'"}, id="sent-for-the-service-to-judge"),
        pytest.param({"env": {"A": "\udc80"}}, id="surrogate-in-env"),
    ],
)
async def test_text_that_is_not_unicode_reaches_the_service(
    client: AsyncClient, options: dict[str, Any]
) -> None:
    assert (await client.run(**options)).ok


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"files": {"a": "\ud800"}}, id="half-a-character"),
        pytest.param({"files": {"a": 3}}, id="no-content"),
        pytest.param({"env": {"A": b"x"}}, id="bytes-in-json"),
        pytest.param({"timeout_s": float("nan")}, id="nan"),
    ],
)
async def test_what_cannot_be_written_on_the_wire_is_a_bad_request(
    server: Server, client: AsyncClient, options: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest):
        await client.run("1", **options)
    assert not server.asked


# Failing, and trying again


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(DROPPED, id="dropped"),
        pytest.param(b"HTTP/1.1 200 x\r\ncontent-length: 900\r\n\r\n{", id="dropped-in-the-middle"),
        pytest.param(refusal(429, "QUEUE_FULL", retry_after="0"), id="queue-full"),
        pytest.param(refusal(503, "STORE_UNAVAILABLE"), id="store-down"),
        pytest.param(answer(503, b"<html>"), id="proxy"),
    ],
)
async def test_a_lost_run_is_sent_again_as_the_same_run(
    server: Server, client: AsyncClient, failure: bytes, failures: int
) -> None:
    server.answers = [failure] * failures + [answer(200, ANSWER)]
    assert (await client.run("1")).ok
    assert len(server.asked) == failures + 1
    assert len({asked.body["request_id"] for asked in server.asked}) == 1


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param(DROPPED, Unreachable, id="dropped"),
        pytest.param(refusal(429, "QUEUE_FULL"), QueueFull, id="queue-full"),
        pytest.param(refusal(503, "STORE_UNAVAILABLE"), StoreUnavailable, id="store-down"),
    ],
)
async def test_attempts_are_bounded(
    server: Server, client: AsyncClient, failure: bytes, error: type[BelljarError]
) -> None:
    server.answers = [failure]
    with pytest.raises(error):
        await client.run("1")
    assert len(server.asked) == QUICK.attempts


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param(refusal(400, "BAD_REQUEST"), BadRequest, id="bad-request"),
        pytest.param(refusal(404, "NOT_FOUND"), NotFound, id="not-found"),
        pytest.param(refusal(500, "INTERNAL"), ForeignError, id="internal"),
        pytest.param(refusal(503, "GRANT_NOT_ENFORCEABLE"), GrantNotEnforceable, id="engine"),
        pytest.param(refusal(429, "QUEUE_FULL", retry_after="3600"), QueueFull, id="in-an-hour"),
    ],
)
async def test_what_will_not_change_is_not_tried_again(
    server: Server, client: AsyncClient, failure: bytes, error: type[BelljarError]
) -> None:
    server.answers = [failure]
    with pytest.raises(error):
        await client.run("1")
    assert len(server.asked) == 1


async def test_a_cancel_that_may_have_arrived_is_said_again(server: Server, client: AsyncClient) -> None:
    server.answers = [DROPPED, answer(202, {"exec_id": "ex-1"})]
    assert await client.cancel("ex-1") == {"exec_id": "ex-1"}
    assert [(asked.method, asked.path) for asked in server.asked] == [
        ("POST", "/sandbox/execs/ex-1/cancel")
    ] * 2


async def test_the_service_says_how_long_to_wait(server: Server, client: AsyncClient) -> None:
    server.answers = [refusal(429, "QUEUE_FULL", retry_after="1"), answer(200, ANSWER)]
    before = time.monotonic()
    assert (await client.run("1")).ok
    assert time.monotonic() - before >= 1


@given(st.integers(1, 100), st.floats(0, 60), st.floats(0, 1))
def test_a_pause_is_bounded_and_no_shorter_than_asked(
    failures: int, at_least_s: float, chance: float
) -> None:
    retry = Retry(attempts=50, first_s=0.1, longest_s=10)
    pause = retry.pause_s(failures, at_least_s, chance)
    if failures >= 50:
        assert pause is None
    else:
        assert pause is not None
        assert at_least_s <= pause <= at_least_s + 10
        assert pause >= min(0.05 * 2 ** (failures - 1), 5)


def test_pauses_double() -> None:
    assert [Retry().pause_s(failures, chance=1) for failures in range(1, 6)] == [0.1, 0.2, 0.4, 0.8, None]


async def test_nobody_there_is_one_sentence_with_what_to_do() -> None:
    async with AsyncClient("http://127.0.0.1:9", "t", retry=QUICK) as client:
        with pytest.raises(
            Unreachable, match=r"^no belljar service answers at http://127\.0\.0\.1:9; start"
        ) as caught:
            await client.health()
    assert caught.value.code == "UNREACHABLE"


async def test_a_service_that_does_not_answer_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    async with (
        await asyncio.start_server(silent, "127.0.0.1", 0) as listening,
        AsyncClient(url_of(listening), "t", timeout_s=0.1, retry=Retry(1)) as client,
    ):
        with pytest.raises(Unreachable, match="did not answer in time"):
            await client.health()


async def test_a_run_may_take_longer_than_an_answer() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(2.5)
        writer.write(answer(200, ANSWER))
        writer.close()

    async with (
        await asyncio.start_server(slow, "127.0.0.1", 0) as listening,
        AsyncClient(url_of(listening), "t", timeout_s=2, retry=Retry(1)) as client,
    ):
        assert (await client.run("1")).ok


# Errors


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"BelljarError"}))
async def test_an_error_of_the_service_is_the_same_class_here(
    server: Server, client: AsyncClient, name: str
) -> None:
    cls = getattr(errors, name)
    server.answers = [refusal(400, cls.code, "what, which, what to do", "some.field")]
    with pytest.raises(cls) as caught:
        await client.get("ex-1")
    assert type(caught.value) is cls
    assert (caught.value.message, str(caught.value), caught.value.field) == (
        "what, which, what to do",
        "what, which, what to do",
        "some.field",
    )


async def test_errors_have_all_their_parts(server: Server, client: AsyncClient) -> None:
    server.answers = [
        refusal(400, "PATH_NOT_ALLOWED"),
        refusal(403, "POLICY_ESCALATION"),
        refusal(429, "QUEUE_FULL", retry_after="7000"),
    ]
    with pytest.raises(PathNotAllowed) as path:
        await client.get("ex-1")
    assert path.value.reason == ""
    with pytest.raises(PolicyEscalation) as escalation:
        await client.get("ex-1")
    assert (escalation.value.asked, escalation.value.layer) == (None, "")
    with pytest.raises(QueueFull) as full:
        await client.get("ex-1")
    assert full.value.retry_after_s == 7000


async def test_an_error_names_the_run_that_was_recorded(server: Server, client: AsyncClient) -> None:
    said = {"code": "BAD_REQUEST", "message": "no", "exec_id": "ex-1"}
    server.answers = [answer(400, {"request_id": "r", "status": "error", "error": said})]
    with pytest.raises(BadRequest) as caught:
        await client.run("1")
    assert caught.value.exec_id == "ex-1"


async def test_a_code_of_a_newer_service_is_kept(server: Server, client: AsyncClient) -> None:
    server.answers = [refusal(402, "OUT_OF_LUCK", "no luck is left")]
    with pytest.raises(ForeignError, match="OUT_OF_LUCK: no luck is left") as caught:
        await client.get("ex-1")
    assert caught.value.service_code == "OUT_OF_LUCK"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(answer(404, b"<html>not here</html>"), id="html-error"),
        pytest.param(answer(302, b"", location="http://127.0.0.1:9/"), id="redirect"),
        pytest.param(answer(400, {"error": "no"}), id="another-error"),
        pytest.param(answer(200, b"ok"), id="not-json"),
        pytest.param(answer(200, [1]), id="list"),
        pytest.param(answer(200, b"[" * 100_000), id="deep"),
        pytest.param(answer(200, {}), id="empty"),
        pytest.param(answer(200, ANSWER | {"verdict": "vanished"}), id="verdict"),
        pytest.param(answer(200, ANSWER | {"outputs": [3]}), id="outputs"),
        pytest.param(
            answer(200, ANSWER | {"output_files": [{"path": "a", "content_b64": "a"}]}), id="base64"
        ),
        pytest.param(answer(200, ANSWER | {"started_at": "noon"}), id="time"),
    ],
)
async def test_an_answer_that_is_not_belljars_is_a_foreign_error(
    server: Server, client: AsyncClient, reply: bytes
) -> None:
    server.answers = [reply]
    with pytest.raises(ForeignError):
        await client.run("1")


# Streams


def output(text: bytes) -> dict[str, str]:
    return {"text": text.decode(errors="replace"), "data_b64": base64.b64encode(text).decode()}


QUEUED = (1, "queued", {"exec_id": "ex-1"})
WRITTEN = (2, "stdout", output(b"hi\xff"))
FINISHED = (3, "finished", {"exec_id": "ex-1"})
RESULT = (4, "result", ANSWER)


async def test_a_stream_tells_what_happens_and_ends_with_the_result(
    server: Server, client: AsyncClient
) -> None:
    server.answers = [events(QUEUED, WRITTEN, FINISHED, RESULT)]
    seen = [event async for event in client.stream("print('hi')")]
    assert server.asked[0].headers["accept"] == "text/event-stream"
    assert [event.kind for event in seen[:-1] if isinstance(event, Event)] == ["queued", "stdout", "finished"]
    assert isinstance(seen[1], Event)
    assert seen[1].output == b"hi\xff"
    assert isinstance(seen[-1], Result)
    assert seen[-1].stdout == "hi\n"


@pytest.mark.parametrize("again", [(QUEUED, WRITTEN, FINISHED, RESULT), (FINISHED, RESULT)])
async def test_a_broken_stream_goes_on_where_it_was(
    server: Server, client: AsyncClient, again: tuple[tuple[int, str, object], ...]
) -> None:
    server.answers = [events(QUEUED, WRITTEN), DROPPED, events(*again)]
    seen = [event.number async for event in client.stream("1") if isinstance(event, Event)]
    assert seen == [1, 2, 3]
    assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, "2", "2"]
    assert len({asked.body["request_id"] for asked in server.asked}) == 1


async def test_a_stream_without_progress_is_given_up(server: Server, client: AsyncClient) -> None:
    server.answers = [events(QUEUED)]
    with pytest.raises(Unreachable, match="before the run was over"):
        async for _ in client.stream("1"):
            pass
    assert len(server.asked) == QUICK.attempts


async def test_an_error_in_a_stream_is_raised(server: Server, client: AsyncClient) -> None:
    server.answers = [
        events(QUEUED, (2, "error", {"error": {"code": "STORE_UNAVAILABLE", "message": "disk full"}}))
    ]
    with pytest.raises(StoreUnavailable, match="disk full"):
        async for _ in client.stream("1"):
            pass


async def test_a_stream_that_is_no_stream_is_a_foreign_answer(server: Server, client: AsyncClient) -> None:
    with pytest.raises(BelljarError):
        async for _ in client.stream("1"):
            pass


async def test_an_event_of_many_megabytes_arrives(server: Server, client: AsyncClient) -> None:
    large = ANSWER | {"stdout": "x" * (8 << 20)}
    server.answers = [events((1, "result", large))]
    [result] = [event async for event in client.stream("1")]
    assert isinstance(result, Result)
    assert len(result.stdout) == 8 << 20


async def test_a_stream_can_be_left(server: Server, client: AsyncClient) -> None:
    server.answers = [events(QUEUED, WRITTEN, RESULT)]
    async with aclosing(client.stream("1")) as stream:
        async for event in stream:
            assert isinstance(event, Event)
            break


async def test_events_of_a_run_start_where_asked(server: Server, client: AsyncClient) -> None:
    server.answers = [events(WRITTEN, FINISHED)]
    assert [event.kind async for event in client.events("ex-1", after=1)] == ["stdout", "finished"]
    asked = server.asked[0]
    assert (asked.method, asked.path, asked.headers["last-event-id"]) == (
        "GET",
        "/sandbox/execs/ex-1/events",
        "1",
    )


# Looking


async def test_filters_are_parameters(server: Server, client: AsyncClient) -> None:
    server.answers = [answer(200, {"execs": [{"exec_id": "ex-1"}], "cursor": "c"})]
    page = await client.execs(project_id="a b", status="finished", limit=5)
    assert server.asked[0].path == "/sandbox/execs?project_id=a+b&status=finished&limit=5"
    assert page == (({"exec_id": "ex-1"},), "c")


async def test_an_artifact_is_fetched_by_its_path(server: Server, client: AsyncClient) -> None:
    server.answers = [answer(200, b"\x00\xff")]
    assert await client.artifact("ex-1", "a b/é#?.txt") == b"\x00\xff"
    assert server.asked[0].path == "/sandbox/execs/ex-1/artifacts/a%20b/%C3%A9%23%3F.txt"
    assert [chunk async for chunk in client.artifact_chunks("ex-1", "x")] == [b"\x00\xff"]


async def test_a_file_that_breaks_off_is_an_error(server: Server, client: AsyncClient) -> None:
    server.answers = [b"HTTP/1.1 200 x\r\ncontent-length: 900\r\n\r\nabc"]
    with pytest.raises(Unreachable):
        async for _ in client.artifact_chunks("ex-1", "x"):
            pass


@pytest.mark.parametrize("exec_id", ["", ".", "..", "\ud800"])
async def test_an_id_cannot_become_another_address(server: Server, client: AsyncClient, exec_id: str) -> None:
    with pytest.raises((NotFound, BadRequest)):
        await client.get(exec_id)
    with pytest.raises((NotFound, BadRequest)):
        await client.artifact("ex-1", f"a/{exec_id}/b")
    assert not server.asked


def test_a_slash_in_an_id_is_part_of_it() -> None:
    assert wire.exec_path("a/b?c") == "/sandbox/execs/a%2Fb%3Fc"


# Where the service is


def config(tmp_path: Path, **given: object) -> Config:
    nowhere = tmp_path / "nothing"
    return replace(load(environ={}, cwd=tmp_path, home=tmp_path, machine_file=nowhere), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "address"),
    [
        pytest.param({}, "http://127.0.0.1:8088", id="default"),
        pytest.param({"host": "0.0.0.0", "port": 1}, "http://127.0.0.1:1", id="everywhere"),
        pytest.param({"host": "::", "port": 1}, "http://[::1]:1", id="everywhere-v6"),
        pytest.param({"host": "box", "port": 1}, "http://box:1", id="name"),
        pytest.param({"runner_url": "https://box/b/", "port": 1}, "https://box/b", id="runner-url"),
    ],
)
def test_the_address_is_that_of_the_configuration(
    tmp_path: Path, given: dict[str, Any], address: str
) -> None:
    assert address_of(config(tmp_path, **given)) == address


def test_a_port_that_only_the_service_knows_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="runner_url"):
        address_of(config(tmp_path, port=0))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        pytest.param("http://127.0.0.1:1", "secret", id="v4"),
        pytest.param("http://[::1]:1", "secret", id="v6"),
        pytest.param("http://localhost", "secret", id="localhost"),
        pytest.param("https://box.example", None, id="another-machine"),
        pytest.param("http://127.0.0.1.example", None, id="looks-like-it"),
    ],
)
def test_the_token_of_the_file_is_for_this_machine_only(tmp_path: Path, url: str, found: str | None) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert token_for(url, config(tmp_path, data_dir=tmp_path)) == found


def test_a_configured_token_is_for_any_service(tmp_path: Path) -> None:
    assert token_for("https://box.example", config(tmp_path, token="t")) == "t"


def test_no_token_is_made(tmp_path: Path) -> None:
    assert token_for("http://127.0.0.1:1", config(tmp_path, data_dir=tmp_path / "data")) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("token", ["a b", "a\r\nx: y", "é", "\x00"])
def test_a_token_that_no_header_can_hold_is_refused(token: str) -> None:
    with pytest.raises(BadConfig):
        AsyncClient("http://127.0.0.1:1", token)


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://a:b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadConfig):
        AsyncClient(url, "t")
    with pytest.raises(BadConfig):
        AsyncClient(url)


async def test_no_proxy_of_the_environment_sees_the_token(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with AsyncClient(server.url, "t", retry=Retry(1)) as client:
        assert (await client.run("1")).ok


# Blocking


Blocking = Callable[[Callable[[Client], Any]], Any]


@pytest.fixture
def blocking(server: Server) -> Blocking:
    """Uses a blocking client away from the loop that the server needs."""

    def use(work: Callable[[Client], Any]) -> Any:
        def with_client() -> Any:
            with Client(server.url, "t", retry=QUICK) as client:
                return work(client)

        return asyncio.to_thread(with_client)

    return use


async def test_the_blocking_client_gives_the_same(server: Server, blocking: Blocking) -> None:
    result = await blocking(lambda client: client.run("1"))
    assert result.stdout == "hi\n"


async def test_the_blocking_client_streams(server: Server, blocking: Blocking) -> None:
    server.answers = [events(QUEUED, WRITTEN), events(FINISHED, RESULT)]
    seen = await blocking(lambda client: list(client.stream("1")))
    assert [type(event) for event in seen] == [Event, Event, Event, Result]


async def test_a_blocking_stream_can_be_left(server: Server, blocking: Blocking) -> None:
    server.answers = [events(QUEUED, WRITTEN, RESULT)]
    assert (await blocking(lambda client: next(client.stream("1")))).kind == "queued"


async def test_the_blocking_client_raises_the_same(server: Server, blocking: Blocking) -> None:
    server.answers = [refusal(404, "NOT_FOUND", "not there")]
    with pytest.raises(NotFound, match="not there"):
        await blocking(lambda client: client.get("ex-1"))


def test_closing_ends_the_thread() -> None:
    before = set(threading.enumerate())
    client = Client("http://127.0.0.1:9", "t")
    [thread] = set(threading.enumerate()) - before
    client.close()
    client.close()
    assert not thread.is_alive()


def test_a_client_that_cannot_be_made_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(BadConfig):
        Client("nowhere", "t")
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_every_call_of_the_client_is_there_for_code_that_blocks() -> None:
    calls = {name for name in vars(AsyncClient) if not name.startswith("_")} - {"aclose"}
    assert calls <= set(vars(Client))
