from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from belljar import __version__
from belljar.cli import app, main

SEED004 = str(Path(__file__).parent / "policy" / "seed004.yaml")
BELLJAR = [sys.executable, "-c", "from belljar.cli import main; main()"]


class Ran(NamedTuple):
    status: object
    out: str
    err: str


@pytest.fixture
def belljar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["belljar", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return Ran(caught.value.code, *capsys.readouterr())

    return run


Belljar = Callable[..., Ran]


def test_version_is_printed(belljar: Belljar) -> None:
    assert belljar("--version") == (0, f"belljar {__version__}\n", "")


def test_version_does_not_import_the_world() -> None:
    code = (
        "import sys; sys.argv = ['belljar', '--version']\nfrom belljar.cli import main\n"
        "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(ran.stderr.split())
    assert "typer" in modules
    assert modules.isdisjoint(
        {"yaml", "rich.table", "tree_sitter", "asyncio", "belljar.policy", "belljar.config"}
    )


def test_good_policy_is_summed_up(belljar: Belljar) -> None:
    assert belljar("policy", "check", SEED004) == (0, f"{SEED004}: ok, 3 roles, 4 tools\n", "")


def test_bad_policy_is_one_line_on_stderr(belljar: Belljar, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("policies:\n  default:\n    netwrok_access: false\n")
    expected = (
        f"belljar: BAD_POLICY: {path}:3: unknown key `netwrok_access`; did you mean `network_access`?\n"
    )
    assert belljar("policy", "check", str(path)) == (2, "", expected)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["policy", "check", "/no/such/file"], id="no-file"),
        pytest.param(["policy", "check", "/"], id="directory"),
        pytest.param(["policy", "explain", "--policy", "/no/such/file"], id="no-policy"),
        pytest.param(["policy", "explain", "--profile", "none"], id="no-profile"),
        pytest.param(["policy", "explain", "--profile", "default", "--policy", SEED004], id="both"),
        pytest.param(["policy", "explain", "--role", "nobody"], id="no-role"),
        pytest.param(["policy", "explain", "--tool", "Bash"], id="no-tool"),
        pytest.param(["policy", "explain", "--skill", "/no/such/file"], id="no-skill"),
        pytest.param(["policy", "explain", "--set", "limits.pids"], id="no-value"),
        pytest.param(["policy", "explain", "--set", "limits.pids=many"], id="text-for-number"),
        pytest.param(["policy", "explain", "--set", "limits.pids=" + "9" * 5000], id="5000-digits"),
        pytest.param(["policy", "explain", "--set", "limits.pids=" + "[" * 100_000], id="deep"),
        pytest.param(["policy", "explain", "--set", "limits.pids=1", "--set", "limits.pids=2"], id="twice"),
        pytest.param(["policy", "explain", "--set", "limits.memory_mb=999999"], id="escalation"),
    ],
)
def test_every_failure_is_one_line_and_status_2(belljar: Belljar, arguments: list[str]) -> None:
    ran = belljar(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith("belljar: ")
    assert ran.err.count("\n") == 1
    assert len(ran.err) < 400


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["policy", "explain", "--profile", "none"], "BAD_REQUEST", id="explain"),
        pytest.param(["run", "--local", "--code", "1", "--engine", "moon"], "BAD_CONFIG", id="run"),
    ],
)
def test_with_json_an_error_is_json_on_stderr(belljar: Belljar, arguments: list[str], code: str) -> None:
    ran = belljar(*arguments, "--json")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    told = json.loads(ran.err)
    assert (told["status"], told["error"]["code"]) == ("error", code)
    assert told["error"]["message"]


def test_json_of_the_program_is_not_ours(belljar: Belljar) -> None:
    ran = belljar("run", "--local", "--engine", "moon", "--", "p.py", "--json")
    assert ran.err.startswith("belljar: BAD_CONFIG: ")


def test_every_verb_that_prints_its_own_words_has_json() -> None:
    """The others print what a program or a file is, or JSON anyway."""
    without = {
        name
        for name, command in verbs(typer.main.get_command(app))
        if not any("--json" in param.opts for param in command.params)
    }
    assert without - {"policy check"} == {
        "execs code",
        "execs receipt",
        "mcp",
        "session files cat",
        "session shell",
        "skills invoke",
        "tools call",
        "tools legacy",
    }


def verbs(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, below in command.commands.items():
        yield from verbs(below, *path, name)


def test_escalation_says_field_ceiling_and_layer(belljar: Belljar) -> None:
    ran = belljar("policy", "explain", "--set", "limits.memory_mb=8192")
    sentence = "limits.memory_mb: asked for 8192, but layer 'settings' grants 4096"
    assert ran.err == f"belljar: POLICY_ESCALATION: {sentence}\n"


def test_explain_prints_a_row_for_every_field(belljar: Belljar) -> None:
    ran = belljar(
        "policy", "explain", "--policy", SEED004, "--role", "web_scraper", "--tool", "browser_automation"
    )
    assert ran.status == 0
    rows = {cells[1]: cells[2:] for line in ran.out.splitlines() if len(cells := columns(line)) > 2}
    assert rows["limits.memory_mb"] == ["512", "settings", "512", "settings", ""]
    assert rows["network.enabled"] == ["true", "role:web_scraper", "true", "role:web_scraper", ""]
    assert rows["image"] == ["-", "system", "none", "system", ""]
    assert "denied_addresses=127.0.0.0/8, 10.0.0.0/8, 192.168.0.0/16" in ran.out
    assert "addresses=none" in ran.out


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("┃", "│").split("│")]


def test_explain_as_json_has_the_grant_and_who_set_it(belljar: Belljar) -> None:
    ran = belljar(
        "policy", "explain", "--policy", SEED004, "--tool", "shell_exec", "--set", "pids=9", "--json"
    )
    answer = json.loads(ran.out)
    assert answer["grant"]["limits"]["pids"] == 9
    assert len(answer["digest"]) == 64
    rows = {row.pop("field"): row for row in answer["fields"]}
    assert rows["limits.pids"] == {"value": 9, "layer": "request", "ceiling": 128, "ceiling_layer": "system"}
    assert rows["commands"]["value"][0]["layer"] == "tool:shell_exec"


def test_value_of_a_setting_may_be_json(belljar: Belljar) -> None:
    ran = belljar("policy", "explain", "--set", 'languages=["python"]', "--set", "approve_at=high", "--json")
    grant = json.loads(ran.out)["grant"]
    assert (grant["languages"], grant["approve_at"]) == (["python"], "high")


def test_skill_is_a_layer(belljar: Belljar, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"id": "data.plot", "limits": {"memory_mb": 64}}')
    ran = belljar("policy", "explain", "--skill", str(manifest), "--json")
    rows = {row["field"]: row for row in json.loads(ran.out)["fields"]}
    assert rows["limits.memory_mb"]["layer"] == "skill:data.plot"


def test_reader_that_goes_away_gets_no_traceback() -> None:
    with subprocess.Popen(
        [*BELLJAR, "policy", "explain", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_interrupt_ends_with_status_130_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("belljar.cli.app", interrupted)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130


def test_output_survives_a_terminal_without_its_characters(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {denied_commands: [löschen]}}", "utf-8")
    ran = subprocess.run(
        [*BELLJAR, "policy", "explain", "--policy", str(policy)],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"l\\xf6schen" in ran.stdout
