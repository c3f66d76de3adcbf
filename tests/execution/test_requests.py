from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from belljar.engines.base import WORK, Command
from belljar.errors import BadRequest, BelljarError, LimitExceeded, PathNotAllowed, UnsupportedLanguage
from belljar.execution.requests import Plan, plan
from belljar.models import Grant, InputFile, Language, Limits, RunRequest, Start

INTERPRETERS: Mapping[Language, tuple[str, ...]] = {
    Language.PYTHON: ("/usr/bin/python3",),
    Language.BASH: ("bash",),
}
CODE = RunRequest(code="print(1)")
COMMAND = RunRequest(command=("cat", "data.txt"))


def planned(request: RunRequest, **limits: int) -> Plan:
    return plan(request, Grant(limits=Limits(**limits)), INTERPRETERS, "jail")


def files(*paths: str, size: int = 0) -> tuple[InputFile, ...]:
    return tuple(InputFile(path, bytes(size)) for path in paths)


def test_code_becomes_a_script_that_is_forked() -> None:
    result = planned(replace(CODE, args=("a", "b c"), env={"NAME": "value"}, stdin=b"in"))
    assert result.files == (InputFile("main.py", b"print(1)"),)
    assert result.command == Command(
        argv=(f"{WORK}/main.py", "a", "b c"), warm=True, env={"NAME": "value"}, stdin=b"in"
    )


def test_a_new_interpreter_is_started_where_that_was_asked_for() -> None:
    command = planned(replace(CODE, start=Start.EXEC)).command
    assert (command.argv, command.warm) == (("/usr/bin/python3", f"{WORK}/main.py"), False)


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED"])
def test_a_variable_that_python_reads_at_its_start_needs_a_new_interpreter(name: str) -> None:
    command = planned(replace(CODE, env={name: "1"})).command
    assert (command.argv, command.warm) == (("/usr/bin/python3", f"{WORK}/main.py"), False)


def test_another_language_has_its_own_interpreter() -> None:
    result = planned(replace(CODE, language=Language.BASH, code="echo é"))
    assert result.files == (InputFile("main.sh", "echo é".encode()),)
    assert (result.command.argv, result.command.warm) == (("bash", f"{WORK}/main.sh"), False)


def test_a_command_is_passed_as_it_is() -> None:
    result = planned(replace(COMMAND, files=files("data.txt"), inputs=files("data.txt")))
    assert result.command == Command(argv=("cat", "data.txt"))
    assert (result.files, result.inputs) == (files("data.txt"), files("data.txt"))


def test_the_working_directory_is_below_work() -> None:
    assert planned(replace(COMMAND, working_dir="a/b")).command.cwd == f"{WORK}/a/b"


def test_empty_code_is_a_program() -> None:
    assert planned(RunRequest(code="")).files == (InputFile("main.py", b""),)


@pytest.mark.parametrize(
    ("request_", "error", "field"),
    [
        pytest.param(RunRequest(), BadRequest, "code", id="nothing-to-run"),
        pytest.param(replace(CODE, command=("x",)), BadRequest, "command", id="code-and-command"),
        pytest.param(RunRequest(command=()), BadRequest, "command", id="empty-command"),
        pytest.param(RunRequest(command=("",)), BadRequest, "command", id="command-without-a-name"),
        pytest.param(replace(COMMAND, args=("x",)), BadRequest, "args", id="arguments-beside-a-command"),
        pytest.param(RunRequest(command=("a\0b",)), BadRequest, "command", id="nul-in-command"),
        pytest.param(replace(CODE, args=("a\0b",)), BadRequest, "args", id="nul-in-arguments"),
        pytest.param(RunRequest(command=("\ud800",)), BadRequest, "command", id="surrogate-in-command"),
        pytest.param(replace(CODE, args=("\ud800",)), BadRequest, "args", id="surrogate-in-arguments"),
        pytest.param(RunRequest(code="x = '\ud800'"), BadRequest, "code", id="surrogate-in-code"),
        pytest.param(RunRequest(command=("x", "y" * (1 << 20))), LimitExceeded, "command", id="long-command"),
        pytest.param(RunRequest(command=("x",) * 600_000), LimitExceeded, "command", id="many-words"),
        pytest.param(replace(CODE, args=("y" * (1 << 20),)), LimitExceeded, "args", id="long-argument"),
        pytest.param(replace(CODE, env={"A": "b\0c"}), BadRequest, "env", id="nul-in-value"),
        pytest.param(replace(CODE, env={"A\0": "b"}), BadRequest, "env", id="nul-in-name"),
        pytest.param(replace(CODE, env={"": "b"}), BadRequest, "env", id="no-name"),
        pytest.param(replace(CODE, env={"A=B": "c"}), BadRequest, "env", id="equals-in-name"),
        pytest.param(replace(CODE, env={"A": "\udcff"}), BadRequest, "env", id="surrogate-in-value"),
        pytest.param(replace(CODE, env={"A": "x" * (1 << 20)}), LimitExceeded, "env", id="long-value"),
        pytest.param(
            replace(CODE, env={f"N{n}": "x" * 1000 for n in range(1000)}),
            LimitExceeded,
            "env",
            id="large-env",
        ),
        pytest.param(
            replace(CODE, language=Language.JAVASCRIPT), UnsupportedLanguage, "language", id="no-interpreter"
        ),
        pytest.param(
            replace(CODE, language="cobol"),  # type: ignore[arg-type]
            UnsupportedLanguage,
            "language",
            id="unknown-language",
        ),
        pytest.param(replace(CODE, files=files("a", "a")), BadRequest, "input_files", id="given-twice"),
        pytest.param(replace(CODE, files=files("a", "a/b")), BadRequest, "input_files", id="file-and-folder"),
        pytest.param(
            replace(CODE, files=files("a/b/c", "a")), BadRequest, "input_files", id="folder-and-file"
        ),
        pytest.param(
            replace(CODE, files=files("main.py")), BadRequest, "input_files", id="in-place-of-the-code"
        ),
        pytest.param(replace(CODE, files=files("main.py/x")), BadRequest, "input_files", id="below-the-code"),
        pytest.param(replace(CODE, files=files("../x")), PathNotAllowed, "input_files", id="path-of-a-file"),
        pytest.param(replace(CODE, inputs=files("/x")), PathNotAllowed, "inputs", id="path-of-an-input"),
        pytest.param(replace(CODE, inputs=files("a", "a")), BadRequest, "inputs", id="input-given-twice"),
        pytest.param(
            replace(CODE, inputs=files("a", "a/b")), BadRequest, "inputs", id="input-file-and-folder"
        ),
        pytest.param(
            replace(CODE, files=files("\ud800")), PathNotAllowed, "input_files", id="surrogate-in-path"
        ),
        pytest.param(
            replace(CODE, output_files=("../x",)), PathNotAllowed, "output_files", id="path-of-output"
        ),
        pytest.param(
            replace(CODE, output_files=("a", "a")), BadRequest, "output_files", id="output-given-twice"
        ),
        pytest.param(
            replace(CODE, working_dir="/tmp"), PathNotAllowed, "working_dir", id="absolute-directory"
        ),
        pytest.param(
            replace(CODE, working_dir="a/../b"), PathNotAllowed, "working_dir", id="directory-climbs"
        ),
        pytest.param(
            replace(CODE, files=files("a"), working_dir="a"),
            BadRequest,
            "working_dir",
            id="directory-is-a-file",
        ),
        pytest.param(
            replace(CODE, files=files("a"), working_dir="a/b"),
            BadRequest,
            "working_dir",
            id="directory-in-a-file",
        ),
        pytest.param(
            replace(CODE, working_dir="main.py"), BadRequest, "working_dir", id="directory-is-the-code"
        ),
    ],
)
def test_a_fault_names_its_field(request_: RunRequest, error: type[BelljarError], field: str) -> None:
    with pytest.raises(error) as caught:
        planned(request_)
    assert caught.value.field == field
    assert len(caught.value.message) < 300
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("request_", "limits", "field"),
    [
        pytest.param(replace(COMMAND, files=files("a", "b")), {"input_files": 1}, "input_files", id="files"),
        pytest.param(
            replace(COMMAND, files=files("a"), inputs=files("b")),
            {"input_files": 1},
            "input_files",
            id="together",
        ),
        pytest.param(
            replace(COMMAND, files=files("a", size=(1 << 20) + 1)), {"input_mb": 1}, "input_files", id="bytes"
        ),
        pytest.param(
            replace(COMMAND, files=files("a", size=1 << 19), inputs=files("b", size=(1 << 19) + 1)),
            {"input_mb": 1},
            "input_files",
            id="bytes-together",
        ),
        pytest.param(replace(COMMAND, stdin=bytes((1 << 20) + 1)), {"input_mb": 1}, "stdin", id="stdin"),
        pytest.param(
            replace(COMMAND, output_files=("a", "b")),
            {"artifact_files": 1},
            "output_files",
            id="output-files",
        ),
    ],
)
def test_more_than_is_granted_is_refused(request_: RunRequest, limits: dict[str, int], field: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        planned(request_, **limits)
    assert caught.value.field == field


def test_as_much_as_is_granted_passes() -> None:
    request = replace(COMMAND, files=files("a", size=1 << 19), inputs=files("b", size=1 << 19))
    assert planned(request, input_files=2, input_mb=1).files == request.files


def test_code_is_not_one_of_the_inputs() -> None:
    assert planned(CODE, input_files=0, input_mb=0).command.warm


def test_the_longest_argument_of_the_kernel_passes() -> None:
    longest = "x" * ((128 << 10) - 1)
    assert planned(RunRequest(command=("echo", longest))).command.argv[1] == longest


def test_a_language_that_is_not_granted_is_refused() -> None:
    grant = Grant(languages=frozenset({Language.BASH}))
    with pytest.raises(UnsupportedLanguage, match="python is not granted") as caught:
        plan(CODE, grant, INTERPRETERS, "jail")
    assert caught.value.field == "language"


def test_a_missing_interpreter_is_named_with_its_engine() -> None:
    with pytest.raises(
        UnsupportedLanguage, match=r"jail has no interpreter for typescript; it has bash, python"
    ):
        planned(replace(CODE, language=Language.TYPESCRIPT))


def test_the_same_path_may_be_a_file_and_an_input() -> None:
    result = planned(replace(CODE, files=files("data.csv"), inputs=files("data.csv")))
    assert [file.path for file in result.files] == ["data.csv", "main.py"]
