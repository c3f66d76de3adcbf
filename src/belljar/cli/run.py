"""`belljar run`: one program under glass, its output live, its artifacts in the project."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from belljar.errors import BadRequest, LimitExceeded, UnsupportedLanguage

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from belljar.engines.base import Engine
    from belljar.execution.landing import Landed, Landing
    from belljar.models import Grant, InputFile, Language, RunRequest, RunResult

_SUFFIXES = {
    ".py": "python",
    ".sh": "bash",
    ".bash": "bash",
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "typescript",
    ".mts": "typescript",
}
MAX_CODE_BYTES = 16 << 20


def run(
    file: Annotated[str | None, typer.Argument(help="A program; - reads it from standard input.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")] = None,
    code: Annotated[str | None, typer.Option(help="The program itself.")] = None,
    language: Annotated[
        str | None, typer.Option(help="python, bash, javascript or typescript; else from the file's name.")
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="PATH", help="A file or folder of the project the program may read."),
    ] = None,
    stdin: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="What the program reads from standard input; - is ours."),
    ] = None,
    output_prefix: Annotated[
        str | None, typer.Option(metavar="P", help="Where in the project artifacts land.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Artifacts may replace files.")] = False,
    timeout: Annotated[float | None, typer.Option(metavar="S", help="Seconds it may take.")] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", help="Memory it may use.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable of its environment.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Python in a warm interpreter (fork) or a new one (exec).")
    ] = "fork",
    engine: Annotated[str | None, typer.Option(metavar="E", help="What holds it: auto or jail.")] = None,
    project: Annotated[str, typer.Option(metavar="DIR", help="The project.")] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing live.")] = False,
) -> None:
    """Run a program in a jar. The exit status is the program's."""
    import asyncio

    from belljar.config import load_here
    from belljar.models import RunRequest, Start
    from belljar.wiring import engine_for, grant_for

    root = Path(project)
    if not root.is_dir():
        raise BadRequest(f"{project} is not a folder", field="project")
    asked = {"limits.timeout_s": timeout, "limits.memory_mb": memory_mb}
    config = load_here()
    grant = grant_for(config, {name: value for name, value in asked.items() if value is not None})
    if start not in set(Start):
        raise BadRequest(f"--start is fork or exec, not {start!r}", field="start")
    request = RunRequest(
        language=_language(language, file),
        code=_code(file, code),
        start=Start(start),
        args=tuple(arguments or ()),
        files=_inputs(root, input_ or [], grant),
        env=_environment(env or []),
        stdin=_stdin(stdin, grant),
    )
    landing = _landing(root, output_prefix, config.allowed_prefixes, overwrite)
    try:
        result = asyncio.run(_run(engine_for(config, engine), grant, request, landing, live=not as_json))
        landed = landing.land(result)
    finally:
        landing.close()
    if as_json:
        _print_json(result, landed, landing.run_id)
    else:
        _print_summary(result, landed)
    raise typer.Exit(_exit_status(result))


async def _run(
    opening: Coroutine[None, None, Engine], grant: Grant, request: RunRequest, landing: Landing, *, live: bool
) -> RunResult:
    from belljar.cli.terminal import Screen
    from belljar.errors import BelljarError
    from belljar.execution.runs import stream
    from belljar.models import Output, RunResult, Stream

    screens = {Stream.STDOUT: Screen(sys.stdout), Stream.STDERR: Screen(sys.stderr)}
    result = None
    landing.event("sandbox_start", grant=grant.digest)
    engine = await opening
    try:
        async with aclosing(stream(engine, grant, request)) as events:
            async for event in events:
                if isinstance(event, Output) and live:
                    screens[event.stream].write(event.data)
                elif isinstance(event, RunResult):
                    result = event
    except BaseException as error:
        reason = error.code if isinstance(error, BelljarError) else type(error).__name__
        landing.event("sandbox_failed", reason=reason)
        raise
    finally:
        for screen in screens.values():
            screen.close()
        await engine.close()
    assert result is not None
    landing.event("sandbox_complete", verdict=result.verdict, exit_code=result.exit_code)
    return result


def _language(name: str | None, file: str | None) -> Language:
    from belljar.models import Language

    if name is None:
        suffix = Path(file).suffix if file else ""
        return Language(_SUFFIXES.get(suffix, "python"))
    if name not in {*Language, "shell"}:
        raise UnsupportedLanguage(
            f"unknown language {name!r}; there are {', '.join(Language)}", field="language"
        )
    return Language.BASH if name == "shell" else Language(name)


def _code(file: str | None, code: str | None) -> str:
    if (file is None) == (code is None):
        raise BadRequest("give one program: a file, - for standard input, or --code", field="code")
    if file is None:
        return code or ""
    content = _read("file", sys.stdin.buffer if file == "-" else Path(file), MAX_CODE_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{file} is not UTF-8 text (byte {error.start})", field="file") from error


def _read(field: str, source: Path | BinaryIO, cap: int) -> bytes:
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                content = file.read(cap + 1)
        else:
            content = source.read(cap + 1)
    except OSError as error:
        raise BadRequest(f"{source} cannot be read: {error.strerror}", field=field) from error
    if len(content) > cap:
        raise LimitExceeded(f"{source} is larger than {cap} bytes", field=field)
    return content


def _inputs(root: Path, names: list[str], grant: Grant) -> tuple[InputFile, ...]:
    """Files and folders of the project, by descriptor: a link in a cloned project leads nowhere."""
    from belljar import paths
    from belljar.guest import tree
    from belljar.models import InputFile

    cap = grant.limits.input_mb << 20
    found = []
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            path = paths.validate(name.rstrip("/"), field="input")
            try:
                for one in _files_of(folder, path, grant.limits.input_files):
                    content = tree.read_file(folder, one, cap)
                    cap -= len(content)
                    found.append(InputFile(paths.validate(one, field="input"), content))
            except tree.Refusal as refusal:
                if refusal.reason in (tree.TOO_LARGE, tree.TOO_MANY):
                    limits = f"{grant.limits.input_mb} MB and {grant.limits.input_files} files"
                    raise LimitExceeded(f"{name}: more than {limits} of input", field="input") from refusal
                raise BadRequest(f"{name} cannot be read: {refusal.reason}", field="input") from refusal
    finally:
        os.close(folder)
    return tuple(found)


def _files_of(folder: int, path: str, most: int) -> Iterator[str]:
    from belljar.guest import tree

    fd = tree.open_beneath(folder, path)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            yield path
            return
        for entry in tree.listing(fd, max_entries=most):
            if isinstance(entry, tree.Skip):
                raise tree.Refusal(entry.reason, entry.path)
            yield f"{path}/{os.fsdecode(entry.path)}"
    finally:
        os.close(fd)


def _environment(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadRequest(f"--env needs a name and a value, like K=V, not {pair!r}", field="env")
        env[name] = value
    return env


def _stdin(source: str | None, grant: Grant) -> bytes:
    if source is None:
        return b""
    return _read("stdin", sys.stdin.buffer if source == "-" else Path(source), grant.limits.input_mb << 20)


def _landing(root: Path, prefix: str | None, allowed: tuple[str, ...], overwrite: bool) -> Landing:
    from secrets import token_hex

    from belljar.execution.landing import Landing
    from belljar.guest.tree import Refusal

    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(4)}"
    try:
        return Landing(root, run_id, output_prefix=prefix, allowed_prefixes=allowed, overwrite=overwrite)
    except (OSError, Refusal) as error:
        raise BadRequest(f"the run cannot be written down in {root}: {error}", field="project") from error


def _print_json(result: RunResult, landed: Landed, run_id: str) -> None:
    import json

    from belljar.execution.landing import summary

    typer.echo(json.dumps(summary(run_id, result, landed), indent=2))


def _print_summary(result: RunResult, landed: Landed) -> None:
    """For a person, on stderr: how it ended if not well, and what it left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from belljar.cli.terminal import harmless
    from belljar.models import Verdict

    console = Console(stderr=True)
    if "cgroup" not in result.usage.held_by.get("memory", ""):
        console.print(
            "belljar: no cgroup here: memory and processes are held by a weaker layer (belljar doctor)"
        )
    if result.verdict is not Verdict.EXITED:
        used = f"{result.usage.wall_s:.2f} s, {result.usage.memory_peak_mb:.0f} MB"
        console.print(Text(f"belljar: {result.verdict} after {used}", style="bold red"))
    for name, kept, written in (
        ("stdout", len(result.stdout), result.stdout_bytes),
        ("stderr", len(result.stderr), result.stderr_bytes),
    ):
        if written > kept:
            console.print(f"belljar: {name} was {written} bytes; {kept} are shown")
    if result.artifacts:
        table = Table("artifact", "bytes", "type", "sha256", header_style="bold")
        for artifact in result.artifacts:
            cells = (harmless(artifact.path), str(artifact.size), artifact.mime, artifact.sha256[:16])
            table.add_row(*map(Text, cells))
        console.print(table)
        console.print(Text(f"{len(landed.written)} files written below {landed.prefix}/"))
    for path, reason in [*landed.refused, *((skip.path, skip.reason) for skip in result.skipped)]:
        console.print(Text(f"belljar: not taken: {harmless(path)} ({reason})"))


def _exit_status(result: RunResult) -> int:
    """The program's own, or as shells have it: 124 time-out, 128 + signal, 125 for a failure of ours."""
    from belljar.models import Verdict

    if result.timed_out:
        return 124
    if result.verdict is Verdict.LOST:
        return 125
    if result.exit_code is not None:
        return result.exit_code
    return 128 + (result.signal or 0)
