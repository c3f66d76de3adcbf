"""Legacy tools: programs that work on a project's files, each as a subprocess or, if that is on, in a jar.

    <tools_dir>/<name>/tool.py     gets its arguments as JSON on stdin, answers with JSON on stdout
    <tools_dir>/<name>/tool.json   description, inputs, paths, allowed_paths, timeout_s

`paths` names the arguments that are paths of the project, and `allowed_paths` where they may lead. A
subprocess is trusted to keep to them. A jar gets the files under them and no others, and what it changed
elsewhere is refused. `sandbox.runner.features.use_for_tools` says which it is; a failure is a failure, and
never a reason to try the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from belljar import paths
from belljar.errors import BadPolicy, LimitExceeded, NotFound, PathNotAllowed
from belljar.flows.schemas import Schema, read_schema
from belljar.guest import tree
from belljar.policy.trees import from_json, read_text
from belljar.wording import nearest, printable, quoted

if TYPE_CHECKING:
    from belljar.client import AsyncClient

__all__ = ["Answer", "Backend", "Failure", "InJar", "InSubprocess", "LegacyTool", "call", "load_tools"]

PROGRAM = "tool.py"
DESCRIPTION = "tool.json"
MAX_ANSWER_BYTES = 1 << 20
MAX_FILES = 1000
MAX_BYTES = 50 << 20

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


class Failure(StrEnum):
    """Why there is no answer."""

    EXIT = "exit"  # the tool ended with an error
    TIMEOUT = "timeout"  # it took too long
    PROTOCOL = "protocol"  # what it wrote is not JSON


@dataclass(frozen=True, slots=True)
class Answer:
    value: Any
    failure: Failure | None
    exit_code: int | None
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyTool:
    name: str
    description: str
    inputs: Schema
    paths: tuple[str, ...]
    """Arguments that are paths of the project."""
    allowed_paths: tuple[str, ...]
    """Prefixes under which they must lie. Empty: nothing is allowed."""
    timeout_s: float
    file: Path
    program: str = field(repr=False)


class Backend(Protocol):
    async def __call__(self, tool: LegacyTool, arguments: bytes, project: Path) -> Answer:
        """Run it on a project. The arguments are checked; an answer that failed is an answer.

        Raises:
            BelljarError: it could not be run, or did what it may not.
        """


def load_tools(folder: Path) -> dict[str, LegacyTool]:
    """By name.

    Raises:
        BadPolicy: one of them cannot be used.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise BadPolicy(f"{printable(folder)} cannot be read: {error.strerror}") from error
    return {name: _load(folder / name) for name in names if (folder / name / PROGRAM).is_file()}


def _load(folder: Path) -> LegacyTool:
    root = from_json(read_text(folder / DESCRIPTION), f"{folder.name}/{DESCRIPTION}")
    entries = root.entries(("description", "inputs", "paths", "allowed_paths", "timeout_s"))
    for name in ("description", "inputs", "allowed_paths"):
        if name not in entries:
            raise root.fault(f"needs {quoted(name)}")
    inputs = read_schema(entries["inputs"])
    named = entries["paths"].items() if "paths" in entries else ()
    for node in named:
        if node.text() not in inputs.texts:
            raise node.fault(f"{quoted(node.text())} is not an input that is a string")
    for node in entries["allowed_paths"].items():
        with node.located():
            paths.validate(node.text().removesuffix("/"))
    timeout = entries["timeout_s"].content if "timeout_s" in entries else 30
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
        raise entries["timeout_s"].fault("must be a number of seconds up to 3600")
    return LegacyTool(
        name=folder.name,
        description=entries["description"].text(),
        inputs=inputs,
        paths=tuple(node.text() for node in named),
        allowed_paths=tuple(node.text() for node in entries["allowed_paths"].items()),
        timeout_s=float(timeout),
        file=folder / PROGRAM,
        program=read_text(folder / PROGRAM),
    )


async def call(
    tools: Mapping[str, LegacyTool],
    name: str,
    arguments: Mapping[str, Any],
    *,
    project: Path,
    backend: Backend,
) -> Answer:
    """
    Raises:
        NotFound: there is no tool of exactly that name.
        BadRequest: the arguments are not what it asks for, or lead where it may not go.
    """
    if name not in tools:
        raise NotFound(f"there is no tool {quoted(name)}{nearest(name, tools)}", field="tool")
    tool = tools[name]
    tool.inputs.check(arguments, field="arguments")
    for argument in tool.paths:
        if argument in arguments:
            _check_path(arguments[argument], tool, project, field=f"arguments.{argument}")
    return await backend(tool, json.dumps(arguments).encode(), project)


def _check_path(path: str, tool: LegacyTool, project: Path, *, field: str) -> None:
    """By its text, and by what is there: no step on the way may be a link to elsewhere."""
    paths.validate_prefixed(path, tool.allowed_paths, field=field)
    fd = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(tree.open_beneath(fd, path))
    except tree.Refusal as refusal:
        if refusal.reason != tree.MISSING:
            message = f"{printable(path)} cannot be used: {refusal.reason}"
            raise PathNotAllowed(message, reason=refusal.reason, field=field) from refusal
    finally:
        os.close(fd)


def _answered(exit_code: int | None, timed_out: bool, stdout: bytes, stderr: bytes) -> Answer:
    told = stderr.decode("utf-8", "replace")
    if timed_out:
        return Answer(None, Failure.TIMEOUT, None, told)
    if exit_code != 0:
        return Answer(None, Failure.EXIT, exit_code, told)
    try:
        return Answer(json.loads(stdout), None, exit_code, told)
    except (ValueError, RecursionError):
        return Answer(None, Failure.PROTOCOL, exit_code, told)


class InSubprocess:
    """As legacy tools always ran: on this machine, in the project's folder, unconfined."""

    async def __call__(self, tool: LegacyTool, arguments: bytes, project: Path) -> Answer:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            tool.file,
            cwd=project,
            env=_ENVIRONMENT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        timed_out, stdout, stderr = False, bytearray(), bytearray()
        try:
            async with asyncio.timeout(tool.timeout_s), asyncio.TaskGroup() as group:
                group.create_task(_write(process.stdin, arguments))
                group.create_task(_read(process.stdout, stdout))
                group.create_task(_read(process.stderr, stderr))
        except TimeoutError:
            timed_out = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            exit_code = await process.wait()
        return _answered(exit_code, timed_out, bytes(stdout), bytes(stderr))


async def _write(pipe: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(data)
        await pipe.drain()
        pipe.close()


async def _read(pipe: asyncio.StreamReader, kept: bytearray) -> None:
    while chunk := await pipe.read(65536):
        kept += chunk[: MAX_ANSWER_BYTES - len(kept)]


class InJar:
    """As a run of the service: under policy, with a record, and with the files it may touch only."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def __call__(self, tool: LegacyTool, arguments: bytes, project: Path) -> Answer:
        result = await self._client.run(
            tool.program,
            files=await asyncio.to_thread(_gathered, project, tool.allowed_paths),
            stdin=arguments,
            timeout_s=tool.timeout_s,
        )
        answer = _answered(result.exit_code, result.timed_out, result.stdout.encode(), result.stderr.encode())
        if answer.failure is None:
            await asyncio.to_thread(_put_back, project, tool, result.output_files)
        return answer


def _gathered(project: Path, allowed: Sequence[str]) -> dict[str, bytes]:
    """What is there under `allowed`; links and the like are left out, as they lead elsewhere."""
    files: dict[str, bytes] = {}
    left = MAX_BYTES
    fd = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in _paths_under(fd, allowed):
            files[path] = tree.read_file(fd, path, left)
            left -= len(files[path])
    except tree.Refusal as refusal:
        raise LimitExceeded(f"the files under allowed_paths: {refusal}", field="allowed_paths") from refusal
    finally:
        os.close(fd)
    return files


def _paths_under(project_fd: int, prefixes: Sequence[str]) -> Iterator[str]:
    for prefix in prefixes:
        name = prefix.removesuffix("/")
        try:
            folder = tree.open_beneath(project_fd, name, os.O_DIRECTORY)
        except tree.Refusal:
            if name == prefix and _is_file(project_fd, name):
                yield name
            continue
        try:
            for entry in tree.listing(folder, max_entries=MAX_FILES):
                if isinstance(entry, tree.Entry):
                    yield f"{name}/{tree.text_of(entry.path)}"
                elif entry.reason == tree.TOO_MANY:
                    raise tree.Refusal(tree.TOO_MANY, entry.path, f"more than {MAX_FILES}")
        finally:
            os.close(folder)


def _is_file(project_fd: int, name: str) -> bool:
    try:
        fd, _ = tree.open_regular(project_fd, name, MAX_BYTES)
    except tree.Refusal:
        return False
    os.close(fd)
    return True


def _put_back(project: Path, tool: LegacyTool, files: Mapping[str, bytes]) -> None:
    """All of them or none: one that lies elsewhere is found before the first is written."""
    for path in files:
        paths.validate_prefixed(path, tool.allowed_paths, field="allowed_paths")
    fd = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path, content in files.items():
            tree.write_file(fd, path, content)
    except tree.Refusal as refusal:
        message = f"what the tool wrote cannot be put into the project: {refusal}"
        raise PathNotAllowed(message, reason=refusal.reason, field="allowed_paths") from refusal
    finally:
        os.close(fd)
