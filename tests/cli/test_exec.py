from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import BELLJAR, Belljar, Service, environment

from belljar.client import Client

PROGRAM = """
import os, sys
print("out", sys.argv[1:], open("in/data.txt").read(), sys.stdin.read(), os.environ["K"])
print("err", file=sys.stderr)
os.makedirs("made")
open("made/a.bin", "wb").write(b"\\0\\xff")
open("/workspace/artifacts/report.txt", "w").write("r")
os.symlink("/etc/passwd", "link")
sys.exit(3)
"""
OPTIONS = ["--input", "in", "--stdin", "in/data.txt", "--env", "K=v"]


@pytest.fixture
def program(belljar: Belljar) -> None:
    Path("in").mkdir()
    Path("in/data.txt").write_text("data")
    Path("p.py").write_text(PROGRAM)


def test_exec_sends_files_shows_output_and_fetches_what_was_made(caller: Belljar, program: None) -> None:
    ran = caller("exec", *OPTIONS, "--out-dir", "out", "--", "p.py", "a", "-b")
    assert (ran.status, ran.out) == (3, "out ['a', '-b'] data data v\n")
    assert "err\n" in ran.err
    assert "2 files written below out/" in ran.err
    assert "link (symlink)" in ran.err
    assert Path("out/made/a.bin").read_bytes() == b"\0\xff"
    assert Path("out/artifacts/report.txt").read_text() == "r"


def test_exec_prints_json_for_programs(caller: Belljar, program: None) -> None:
    ran = caller("exec", "p.py", *OPTIONS, "--json", "--project-id", "demo")
    assert (ran.status, ran.json["exit_code"], ran.json["stderr"]) == (3, 3, "err\n")
    assert [file["path"] for file in ran.json["output_files"]] == ["made/a.bin", "artifacts/report.txt"]
    again = caller("exec", "p.py", *OPTIONS, "--json", "--out-dir", "out")
    assert again.json["written_files"] == ["made/a.bin", "artifacts/report.txt"]
    assert "output_files" not in again.json


def test_the_same_request_is_run_once(caller: Belljar) -> None:
    code = "import uuid; print(uuid.uuid4())"
    first = caller("exec", "--code", code, "--request-id", "cli-1")
    assert caller("exec", "--code", code, "--request-id", "cli-1").out == first.out
    ran = caller("exec", "--code", "print(2)", "--request-id", "cli-1")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "CONFLICT" in ran.err


@pytest.mark.parametrize(
    ("code", "timeout_s", "status"),
    [
        pytest.param("import os; os.kill(os.getpid(), 15)", "25", 143, id="signal"),
        pytest.param("import time; time.sleep(60)", "0.5", 124, id="time-out"),
    ],
)
def test_how_it_ended_is_the_exit_status(caller: Belljar, code: str, timeout_s: str, status: int) -> None:
    assert caller("exec", "--timeout", timeout_s, "--code", code).status == status


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param([], "BAD_REQUEST", id="nothing"),
        pytest.param(["--code", "1", "--timeout", "99999"], "POLICY_ESCALATION", id="too-long"),
        pytest.param(["--code", "1", "--input", "/etc/passwd"], "PATH_NOT_ALLOWED", id="path"),
        pytest.param(["--code", "1", "--input", "none"], "BAD_REQUEST", id="no-file"),
        pytest.param(["--code", "1", "--language", "cobol"], "UNSUPPORTED_LANGUAGE", id="language"),
        pytest.param(["--code", "1", "--project-id", "a/b"], "BAD_REQUEST", id="project"),
        pytest.param(["--code", "1", "--env", "x"], "BAD_REQUEST", id="env"),
    ],
)
def test_bad_input_is_one_line(caller: Belljar, arguments: list[str], code: str) -> None:
    ran = caller("exec", *arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"belljar: {code}: " in ran.err


def test_no_service_is_one_sentence_with_what_to_do(belljar: Belljar) -> None:
    ran = belljar("exec", "--code", "1", BELLJAR_PORT="9")
    assert (ran.status, ran.out) == (125, "")
    sentence = "no belljar service answers at http://127.0.0.1:9; start one with `belljar serve`"
    assert ran.err == f"belljar: UNREACHABLE: {sentence}\n"


def test_a_wrong_token_says_where_one_is_looked_for(caller: Belljar) -> None:
    ran = caller("exec", "--code", "1", BELLJAR_TOKEN="wrong")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "UNAUTHORIZED" in ran.err
    assert "BELLJAR_TOKEN" in ran.err


def test_ctrl_c_cancels_the_run(service: Service, tmp_path: Path) -> None:
    code = "print('up', flush=True)\nimport time\ntime.sleep(25)"
    process = subprocess.Popen(
        [*BELLJAR, "exec", "--code", code, "--project-id", "interrupted"],
        env=environment(service.data_dir, BELLJAR_RUNNER_URL=service.url),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130
    with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
        [record] = client.execs(project_id="interrupted").records
        assert [event.kind for event in client.events(record["exec_id"])][-1] == "finished"
        assert client.get(record["exec_id"])["verdict"] == "cancelled"


def test_output_comes_while_the_program_runs(service: Service, tmp_path: Path) -> None:
    code = "print('first', flush=True)\nimport time\ntime.sleep(25)\nprint('last')"
    process = subprocess.Popen(
        [*BELLJAR, "exec", "--code", code, "--project-id", "watched"],
        env=environment(service.data_dir, BELLJAR_RUNNER_URL=service.url),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
        [record] = client.execs(project_id="watched").records
        assert record["verdict"] is None
        client.cancel(record["exec_id"])
    with process:
        assert process.stdout.read() == ""


def test_a_program_cannot_act_on_the_terminal_by_the_names_of_its_files(caller: Belljar) -> None:
    ran = caller("exec", "--code", "import os; os.symlink('x', 'a\\x1b[2Jb')")
    assert "\x1b" not in ran.err
    assert "symlink" in ran.err


def test_json_is_json_whatever_a_program_wrote(caller: Belljar) -> None:
    ran = caller("exec", "--json", "--code", "import os; os.write(1, bytes(range(256)))")
    assert json.loads(ran.out)["stdout_bytes"] == 256
