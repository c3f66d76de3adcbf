from __future__ import annotations

from typing import Any

import pytest

from belljar.errors import (
    BadRequest,
    BelljarError,
    CommandNotAllowed,
    LimitExceeded,
    PathNotAllowed,
    UnsupportedLanguage,
)
from belljar.execution.requests import MAX_ARGUMENT_BYTES, Plan, plan
from belljar.models import (
    Grant,
    InputFile,
    Language,
    Limits,
    PatternRules,
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


@pytest.mark.parametrize("name", ["PATH", "BASH_ENV", "LD_PRELOAD", "BASH_FUNC_ls%%"])
def test_a_variable_that_decides_what_runs_is_refused_under_a_list(name: str) -> None:
    with pytest.raises(CommandNotAllowed) as refused:
        planned(ONLY_LS, code="ls", language=Language.BASH, env={name: "x"})
    assert refused.value.field == "env"
    planned(code="ls", language=Language.BASH, env={name: "x"})
