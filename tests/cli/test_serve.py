from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import BELLJAR, Belljar, Service, end, environment, start_service

from belljar.client import Client


def test_a_service_says_where_it_is_and_ends_when_told(jail: None, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*BELLJAR, "serve", "--port", "0", "--data-dir", str(tmp_path)],
        env=environment(tmp_path / "another"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    token = tmp_path / "token"
    assert line.startswith("belljar: serving at http://127.0.0.1:")
    assert f"in {token}" in line
    url = line.split()[3].rstrip(";")
    with Client(url, token.read_text().strip()) as client:
        assert client.health()["status"] == "ok"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


def test_listening_to_the_world_is_warned_about(jail: None, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*BELLJAR, "serve", "--port", "0", "--host", "0.0.0.0"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "http://0.0.0.0:" in process.stdout.readline()
    process.terminate()
    assert "put a proxy with TLS before it" in process.communicate(timeout=20)[1]


def test_a_port_that_is_taken_is_one_line(belljar: Belljar, service: Service) -> None:
    ran = belljar("serve", "--port", service.url.rpartition(":")[2])
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "cannot listen on 127.0.0.1" in ran.err


@pytest.mark.parametrize(
    "arguments", [["--port", "x"], ["--engine", "none"], ["--policy", "/no/such/file"], ["--host", "a b"]]
)
def test_bad_settings_are_one_line(belljar: Belljar, arguments: list[str]) -> None:
    ran = belljar("serve", "--port", "0", *arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_what_ran_is_known_to_the_next_service(jail: None, tmp_path: Path) -> None:
    first = start_service(tmp_path)
    with Client(first.url, (tmp_path / "token").read_text().strip()) as client:
        done = client.run("print(1)", request_id="r-1")
    assert end(first) == 0
    second = start_service(tmp_path)
    with Client(second.url, (tmp_path / "token").read_text().strip()) as client:
        again = client.run("print(1)", request_id="r-1")
    assert end(second) == 0
    assert (again.id, again.stdout, again.receipt) == (done.id, "1\n", done.receipt)
