from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.commands import end, start_service

from belljar.client import Client, Result

if TYPE_CHECKING:
    from tests.cli.commands import Belljar, Service

CODE = """
import sys
print("hello")
print("oops", file=sys.stderr)
open("a.txt", "w").write("content")
open("artifacts.txt", "w").write("more")
"""


@pytest.fixture(scope="module")
def done(service: Service) -> Result:
    with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
        for number in range(3):
            client.run(f"print({number})", project_id="several")
        return client.run(CODE, args=["--x"], project_id="shown")


def test_runs_are_listed(caller: Belljar, done: Result) -> None:
    ran = caller("execs", "list", "--project-id", "shown")
    assert ran.status == 0
    assert done.id in ran.out
    assert "exited 0" in ran.out
    assert "main.py --x" in ran.out


def test_a_list_is_as_long_as_asked(caller: Belljar, done: Result) -> None:
    every = [
        record["exec_id"] for record in caller("execs", "list", "--project-id", "several", "--json").json
    ]
    assert len(every) == 3
    some = caller("execs", "list", "--project-id", "several", "--limit", "2", "--json").json
    assert [record["exec_id"] for record in some] == every[:2]
    assert caller("execs", "list", "--since", "2999-01-01T00:00:00Z", "--json").json == []
    assert caller("execs", "list", "--status", "running", "--json").json == []


def test_a_run_is_shown_with_what_was_granted(caller: Belljar, done: Result) -> None:
    ran = caller("execs", "show", done.id)
    assert ran.status == 0
    for part in (done.id, "limits.memory_mb", "system", done.receipt):
        assert str(part) in ran.out
    assert caller("execs", "show", done.id, "--json").json["verdict"] == "exited"


def test_code_is_what_ran(caller: Belljar, done: Result) -> None:
    ran = caller("execs", "code", done.id)
    assert (ran.status, "hello" in ran.out, ran.err) == (0, True, "")


def test_logs_are_what_it_wrote(caller: Belljar, done: Result) -> None:
    assert caller("execs", "logs", done.id) == (0, "hello\n", "oops\n")
    lines = caller("execs", "logs", done.id, "--json").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines][-1] == "finished"


def test_artifacts_are_listed_printed_and_fetched(caller: Belljar, done: Result) -> None:
    listed = {row["path"]: row["size"] for row in caller("execs", "artifacts", done.id, "--json").json}
    assert listed == {"a.txt": 7, "artifacts.txt": 4}
    assert "text/plain" in caller("execs", "artifacts", done.id).out
    assert caller("execs", "artifacts", done.id, "a.txt") == (0, "content", "")
    assert caller("execs", "artifacts", done.id, "--out-dir", "out").status == 0
    assert Path("out/artifacts.txt").read_text() == "more"
    again = caller("execs", "artifacts", done.id, "a.txt", "--out-dir", "out", "--json")
    assert (again.status, again.json["refused_files"]) == (1, [{"path": "a.txt", "reason": "exists"}])


def test_cancelling_what_is_over_changes_nothing(caller: Belljar, done: Result) -> None:
    assert caller("execs", "cancel", done.id) == (0, "", "")
    assert caller("execs", "cancel", done.id, "--json").json["verdict"] == "exited"


def test_a_waiting_run_is_cancelled(caller: Belljar, service: Service) -> None:
    with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
        taken = client.exec("python", "import time; time.sleep(25)", wait=False)
        assert caller("execs", "cancel", taken["exec_id"]).status == 0
        assert [event.kind for event in client.events(taken["exec_id"])][-1] == "finished"
        assert client.get(taken["exec_id"])["verdict"] == "cancelled"


def test_what_a_run_asked_for_on_its_way_out_is_listed(belljar: Belljar, jail: None, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "policies: {default: {network_access: true}}\nnetwork: {allowlist: {domains: [a.test]}}", "utf-8"
    )
    service = start_service(tmp_path / "service", BELLJAR_POLICY=str(policy))
    try:
        code = "import os; os.system('curl -s http://b.test/')"
        with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
            done = client.run(code)
        listed = belljar("execs", "network", done.id, **service.environment)
        found = belljar("execs", "network", done.id, "--json", **service.environment).json
    finally:
        assert end(service) == 0
    assert (listed.status, listed.err) == (0, "")
    for part in ("b.test", "80", "False", "settings: not in allowed_domains"):
        assert part in listed.out
    assert (found["total"], found["refused"], found["decisions"][0]["host"]) == (1, 1, "b.test")


def test_a_receipt_can_be_verified_away_from_the_service(
    caller: Belljar, service: Service, done: Result
) -> None:
    Path("receipt.json").write_text(caller("execs", "receipt", done.id).out)
    key = str(service.data_dir / "signing.key.pub")
    assert caller("verify", "receipt.json", "--key", key).out == "1 receipt: ok\n"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["show", "ex-none"], id="no-run"),
        pytest.param(["logs", ".."], id="dots"),
        pytest.param(["artifacts", "ex-none", "a"], id="no-artifact"),
        pytest.param(["cancel", "ex-none"], id="cancel"),
        pytest.param(["list", "--since", "yesterday"], id="since"),
        pytest.param(["list", "--status", "asleep"], id="status"),
    ],
)
def test_bad_input_is_one_line(caller: Belljar, arguments: list[str]) -> None:
    ran = caller("execs", *arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_nothing_in_a_table_acts_on_the_terminal(caller: Belljar) -> None:
    Path("p.py").touch()
    caller("exec", "--project-id", "hostile", "p.py", "\x1b]52;c;aGk=\x07\n\u202e")
    ran = caller("execs", "list", "--project-id", "hostile")
    assert "52;c;aGk=" in ran.out
    assert not {"\x1b", "\x07", "\u202e"} & set(ran.out)
