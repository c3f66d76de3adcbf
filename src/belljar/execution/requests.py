"""Is this a request that can be run under this grant, and what does an engine have to do for it?

Everything a caller can get wrong is found here, before any resource exists: each fault is one
error that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from belljar import paths
from belljar.engines.base import WORK, Area, Command
from belljar.errors import BadRequest, CommandNotAllowed, LimitExceeded, UnsupportedLanguage
from belljar.models import Grant, InputFile, Language, RunRequest, Start
from belljar.policy import packages
from belljar.policy.commands import check_argv, check_commands

SCRIPTS = {
    Language.PYTHON: "main.py",
    Language.BASH: "main.sh",
    Language.JAVASCRIPT: "main.js",
    Language.TYPESCRIPT: "main.ts",
}
_INTERPRETERS = {
    Language.PYTHON: "python3",
    Language.BASH: "bash",
    Language.JAVASCRIPT: "node",
    Language.TYPESCRIPT: "node",
}

MAX_ARGUMENT_BYTES = 131_071
"""The kernel's limit for one string of argv or the environment, execve(2)."""
MAX_ARGUMENTS_BYTES = 512 << 10

PACKAGES = ".packages"
"""Below `/workspace/inputs`: what was installed for the program."""

_SEARCHED = f"/workspace/{Area.INPUTS}/{PACKAGES}"
_DECIDES_WHAT_RUNS = frozenset({"BASHOPTS", "BASH_ENV", "ENV", "PATH", "SHELLOPTS"})


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request in an engine's terms."""

    command: Command
    files: tuple[InputFile, ...]
    """For `work`, the script among them."""
    inputs: tuple[InputFile, ...]


def script_of(request: RunRequest) -> str | None:
    """The file that `code` is written to, in the folder the program starts in."""
    is_file = request.code is not None and request.inline is None
    return SCRIPTS[request.language or Language.PYTHON] if is_file else None


def command_of(request: RunRequest) -> tuple[str, ...]:
    """What is run, as a person would write it; the code itself is left out."""
    if request.command is not None:
        return request.command
    if request.inline is not None:
        name = _INTERPRETERS[request.language or Language.PYTHON]
        return (name, *request.inline, *request.args)
    script = script_of(request)
    return (script, *request.args) if script is not None else ()


def plan(
    request: RunRequest, grant: Grant, interpreters: Mapping[Language, tuple[str, ...]], engine: str
) -> Plan:
    files = request.files
    if request.command is not None:
        if request.code is not None:
            raise BadRequest("give either code or a command, not both", field="command")
        if not request.command or not request.command[0]:
            raise BadRequest("the command is empty", field="command")
        argv, warm = request.command, False
    elif request.context is not None:
        if _language(request, grant) is not Language.PYTHON:
            raise BadRequest("a context is a Python; it runs no other language", field="context")
        _encoded(request.code)
        argv, warm = (), True
    elif request.inline is not None:
        interpreter = _interpreter(_language(request, grant), interpreters, engine)
        code = () if request.code is None else (request.code,)
        argv, warm = (*interpreter, *request.inline, *code, *request.args), False
    else:
        language = _language(request, grant)
        script = SCRIPTS[language]
        if any(file.path == script for file in files):
            raise BadRequest(
                f"{script} is where the code goes; name the input file otherwise", field="input_files"
            )
        files = (*files, InputFile(script, _encoded(request.code)))
        # With packages in a new interpreter: the warm one may have others of that name imported.
        warm = language is Language.PYTHON and request.start is Start.FORK and not request.packages
        interpreter = _interpreter(language, interpreters, engine)
        argv = (*(() if warm else interpreter), f"{WORK}/{script}", *request.args)
    _check_files("input_files", files, grant)
    _check_files("inputs", request.inputs, grant)
    _check_together((*files, *request.inputs), grant)
    _check_outputs(request.output_files or (), grant)
    cwd = WORK
    if request.working_dir:
        cwd = f"{WORK}/{paths.validate(request.working_dir, field='working_dir')}"
    if request.inline is not None and request.code is not None:
        _check_texts([("code", request.code)])
    field = "args" if request.command is None else "command"
    _check_texts([(field, text) for text in argv])
    check_environment(request.env, grant)
    _check_commands(request, grant)
    env = dict(request.env)
    if request.packages:
        _check_packages(request, grant)
        env["PYTHONPATH"] = ":".join(filter(None, (env.get("PYTHONPATH"), _SEARCHED)))
    command = Command(
        argv=argv,
        warm=warm,
        env=env,
        cwd=cwd,
        stdin=request.stdin,
        stdin_open=request.stdin_open,
        context=request.context,
        cell=(request.code or "") if request.context is not None else "",
    )
    return Plan(command, files, request.inputs)


def check_environment(env: Mapping[str, str], grant: Grant) -> None:
    for name in env:
        if not name or "=" in name:
            raise BadRequest(f"{name!r} cannot be the name of a variable", field="env")
        if grant.commands and (name in _DECIDES_WHAT_RUNS or name.startswith(("LD_", "BASH_FUNC_"))):
            message = f"{name} decides which program a name stands for, and a command list is in force"
            raise CommandNotAllowed(message, field="env")
    _check_texts([(f"env.{name[:100]}", f"{name}={value}") for name, value in env.items()])


def _check_commands(request: RunRequest, grant: Grant) -> None:
    if not grant.commands:
        return
    if request.command is not None:
        check_argv(request.command, grant.commands)
    elif request.language is Language.BASH and request.code is not None:
        check_commands(request.code, grant.commands)
    elif request.language is Language.BASH:
        check_argv(command_of(request), grant.commands)


def _check_packages(request: RunRequest, grant: Grant) -> None:
    language = request.language or (Language.PYTHON if request.code is not None else None)
    if language is not Language.PYTHON:
        message = f"packages are installed for Python programs, not for {language or 'a command'}"
        raise BadRequest(message, field=packages.FIELD)
    if request.context is not None:
        message = "a context has begun before; install packages for a program that is not in one"
        raise BadRequest(message, field=packages.FIELD)
    packages.check_allowed(packages.requirements(request.packages), grant.packages)
    for file in request.inputs:
        if file.path.partition("/")[0] == PACKAGES:
            message = f"{PACKAGES} is where packages go; name the input file otherwise"
            raise BadRequest(message, field="inputs")


def _language(request: RunRequest, grant: Grant) -> Language:
    if request.code is None and request.inline is None:
        raise BadRequest("there is neither code nor a command to run", field="code")
    language = request.language or Language.PYTHON
    if language not in grant.languages:
        allowed = ", ".join(sorted(grant.languages)) or "none"
        raise UnsupportedLanguage(f"{language} is not granted; granted: {allowed}", field="language")
    return language


def _interpreter(
    language: Language, interpreters: Mapping[Language, tuple[str, ...]], engine: str
) -> tuple[str, ...]:
    if language not in interpreters:
        have = ", ".join(sorted(interpreters))
        raise UnsupportedLanguage(
            f"engine {engine} has no interpreter for {language}; it has {have}", field="language"
        )
    return interpreters[language]


def _encoded(code: str | None) -> bytes:
    try:
        return (code or "").encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"the code is not valid text: {error.reason}", field="code") from error


def _check_files(field: str, files: Sequence[InputFile], grant: Grant) -> None:
    """Each path by the rules, no two the same, and none both a file and a folder."""
    seen = set()
    for file in files:
        path = paths.validate(file.path, field=field)
        if path in seen:
            raise BadRequest(f"{path} is given twice", field=field)
        seen.add(path)
    for path in seen:
        parts = path.split("/")
        for count in range(1, len(parts)):
            parent = "/".join(parts[:count])
            if parent in seen:
                raise BadRequest(f"{parent} cannot be a file and the folder of {path}", field=field)


def _check_together(files: Sequence[InputFile], grant: Grant) -> None:
    limits = grant.limits
    if len(files) > limits.input_files:
        raise LimitExceeded(
            f"{len(files)} files; at most {limits.input_files} are granted", field="input_files"
        )
    total = sum(len(file.content) for file in files)
    if total > limits.input_mb << 20:
        raise LimitExceeded(
            f"{total} bytes of files; at most {limits.input_mb} MB are granted", field="input_files"
        )


def _check_outputs(wanted: Sequence[str], grant: Grant) -> None:
    if len(wanted) > grant.limits.artifact_files:
        most = grant.limits.artifact_files
        raise LimitExceeded(f"{len(wanted)} output files; at most {most} are granted", field="output_files")
    total = sum(len(paths.validate(path, field="output_files").encode()) for path in wanted)
    if total > MAX_ARGUMENTS_BYTES:
        message = f"the names of the output files are {total} bytes; at most {MAX_ARGUMENTS_BYTES} fit"
        raise LimitExceeded(message, field="output_files")


def _check_texts(texts: Sequence[tuple[str, str]]) -> None:
    """What is passed to a program as it starts: each with the field that it is from."""
    total = 0
    for field, text in texts:
        if "\0" in text:
            raise BadRequest("a NUL character cannot be passed to a program", field=field)
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise BadRequest(f"not valid text: {error.reason}", field=field) from error
        total += size
        if size > MAX_ARGUMENT_BYTES:
            message = f"{field} has a string of {size} bytes; at most {MAX_ARGUMENT_BYTES} fit"
            raise LimitExceeded(message, field=field)
        if total > MAX_ARGUMENTS_BYTES:
            field = field.partition(".")[0]
            raise LimitExceeded(f"{field} has more than {MAX_ARGUMENTS_BYTES} bytes in all", field=field)
