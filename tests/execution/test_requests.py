from __future__ import annotations

from typing import Any

import pytest

from belljar.errors import (
    ApprovalNeeded,
    BadRequest,
    BelljarError,
    CommandNotAllowed,
    LimitExceeded,
    PathNotAllowed,
    UnsupportedLanguage,
)
from belljar.execution.requests import MAX_ARGUMENT_BYTES, Plan, check_risk, plan, risk_of
from belljar.models import Grant, InputFile, Language, Limits, PatternRules, RiskTier, RunRequest, Start

INTERPRETERS = {Language.PYTHON: ("python3",), Language.BASH: ("bash",)}


def planned(grant: Grant | None = None, **request: Any) -> Plan:
    return plan(RunRequest(**request), grant or Grant(), INTERPRETERS, "test")


def test_python_starts_in_the_warm_interpreter() -> None:
    found = planned(code="print(1)", args=("a",))
    assert found.command.warm
    assert found.command.argv == ("/workspace/work/main.py", "a")
    assert found.files == (InputFile("main.py", b"print(1)"),)


def test_python_may_be_started_anew() -> None:
    found = planned(code="print(1)", start=Start.EXEC)
    assert (found.command.warm, found.command.argv) == (False, ("python3", "/workspace/work/main.py"))


def test_a_script_is_handed_to_its_interpreter() -> None:
    assert planned(code="ls", language=Language.BASH).command.argv == ("bash", "/workspace/work/main.sh")


def test_a_working_dir_is_below_work() -> None:
    assert planned(code="", working_dir="a/b").command.cwd == "/workspace/work/a/b"


@pytest.mark.parametrize(
    ("request_", "error", "field"),
    [
        pytest.param({}, BadRequest, "code", id="nothing-to-run"),
        pytest.param({"code": "", "command": ("ls",)}, BadRequest, "command", id="both"),
        pytest.param({"command": ()}, BadRequest, "command", id="empty-command"),
        pytest.param({"command": ("",)}, BadRequest, "command", id="nameless-command"),
        pytest.param({"code": "\ud800"}, BadRequest, "code", id="surrogate"),
        pytest.param(
            {"code": "", "language": Language.JAVASCRIPT}, UnsupportedLanguage, "language", id="no-node"
        ),
        pytest.param({"code": "", "env": {"A": "x\0"}}, BadRequest, "env", id="nul-in-env"),
        pytest.param({"code": "", "env": {"A=B": "x"}}, BadRequest, "env", id="equals-in-name"),
        pytest.param({"code": "", "env": {"": "x"}}, BadRequest, "env", id="nameless-variable"),
        pytest.param({"command": ("a\0b",)}, BadRequest, "command", id="nul-in-command"),
        pytest.param({"command": ("x" * (1 << 20),)}, LimitExceeded, "command", id="argument-of-1-mb"),
        pytest.param({"command": ("x" * 100_000,) * 10}, LimitExceeded, "command", id="argv-of-1-mb"),
        pytest.param({"code": "", "working_dir": "../x"}, PathNotAllowed, "working_dir", id="working-dir-up"),
        pytest.param(
            {"code": "", "output_files": ("/etc/x",)}, PathNotAllowed, "output_files", id="output-absolute"
        ),
        pytest.param(
            {"code": "", "output_files": ("a",) * 1001}, LimitExceeded, "output_files", id="outputs"
        ),
        pytest.param(
            {"code": "", "output_files": tuple(f"{n:0200}" for n in range(1000)) * 3},
            LimitExceeded,
            "output_files",
            id="long-output-names",
        ),
        pytest.param(
            {"code": "", "files": (InputFile("main.py", b""),)}, BadRequest, "input_files", id="script"
        ),
        pytest.param(
            {"code": "", "files": (InputFile("../x", b""),)}, PathNotAllowed, "input_files", id="up"
        ),
        pytest.param(
            {"code": "", "inputs": (InputFile("a\nb", b""),)}, PathNotAllowed, "inputs", id="newline"
        ),
        pytest.param(
            {"code": "", "files": (InputFile("a", b""),) * 2}, BadRequest, "input_files", id="twice"
        ),
        pytest.param(
            {"code": "", "files": (InputFile("a", b""), InputFile("a/b", b""))},
            BadRequest,
            "input_files",
            id="file-and-folder",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_field(
    request_: dict[str, Any], error: type[BelljarError], field: str
) -> None:
    with pytest.raises(error) as refused:
        planned(**request_)
    assert refused.value.field == field


def test_the_longest_argument_is_let_through() -> None:
    planned(command=("echo", "x" * MAX_ARGUMENT_BYTES))


def test_inputs_of_both_places_count_together() -> None:
    grant = Grant(limits=Limits(input_files=2))
    one = (InputFile("a", b""),)
    with pytest.raises(LimitExceeded, match="3 files"):  # the script is the third
        planned(grant, code="", files=one, inputs=one)


def test_more_bytes_than_granted_are_refused() -> None:
    with pytest.raises(LimitExceeded, match="1 MB"):
        planned(Grant(limits=Limits(input_mb=1)), code="", files=(InputFile("a", bytes((1 << 20) + 1)),))


def test_a_language_that_is_not_granted_is_refused() -> None:
    with pytest.raises(UnsupportedLanguage, match="granted: bash"):
        planned(Grant(languages=frozenset({"bash"})), code="")


ONLY_LS = Grant(commands=(PatternRules("tool:shell_exec", allow=("ls",)),))


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"code": "ls; rm x", "language": Language.BASH}, id="script"),
        pytest.param({"command": ("rm", "x")}, id="argv"),
        pytest.param({"command": ("bash", "-c", "ls && rm x")}, id="shell-in-argv"),
    ],
)
def test_a_command_that_is_not_on_the_list_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(CommandNotAllowed, match="rm"):
        planned(ONLY_LS, **request_)


def test_a_command_on_the_list_is_planned() -> None:
    assert planned(ONLY_LS, code="ls -l", language=Language.BASH).command.argv[0] == "bash"


def test_what_needs_a_person_is_not_run_without_one() -> None:
    grant = Grant(approve_at=RiskTier.HIGH)
    with pytest.raises(ApprovalNeeded, match="line 2: os.system"):
        check_risk(RunRequest(language=Language.PYTHON, code="import os\nos.system('x')"), grant)
    check_risk(RunRequest(language=Language.PYTHON, code="print(1)"), grant)


EVIL = b"import os\nos.system('x')\n"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            {"command": ("python3", "main.py"), "files": (InputFile("main.py", EVIL),)}, id="script"
        ),
        pytest.param({"code": "import helper", "files": (InputFile("helper.py", EVIL),)}, id="imported"),
        pytest.param({"code": "1", "inputs": (InputFile("deep/x.py", EVIL),)}, id="input"),
        pytest.param({"command": ("python3", "-"), "stdin": EVIL}, id="stdin"),
        pytest.param({"command": ("/usr/bin/python3.11",), "stdin": EVIL}, id="stdin-by-version"),
        pytest.param({"command": ("bash", "-s"), "stdin": b"rm -rf /"}, id="shell-stdin"),
        pytest.param(
            {"command": ("./run",), "files": (InputFile("run", b"#!/usr/bin/env python3\n" + EVIL),)},
            id="shebang",
        ),
        pytest.param({"command": ("python3.11", "-c", EVIL.decode())}, id="version"),
        pytest.param({"command": ("python3", "-Ic", EVIL.decode())}, id="joined-options"),
        pytest.param({"command": ("python3", "-c" + EVIL.decode())}, id="joined-code"),
        pytest.param(
            {"command": ("node", "--eval=require('child_process').execSync('x')")}, id="node-joined"
        ),
    ],
)
def test_the_program_is_read_wherever_it_lies(request_: dict[str, Any]) -> None:
    assert risk_of(RunRequest(**request_)).tier.rank >= RiskTier.HIGH.rank


def test_files_that_are_no_scripts_are_not_read() -> None:
    files = (InputFile("data.csv", EVIL), InputFile("notes.txt", b"rm -rf /"))
    assert risk_of(RunRequest(code="1", files=files)).tier is RiskTier.SAFE


def test_more_scripts_than_can_be_read_make_a_person_look() -> None:
    files = tuple(InputFile(f"{n}.py", b"# " + b"x" * 200_000) for n in range(8))
    assert risk_of(RunRequest(code="1", files=files)).tier is RiskTier.HIGH


def test_a_finding_in_a_file_names_the_file() -> None:
    (finding,) = risk_of(RunRequest(code="1", files=(InputFile("lib/h.py", EVIL),))).findings
    assert finding.reason.startswith("lib/h.py: os.system")
    assert finding.line == 2


def test_a_critical_tool_needs_a_person_whatever_the_code() -> None:
    grant = Grant(approve_at=RiskTier.CRITICAL, risk=RiskTier.CRITICAL)
    with pytest.raises(ApprovalNeeded):
        check_risk(RunRequest(language=Language.PYTHON, code="print(1)"), grant)


@pytest.mark.parametrize("name", ["PATH", "BASH_ENV", "LD_PRELOAD", "BASH_FUNC_ls%%"])
def test_a_variable_that_decides_what_runs_is_refused_under_a_list(name: str) -> None:
    with pytest.raises(CommandNotAllowed) as refused:
        planned(ONLY_LS, code="ls", language=Language.BASH, env={name: "x"})
    assert refused.value.field == "env"
    planned(code="ls", language=Language.BASH, env={name: "x"})
