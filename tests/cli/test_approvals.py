"""`belljar approvals`, and `run` and `exec` of what needs a person's yes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.commands import BELLJAR, Ran, Service, end, environment, start_service

from belljar.client import Client
from belljar.errors import ApprovalDenied, ApprovalNeeded

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

RISKY = "import os\nos.system('echo \x1b[2Jran')"
SUPERVISED = {"BELLJAR_PROFILE": "supervised"}


@pytest.fixture(scope="module")
def service(jail: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = start_service(tmp_path_factory.mktemp("supervised"), **SUPERVISED)
    yield running
    assert end(running) == 0


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
        yield client
        for one in client.approvals.list():
            client.approvals.deny(one["id"])


@pytest.fixture
def waiting(client: Client) -> ApprovalNeeded:
    with pytest.raises(ApprovalNeeded) as caught:
        client.run(RISKY)
    return caught.value


def at_terminal(*arguments: str, settings: dict[str, str], data_dir: Path, answer: str) -> Ran:
    """A command as a person gives it, who answers when they are asked."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*BELLJAR, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(data_dir, **settings),
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
            if answer and seen.endswith(b"or later: "):
                os.write(ours, f"{answer}\n".encode())
                answer = ""
    except OSError:  # it has ended, and nobody has the other side any more
        pass
    os.close(ours)
    return Ran(process.wait(60), seen.decode(), "")


# Deciding


def test_what_waits_is_listed(caller: Belljar, waiting: ApprovalNeeded) -> None:
    listed = caller("approvals", "list")
    assert listed.status == 0
    assert waiting.approval_id in listed.out
    assert "os.system starts programs" in listed.out
    assert [one["id"] for one in caller("approvals", "list", "--json").json] == [waiting.approval_id]
    assert caller("approvals", "list", "--state", "void", "--json").json == []


def test_findings_are_beside_the_lines_and_layers_beside_the_grant(
    caller: Belljar, waiting: ApprovalNeeded
) -> None:
    shown = caller("approvals", "show", waiting.approval_id)
    assert shown.status == 0
    (line,) = [line for line in shown.out.splitlines() if "os.system(" in line]
    assert "2" in line
    assert "critical: os.system starts programs" in line
    (line,) = [line for line in shown.out.splitlines() if "limits.timeout_s" in line]
    assert "system" in line
    assert caller("approvals", "show", waiting.approval_id, "--json").json["code"] == RISKY


def test_what_a_program_says_does_not_act_on_the_terminal(caller: Belljar, waiting: ApprovalNeeded) -> None:
    shown = caller("approvals", "show", waiting.approval_id)
    assert "\x1b" not in shown.out
    assert "␛[2J" in shown.out


def test_a_yes_lets_it_run_once(caller: Belljar, client: Client, waiting: ApprovalNeeded) -> None:
    said = caller("approvals", "approve", waiting.approval_id, "--reason", "I looked", "--json")
    assert (said.status, said.json["state"]) == (0, "approved")
    record = client.wait(waiting.exec_id)
    assert (record["verdict"], record["approval"]["reason"]) == ("exited", "I looked")
    assert "ran" in record["stdout"]
    again = caller("approvals", "deny", waiting.approval_id)
    assert again.status == 2
    assert "CONFLICT" in again.err


def test_a_no_refuses_it(caller: Belljar, client: Client, waiting: ApprovalNeeded) -> None:
    assert caller("approvals", "deny", waiting.approval_id, "--reason", "no way")[:2] == (
        0,
        f"{waiting.exec_id}  denied\n",
    )
    with pytest.raises(ApprovalDenied, match="no way"):
        client.wait(waiting.exec_id)


def test_a_yes_to_another_digest_is_none(caller: Belljar, waiting: ApprovalNeeded) -> None:
    said = caller("approvals", "approve", waiting.approval_id, "--digest", "0" * 64)
    assert said.status == 2
    assert "not what was seen" in said.err


def test_one_that_is_not_there_is_not_found(caller: Belljar) -> None:
    assert "NOT_FOUND" in caller("approvals", "show", "ap-none").err


def test_a_watcher_is_told_once_of_each(
    caller: Belljar, waiting: ApprovalNeeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, None])

    def later(_: float) -> None:
        if next(looks, "over") is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", later)
    watched = caller("approvals", "watch", "--json")
    assert watched.status == 130
    assert [json.loads(line)["id"] for line in watched.out.splitlines()] == [waiting.approval_id]


def test_a_watcher_at_a_terminal_decides(service: Service, client: Client, waiting: ApprovalNeeded) -> None:
    ours, theirs = pty.openpty()
    settings = environment(service.data_dir, BELLJAR_RUNNER_URL=service.url)
    process = subprocess.Popen(
        [*BELLJAR, "approvals", "watch"], stdin=theirs, stdout=theirs, stderr=theirs, env=settings
    )
    os.close(theirs)
    seen = b""
    while not seen.endswith(b"or later: "):
        seen += os.read(ours, 65536)
    os.write(ours, b"y\n")
    assert client.wait(waiting.exec_id)["approval"]["by"] == "operator"
    process.terminate()
    process.wait(60)
    os.close(ours)


# Running


@pytest.mark.parametrize("verb", ["run", "exec"])
def test_without_a_terminal_a_run_is_left_to_wait(caller: Belljar, client: Client, verb: str) -> None:
    ran = caller(verb, "--code", RISKY)
    (left,) = client.approvals.list()
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("belljar: APPROVAL_NEEDED: ")
    assert f"belljar approvals approve {left['id']}" in ran.err


def test_the_same_request_finds_the_run_that_was_approved(caller: Belljar, client: Client) -> None:
    assert caller("exec", "--code", RISKY, "--request-id", "r1").status == 2
    (left,) = client.approvals.list()
    client.approvals.approve(left["id"])
    ran = caller("exec", "--code", RISKY, "--request-id", "r1")
    assert (ran.status, "ran" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("answer", "status", "state"),
    [
        pytest.param("y", 0, "approved", id="yes"),
        pytest.param("no", 2, "denied", id="no"),
        pytest.param("what?", 2, "waiting", id="later"),
    ],
)
def test_at_a_terminal_the_operator_is_asked(
    service: Service, client: Client, answer: str, status: int, state: str
) -> None:
    settings = {"BELLJAR_RUNNER_URL": service.url}
    ran = at_terminal("exec", "--code", RISKY, settings=settings, data_dir=service.data_dir, answer=answer)
    assert ran.status == status
    assert "os.system" in ran.out
    assert "\x1b[2J" not in ran.out
    assert client.approvals.list(state=state)


def test_who_may_not_decide_is_not_asked_in_vain(service: Service, client: Client, caller: Belljar) -> None:
    token = caller("token", "create", "--role", "agent", "--json").json["token"]
    settings = {"BELLJAR_RUNNER_URL": service.url, "BELLJAR_TOKEN": token}
    ran = at_terminal("exec", "--code", RISKY, settings=settings, data_dir=service.data_dir, answer="y")
    assert ran.status == 2
    assert "belljar approvals approve" in ran.out
    assert len(client.approvals.list()) == 1


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [("yes", 0, ""), ("n", 2, "APPROVAL_DENIED"), ("later", 2, "APPROVAL_NEEDED")],
)
def test_without_a_service_the_person_at_the_terminal_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = at_terminal(
        "run", "--local", "--code", RISKY, settings=SUPERVISED, data_dir=tmp_path, answer=answer
    )
    assert ran.status == status, ran.out
    assert "critical: os.system starts programs" in " ".join(ran.out.split())
    assert error in ran.out


@pytest.mark.usefixtures("jail")
def test_without_a_service_and_a_terminal_it_waits_for_the_next_service(
    belljar: Belljar, tmp_path: Path
) -> None:
    ran = subprocess.run(  # a process of its own: as long as that is there, the run is nobody else's
        [*BELLJAR, "run", "--local", "--code", RISKY],
        env=environment(tmp_path / "data", **SUPERVISED),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "APPROVAL_NEEDED" in ran.stderr
    assert "`belljar serve`" in ran.stderr
    later = start_service(tmp_path / "data", **SUPERVISED)
    try:
        [left] = belljar("approvals", "list", "--json", **later.environment).json
        assert f"belljar approvals approve {left['id']}" in ran.stderr
        assert belljar("approvals", "approve", left["id"]).status == 0
        assert "ran" in belljar("execs", "logs", left["exec_id"]).out
    finally:
        assert end(later) == 0
