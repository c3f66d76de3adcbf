"""The service in this process: `belljar.run` and friends, with a real jail behind them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

import httpx2
import pytest

import belljar
from belljar.client import Client, Event, Result
from belljar.client.apps import App, AppTransport, Message, Receive, Send
from belljar.config import Config, load
from belljar.errors import BadRequest, Conflict, NotFound, PolicyEscalation, Unauthorized


@pytest.fixture(scope="module")
def config(jail: None, tmp_path_factory: pytest.TempPathFactory) -> Config:
    home = tmp_path_factory.mktemp("home")
    return load(environ={}, cwd=home, home=home, machine_file=home / "none")


@pytest.fixture(scope="module")
def client(config: Config) -> Iterator[Client]:
    with belljar.local(config) as client:
        yield client


def test_a_program_runs_without_a_server(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setenv("BELLJAR_DATA_DIR", str(config.data_dir))
    result = belljar.run("import sys; print(6 * 7, sys.stdin.read())", stdin="in")
    assert (result.ok, result.stdout) == (True, "42 in\n")
    assert result.receipt


async def test_a_program_is_awaited_without_a_server(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setenv("BELLJAR_DATA_DIR", str(config.data_dir))
    assert (await belljar.arun("echo hi", "bash")).stdout == "hi\n"


def test_files_go_in_and_come_out(client: Client) -> None:
    code = "open('b/out.txt', 'w').write(open('in/a.txt').read().upper())"
    result = client.run(code, files={"in/a.txt": "abc", "b/x": b""}, output_files=["b/out.txt"])
    assert result.output_files == {"b/out.txt": b"ABC"}
    assert client.artifact(result.id, "b/out.txt") == b"ABC"
    assert [file.path for file in client.artifacts(result.id)] == ["b/out.txt"]


def test_a_run_is_recorded_and_verified(client: Client) -> None:
    result = client.run("raise SystemExit(3)", project_id="recorded")
    record = client.get(result.id)
    assert (record["exit_code"], record["receipt"]) == (3, result.receipt)
    assert [one["exec_id"] for one in client.execs(project_id="recorded").records] == [result.id]
    assert client.receipt(result.id)["hash"] == result.receipt
    verified = client.verify()
    assert (verified["ok"], verified["faults"]) == (True, [])


def test_events_come_while_they_happen(client: Client) -> None:
    exec_id = ""
    for event in client.stream("print(1, flush=True)\nimport time\ntime.sleep(25)\nprint(2)"):
        if isinstance(event, Event) and event.kind == "queued":
            exec_id = event.data["exec_id"]
        elif isinstance(event, Event) and event.kind == "stdout":
            assert client.get(exec_id)["verdict"] is None
            client.cancel(exec_id)
    assert isinstance(event, Result)
    assert (event.stdout, event.verdict) == ("1\n", "cancelled")
    assert [one.kind for one in client.events(event.id)][-1] == "finished"


def test_leaving_a_stream_does_not_end_the_run_but_cancel_does(client: Client) -> None:
    stream = client.stream("import time; time.sleep(25)")
    first = next(stream)
    assert isinstance(first, Event)
    stream.close()
    exec_id = first.data["exec_id"]
    assert client.get(exec_id)["verdict"] is None
    client.cancel(exec_id)
    assert [event.kind for event in client.events(exec_id)][-1] == "finished"
    assert client.get(exec_id)["verdict"] == "cancelled"


def test_the_same_request_is_the_same_run(client: Client) -> None:
    first = client.run("import uuid; print(uuid.uuid4())", request_id="once")
    again = client.run("import uuid; print(uuid.uuid4())", request_id="once")
    assert (again.id, again.stdout) == (first.id, first.stdout)
    with pytest.raises(Conflict):
        client.run("print(2)", request_id="once")


def test_an_error_is_the_one_of_the_service_with_its_parts(client: Client) -> None:
    with pytest.raises(PolicyEscalation) as escalation:
        client.run("1", limits={"memory_mb": 999_999_999})
    assert escalation.value.field == "limits.memory_mb"
    assert escalation.value.asked == 999_999_999
    assert escalation.value.layer
    with pytest.raises(NotFound):
        client.get("ex-none")
    with pytest.raises(BadRequest):
        client.run("1", command=["ls"])


def test_policy_is_explained(client: Client) -> None:
    answer = client.explain(policy_overrides={"limits.pids": 9})
    assert answer["grant"]["limits"]["pids"] == 9


def test_a_shell_command_is_submitted_and_waited_for(client: Client) -> None:
    record = client.exec(
        "shell", 'cat "$BASE/a.txt"', inputs={"a.txt": "x"}, env={"BASE": "/workspace/inputs"}
    )
    assert (record["exit_code"], record["stdout"]) == (0, "x")


async def test_there_is_no_way_around_the_token(config: Config) -> None:
    async with belljar.alocal(config) as client:
        transport = client._http._transport
        async with belljar.AsyncClient("http://localhost", "wrong", transport=transport) as stranger:
            assert (await stranger.health())["status"] == "ok"
            with pytest.raises(Unauthorized):
                await stranger.run("1")


def test_many_callers_share_one_service(client: Client) -> None:
    results: list[Result] = []
    threads = [
        threading.Thread(target=lambda n=number: results.append(client.run(f"print({n})")))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(result.stdout) for result in results) == list(range(8))


def test_nothing_is_left_when_it_is_closed(config: Config) -> None:
    program = (
        "import belljar, os, threading\n"
        "print(belljar.run('print(1)').stdout, end='')\n"
        "print(threading.active_count(), open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"BELLJAR_DATA_DIR": str(config.data_dir), "HOME": str(config.data_dir), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n1 \n", "")


def test_runs_that_are_switched_off_are_refused(config: Config) -> None:
    with pytest.raises(belljar.errors.Refused), belljar.local(replace(config, enabled=False)):
        pass


def test_importing_the_package_is_light() -> None:
    loaded = "'httpx2' in sys.modules"
    program = f"import sys, belljar; print({loaded}, belljar.Client.__name__, {loaded})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False Client True\n"


def test_a_name_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = belljar.nonsense  # type: ignore[attr-defined]


# The transport by itself


async def talk(app: App, method: str = "GET") -> httpx2.Response:
    async with httpx2.AsyncClient(transport=AppTransport(app)) as http:
        return await http.request(method, "http://localhost/a?b=c", content=b"body")


async def test_a_request_reaches_the_app_whole() -> None:
    seen: list[object] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.extend([scope["method"], scope["path"], scope["query_string"], await receive()])
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    response = await talk(app, "POST")
    assert (response.status_code, response.headers["x"], response.content) == (201, "y", b"ab")
    assert seen == ["POST", "/a", b"b=c", {"type": "http.request", "body": b"body", "more_body": False}]


async def test_a_fault_of_the_app_is_raised() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await talk(app)


async def test_an_app_that_says_nothing_is_not_waited_for() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        return

    with pytest.raises(RuntimeError):
        await asyncio.wait_for(talk(app), 30)


async def test_an_app_ends_when_its_reader_leaves() -> None:
    ended = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async with (
        httpx2.AsyncClient(transport=AppTransport(app)) as http,
        http.stream("GET", "http://localhost/") as response,
        aclosing(response.aiter_bytes()) as chunks,
    ):
        assert await anext(chunks) == b"x"
    await asyncio.wait_for(ended.wait(), 30)
