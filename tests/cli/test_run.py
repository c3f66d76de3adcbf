from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.commands import BELLJAR, Belljar, Service, environment

from belljar.cli.remote import _listeners
from belljar.config import Config, load
from belljar.inprocess import local

CODE = "open('a.txt', 'w').write('x'); print('hi'); import sys; print('e', file=sys.stderr); sys.exit(4)"


IDS = ("exec_id", "request_id", "receipt")


class Started(NamedTuple):
    process: subprocess.Popen[bytes]
    data_dir: Path
    project_id: str

    def verdict(self) -> object:
        with local(config_of(self.data_dir)) as client:
            [record] = client.execs(project_id=self.project_id).records
            return client.wait(record["exec_id"])["verdict"]


def config_of(data_dir: Path) -> Config:
    environ = {"BELLJAR_DATA_DIR": str(data_dir)}
    return load(environ=environ, cwd=data_dir, home=data_dir, machine_file=data_dir / "none")


def record_of(data_dir: Path, exec_id: str) -> Mapping[str, object]:
    with local(config_of(data_dir)) as client:
        return client.get(exec_id)


def runs_of(caller: Belljar) -> int:
    return len(caller("execs", "list", "--limit", "10000", "--json").json)


def without_chance(summary: dict[str, object]) -> dict[str, object]:
    """What is the same whoever ran it."""
    by_chance = {
        "run_id",
        "exec_id",
        "request_id",
        "receipt",
        "duration_ms",
        "usage",
        "written_files",
        "posture",
    }
    return {name: value for name, value in summary.items() if name not in by_chance}


def test_a_service_runs_it_and_it_looks_the_same(caller: Belljar) -> None:
    before = runs_of(caller)
    there = caller("run", "--code", CODE, "--json")
    assert runs_of(caller) == before + 1
    here = caller("run", "--code", CODE, "--json", "--local")
    assert runs_of(caller) == before + 2, "of the same data directory, they have the same records"
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


@pytest.mark.usefixtures("jail")
def test_without_a_service_a_run_leaves_its_record_receipt_and_trail_too(
    belljar: Belljar, tmp_path: Path
) -> None:
    ran = belljar("run", "--code", CODE, "--json", "--local", "--project-id", "demo").json
    kept = json.loads(Path(f".belljar/runs/{ran['run_id']}/sandbox/result.json").read_text())
    assert {name: kept[name] for name in IDS} == {name: ran[name] for name in IDS}
    assert all(ran[name] for name in IDS)
    record = record_of(tmp_path / "data", ran["exec_id"])
    assert (record["exit_code"], record["receipt"], record["project_id"]) == (4, ran["receipt"], "demo")
    assert belljar("verify", ran["exec_id"]).out == "1 receipt: ok\n"
    [line] = (tmp_path / "data/audit.jsonl").read_text().splitlines()
    assert json.loads(line)["sandbox_id"] == ran["exec_id"]


@pytest.mark.usefixtures("jail")
def test_what_is_refused_without_a_service_is_recorded_too(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("run", "--code", "1", "--package", "numpy", "--local")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    [line] = (tmp_path / "data/audit.jsonl").read_text().splitlines()
    assert json.loads(line)["result"] == "refused"


@pytest.mark.usefixtures("jail")
def test_the_data_directory_may_be_given(belljar: Belljar, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    ran = belljar("run", "--local", "--code", "1", "--data-dir", other, "--json").json
    assert belljar("verify", ran["exec_id"], "--data-dir", other).status == 0
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_written_is_one_sentence_with_what_to_do(belljar: Belljar) -> None:
    ran = belljar("run", "--local", "--code", "1", BELLJAR_DATA_DIR="/proc/belljar")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "BAD_CONFIG" in ran.err
    assert "set sandbox.data_dir to another" in ran.err


@pytest.fixture(params=["here", "there"])
def started(request: pytest.FixtureRequest, service: Service, tmp_path: Path) -> Iterator[Started]:
    """A run that goes on and on, by the service or without one, once its first line is there."""
    code = "import time\nwhile True: print('up', flush=True); time.sleep(0.1)"
    data_dir, where = tmp_path / "data", ["--local"]
    if request.param == "there":
        data_dir, where = service.data_dir, []
    project_id = f"endless-{request.param}-{tmp_path.name}"[:64].replace("_", "-")
    with subprocess.Popen(
        [*BELLJAR, "run", *where, "--timeout", "25", "--project-id", project_id, "--code", code],
        env=environment(data_dir, BELLJAR_RUNNER_URL=service.url),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield Started(process, data_dir, project_id)


def test_ctrl_c_ends_the_run(started: Started) -> None:
    os.killpg(started.process.pid, signal.SIGINT)  # as a terminal does
    assert started.process.wait(60) == 130
    assert started.verdict() == "cancelled"


WRITES_MUCH = """
import time
open('/workspace/artifacts/made.txt', 'w').write('m')
for n in range(30): print(n, flush=True); time.sleep(0.02)
"""


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize(
    ("shell", "status", "told"),
    [
        pytest.param('"$@" | head -n 1; exit "${PIPESTATUS[0]}"', 0, "", id="reader-goes-away"),
        pytest.param('"$@" >/dev/full', 125, "belljar: the output cannot be used: No space left", id="full"),
        pytest.param('"$@" >&-', 0, "", id="closed"),
        pytest.param('"$@" --json >/dev/full', 125, "the output cannot be used", id="full-json"),
    ],
)
def test_files_land_whatever_becomes_of_the_output(
    tmp_path: Path, shell: str, status: int, told: str
) -> None:
    command = [*BELLJAR, "run", "--local", "--output-prefix", "docs/it", "--code", WRITES_MUCH]
    ran = subprocess.run(
        ["bash", "-c", shell, "-", *command],
        env=environment(tmp_path / "data"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == status, ran.stderr
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
    assert (tmp_path / "docs/it/made.txt").read_text() == "m"


def test_a_file_that_did_not_land_is_no_success(caller: Belljar) -> None:
    code = "open('/workspace/artifacts/a.txt', 'w').write('x')"
    arguments = ("run", "--code", code, "--output-prefix", "docs/a")
    assert caller(*arguments).status == 0
    again = caller(*arguments)
    assert again.status == 1
    assert "not taken: artifacts/a.txt (exists; --overwrite replaces it)" in again.err
    assert caller(*arguments, "--overwrite").status == 0


@pytest.mark.parametrize("name", ["./data.csv", "{here}/data.csv", "data.csv"])
def test_a_name_may_be_as_a_shell_completes_it(caller: Belljar, name: str) -> None:
    Path("data.csv").write_text("1,2")
    asked = name.format(here=Path.cwd())
    ran = caller("run", "--code", "print(open('data.csv').read())", "--input", asked)
    assert (ran.status, ran.out) == (0, "1,2\n")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "./../x", "."])
def test_a_name_that_leads_out_of_the_project_is_refused(caller: Belljar, name: str) -> None:
    ran = caller("run", "--code", "1", "--input", name)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "PATH_NOT_ALLOWED" in ran.err


def test_an_output_prefix_may_be_as_a_shell_completes_it(caller: Belljar) -> None:
    code = "open('/workspace/artifacts/a.txt', 'w').write('x')"
    assert caller("run", "--code", code, "--output-prefix", "./docs/here/").status == 0
    assert Path("docs/here/a.txt").read_text() == "x"


def test_a_project_that_cannot_be_written_to_says_what_to_do(caller: Belljar) -> None:
    ran = caller("run", "--code", "1", "--project", "/proc")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "--project DIR" in ran.err


def test_a_file_that_is_no_program_is_not_taken_for_one(caller: Belljar) -> None:
    Path("data.csv").write_text("a,b")
    ran = caller("run", "data.csv")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "UNSUPPORTED_LANGUAGE" in ran.err
    assert "--language" in ran.err
    Path("script").write_text("print(1)")
    assert caller("run", "script").out == "1\n"


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
                except OSError:
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
    assert caller("run", "--code", "print(1)", "--timeout", "25").out == "1\n"


def test_who_listens_on_a_port_is_known() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody else gets it meanwhile
        port = held.getsockname()[1]
        assert not set(_listeners(port))
        held.listen()
        assert set(_listeners(port)) == {os.geteuid()}


def test_names_and_programs_do_not_depend_on_the_locale(jail: None, tmp_path: Path) -> None:
    """Where Python itself would read files, and names of files, as ASCII."""
    (tmp_path / "ünï.py").write_text("print('grüße'); open('ä.txt', 'w').write('ö')", encoding="utf-8")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = subprocess.run(
        [*BELLJAR, "run", "--local", "--json", "ünï.py"],
        env=environment(tmp_path / "data", **locale),
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    told = json.loads(ran.stdout)
    assert told["stdout"] == "grüße\n"
    [file] = told["written_files"]
    assert (tmp_path / file).read_text(encoding="utf-8") == "ö"


def test_a_limit_too_small_for_any_jar_is_the_askers_mistake(caller: Belljar) -> None:
    ran = caller("run", "--memory-mb", "1", "--code", "1")
    assert ran.status == 2
    assert "BAD_REQUEST: memory_mb is 1, but a jar takes 8 for itself" in ran.err
