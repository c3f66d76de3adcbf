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
from belljar.models import (
    Grant,
    InputFile,
    Language,
    Limits,
    Network,
    PatternRules,
    RiskTier,
    RunRequest,
    Start,
)

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


def test_code_may_be_an_argument_of_its_interpreter() -> None:
    found = planned(code="ls", language=Language.BASH, inline=("-lc",), args=("bash", "a"))
    assert (found.command.argv, found.files) == (("bash", "-lc", "ls", "bash", "a"), ())


def test_an_interpreter_may_be_given_arguments_alone() -> None:
    found = planned(language=Language.PYTHON, inline=(), args=("x.py", "a"))
    assert (found.command.argv, found.command.warm) == (("python3", "x.py", "a"), False)


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
        pytest.param({"code": "", "env": {"A": "x\0"}}, BadRequest, "env.A", id="nul-in-env"),
        pytest.param(
            {"code": "", "env": {"A": "x" * (1 << 20)}}, LimitExceeded, "env.A", id="variable-of-1-mb"
        ),
        pytest.param(
            {"code": "", "env": {f"A{n}": "x" * 100_000 for n in range(10)}},
            LimitExceeded,
            "env",
            id="variables-of-1-mb",
        ),
        pytest.param({"code": "", "args": ("x" * (1 << 20),)}, LimitExceeded, "args", id="args-of-1-mb"),
        pytest.param(
            {"code": "x" * (1 << 20), "inline": ("-c",)}, LimitExceeded, "code", id="inline-code-of-1-mb"
        ),
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
        pytest.param(
            {"command": ("python3", "data.txt"), "files": (InputFile("data.txt", EVIL),)}, id="any-name"
        ),
        pytest.param(
            {
                "command": ("python3", "../../inputs/x"),
                "inputs": (InputFile("x", EVIL),),
                "working_dir": "deep",
            },
            id="from-a-folder",
        ),
        pytest.param(
            {"command": ("python3", "-m", "lib.x"), "files": (InputFile("lib/x.py", EVIL),)}, id="module"
        ),
        pytest.param(
            {"code": "python3 < x", "language": Language.BASH, "files": (InputFile("x", EVIL),)},
            id="redirected",
        ),
        pytest.param(
            {
                "code": "python3 x; bash x; node x",
                "language": Language.BASH,
                "files": (InputFile("x", EVIL),),
            },
            id="in-every-language",
        ),
        pytest.param({"command": ("env", "python3"), "stdin": EVIL}, id="stdin-behind-env"),
        pytest.param({"command": ("timeout", "5", "python3"), "stdin": EVIL}, id="stdin-behind-timeout"),
        pytest.param({"code": "python3", "language": Language.BASH, "stdin": EVIL}, id="stdin-of-a-script"),
        pytest.param({"command": ("python3.11", "-c", EVIL.decode())}, id="version"),
        pytest.param({"command": ("python3", "-Ic", EVIL.decode())}, id="joined-options"),
        pytest.param({"command": ("python3", "-c" + EVIL.decode())}, id="joined-code"),
        pytest.param(
            {"command": ("node", "--eval=require('child_process').execSync('x')")}, id="node-joined"
        ),
    ],
)
def test_the_program_is_read_wherever_it_lies(request_: dict[str, Any]) -> None:
    findings = risk_of(RunRequest(**request_), Grant()).findings
    assert any("os.system" in one.reason or one.tier is RiskTier.CRITICAL for one in findings)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"command": ("python3", "left.py")}, id="file-of-a-session"),
        pytest.param({"command": ("node", "x.txt")}, id="node"),
        pytest.param({"command": ("python3", "-m", "left")}, id="module"),
        pytest.param({"command": ("./left",)}, id="program"),
        pytest.param({"command": ("./ls",)}, id="program-with-a-harmless-name"),
        pytest.param({"command": ("python3",), "stdin_open": True}, id="input-to-come"),
        pytest.param(
            {"command": ("python3", "-i", "x.py"), "files": (InputFile("x.py", b""),)}, id="and-input"
        ),
        pytest.param({"command": ("node", "--require", "./x"), "files": (InputFile("x", b""),)}, id="option"),
        pytest.param(
            {
                "command": ("./x",),
                "files": (InputFile("x", b"#!/bin/bash\npython3 y"), InputFile("y", b"1")),
            },
            id="of-another-script",
        ),
        pytest.param({"command": ("perl", "-e", "1")}, id="perl"),
        pytest.param({"command": ("awk", 'BEGIN{system("x")}')}, id="awk"),
        pytest.param({"code": "cat a | python3", "language": Language.BASH}, id="piped"),
        pytest.param({"code": "echo a | xargs python3", "language": Language.BASH}, id="by-xargs"),
        pytest.param(
            {"language": Language.PYTHON, "inline": (), "args": ("left.py",)}, id="given-to-the-interpreter"
        ),
    ],
)
def test_a_program_that_cannot_be_read_is_high(request_: dict[str, Any]) -> None:
    assert risk_of(RunRequest(**request_), Grant()).tier is RiskTier.HIGH


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"command": ("python3", "x"), "files": (InputFile("x", b"1"),)}, id="file"),
        pytest.param(
            {"command": ("python3", "x.py"), "files": (InputFile("x.py", b"1"),), "stdin": b"{no"}, id="data"
        ),
        pytest.param({"command": ("python3", "-IX", "dev", "-Wd", "-"), "stdin": b"1"}, id="options"),
        pytest.param({"command": ("python3",)}, id="nothing"),
        pytest.param({"command": ("python3", "--version")}, id="version"),
        pytest.param({"command": ("/usr/bin/node", "-e", "1")}, id="text"),
        pytest.param(
            {"command": ("./x",), "files": (InputFile("x", b"#!/usr/bin/python3\n1"),)}, id="shebang"
        ),
    ],
)
def test_a_program_that_was_read_counts_as_what_it_is(request_: dict[str, Any]) -> None:
    assert risk_of(RunRequest(**request_), Grant()).tier is RiskTier.MEDIUM


def test_a_way_to_the_network_is_found() -> None:
    found = risk_of(RunRequest(code="1"), Grant(network=Network(enabled=True)))
    assert (found.tier, [one.reason for one in found.findings]) == (
        RiskTier.MEDIUM,
        ["has a way to the network"],
    )


def test_secrets_that_it_may_use_are_found() -> None:
    grant = Grant(network=Network(enabled=True))
    found = risk_of(RunRequest(code="1"), grant, ("github", "shop")).findings[0]
    assert (found.tier, found.reason) == (RiskTier.HIGH, "may use secrets: github, shop")


def test_files_that_are_no_scripts_are_not_read() -> None:
    files = (InputFile("data.csv", EVIL), InputFile("notes.txt", b"rm -rf /"))
    assert risk_of(RunRequest(code="1", files=files), Grant()).tier is RiskTier.SAFE


def test_more_scripts_than_can_be_read_make_a_person_look() -> None:
    files = tuple(InputFile(f"{n}.py", b"# " + b"x" * 200_000) for n in range(8))
    assert risk_of(RunRequest(code="1", files=files), Grant()).tier is RiskTier.HIGH


def test_a_finding_in_a_file_names_the_file() -> None:
    (finding,) = risk_of(RunRequest(code="1", files=(InputFile("lib/h.py", EVIL),)), Grant()).findings
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
