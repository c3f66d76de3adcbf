from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import BELLJAR, Belljar, Service, end, environment, start_service

from belljar.client import Client


def test_a_service_ends_when_told_and_the_next_one_knows_what_ran(jail: None, tmp_path: Path) -> None:
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
    with Client(line.split()[3].rstrip(";"), token.read_text().strip()) as client:
        done = client.run("import uuid; print(uuid.uuid4())", request_id="r-1")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0

    following = start_service(tmp_path)
    with Client(following.url, token.read_text().strip()) as client:
        again = client.run("import uuid; print(uuid.uuid4())", request_id="r-1")
    assert end(following) == 0
    assert (again.id, again.stdout, again.receipt) == (done.id, done.stdout, done.receipt)


def test_a_port_that_is_taken_is_one_line(belljar: Belljar, service: Service) -> None:
    ran = belljar("serve", "--port", service.url.rpartition(":")[2])
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "cannot listen on 127.0.0.1" in ran.err


def test_listening_to_the_world_is_warned_about(belljar: Belljar, service: Service) -> None:
    ran = belljar("serve", "--host", "0.0.0.0", "--port", service.url.rpartition(":")[2])
    warning, failure = ran.err.splitlines()
    assert "put a proxy with TLS before it" in warning
    assert "cannot listen on 0.0.0.0" in failure


@pytest.mark.parametrize(
    "arguments", [["--port", "x"], ["--engine", "none"], ["--policy", "/no/such/file"], ["--host", "a b"]]
)
def test_bad_settings_are_one_line(belljar: Belljar, arguments: list[str]) -> None:
    ran = belljar("serve", "--port", "0", *arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
