from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from belljar.cli.remote import _listeners

if TYPE_CHECKING:
    from tests.cli.commands import Belljar, Service

CODE = "open('a.txt', 'w').write('x'); print('hi'); import sys; print('e', file=sys.stderr); sys.exit(4)"


def runs_of(caller: Belljar) -> int:
    return len(caller("execs", "list", "--limit", "10000", "--json").json)


def without_chance(summary: dict[str, object]) -> dict[str, object]:
    """What is the same whoever ran it."""
    by_chance = {"run_id", "duration_ms", "usage", "written_files", "posture"}
    return {name: value for name, value in summary.items() if name not in by_chance}


def test_a_service_runs_it_and_it_looks_the_same(caller: Belljar) -> None:
    before = runs_of(caller)
    there = caller("run", "--code", CODE, "--json")
    assert runs_of(caller) == before + 1
    here = caller("run", "--code", CODE, "--json", "--local")
    assert runs_of(caller) == before + 1
    assert there.status == here.status == 4
    assert without_chance(there.json) == without_chance(here.json)
    assert there.json.keys() == here.json.keys()
    assert there.json["usage"].keys() == here.json["usage"].keys()
    for ran in (there, here):
        run_id = ran.json["run_id"]
        assert Path(f"docs/artifacts/{run_id}/a.txt").read_text() == "x"
        trail = Path(f".belljar/runs/{run_id}/events.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in trail] == ["sandbox_start", "sandbox_complete"]


def test_output_is_shown_the_same(caller: Belljar) -> None:
    there = caller("run", "--code", CODE, "--output-prefix", "docs/there")
    here = caller("run", "--code", CODE, "--output-prefix", "docs/here", "--local")
    assert (there.status, there.out) == (here.status, here.out) == (4, "hi\n")
    assert there.err.replace("docs/there", "docs/here") == here.err


def test_a_service_at_hand_is_used_by_itself(belljar: Belljar, caller: Belljar, service: Service) -> None:
    before = runs_of(caller)
    at_hand = {"BELLJAR_PORT": service.url.rpartition(":")[2], "BELLJAR_DATA_DIR": str(service.data_dir)}
    assert belljar("run", "--code", "print(1)", BELLJAR_RUNNER_URL="", **at_hand).out == "1\n"
    assert runs_of(caller) == before + 1


def test_a_service_that_does_not_know_the_token_is_somebody_elses(belljar: Belljar, service: Service) -> None:
    port = service.url.rpartition(":")[2]
    assert belljar("run", "--code", "print(1)", BELLJAR_PORT=port, BELLJAR_TOKEN="another").out == "1\n"


@pytest.mark.usefixtures("jail")
def test_without_a_service_it_runs_here(belljar: Belljar) -> None:
    assert belljar("run", "--code", "print(1)", BELLJAR_PORT="9")[:2] == (0, "1\n")


def test_a_named_service_that_is_not_there_is_not_passed_over(belljar: Belljar) -> None:
    ran = belljar("run", "--code", "print(1)", BELLJAR_RUNNER_URL="http://127.0.0.1:9")
    assert (ran.status, ran.out, ran.err.count("\n")) == (125, "", 1)
    assert "UNREACHABLE" in ran.err


def test_what_the_service_refuses_leaves_no_trace_in_the_project(caller: Belljar) -> None:
    ran = caller("run", "--code", "1", "--memory-mb", "999999999")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "POLICY_ESCALATION" in ran.err
    assert not list(Path().iterdir())


def test_something_else_on_the_port_gets_neither_token_nor_code(belljar: Belljar, jail: None) -> None:
    heard = bytearray()

    def listen(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(0.2)
                try:
                    heard.extend(connection.recv(4096))
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                except TimeoutError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=listen, args=(listening,))
        thread.start()
        port = str(listening.getsockname()[1])
        ran = belljar("run", "--code", "print('secret' * 2)", BELLJAR_PORT=port, BELLJAR_TOKEN="t0ken")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert ran.out == "secretsecret\n"
    assert b"t0ken" not in heard
    assert b"secret" not in heard


def test_a_project_that_narrows_a_limit_narrows_it_for_the_service_too(caller: Belljar) -> None:
    Path(".belljar").mkdir()
    Path(".belljar/config.yaml").write_text("sandbox: {timeout_seconds: 0.5, idle_timeout_seconds: 20}")
    ran = caller("run", "--code", "import time; time.sleep(20)", "--json")
    assert (ran.status, ran.json["verdict"]) == (124, "timeout")
    assert caller("run", "--code", "print(1)", "--timeout", "5").out == "1\n"


def test_who_listens_on_a_port_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert set(_listeners(port)) == {os.geteuid()}
    assert not set(_listeners(port))
