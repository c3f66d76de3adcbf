"""`belljar run`: one program under glass, its output live, its artifacts in the project."""

from __future__ import annotations

import sys
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import (
    Arguments,
    AsJson,
    Code,
    Env,
    File,
    Language,
    MemoryMb,
    Packages,
    Start,
    Stdin,
    Timeout,
)
from belljar.errors import BadRequest

if TYPE_CHECKING:
    from belljar.config import Config
    from belljar.flows.project import Landed
    from belljar.models import Grant, RunRequest, RunResult


def run(
    file: File = None,
    arguments: Arguments = None,
    code: Code = None,
    language: Language = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="PATH", help="A file or folder of the project the program may read."),
    ] = None,
    stdin: Stdin = None,
    output_prefix: Annotated[
        str | None, typer.Option(metavar="P", help="Where in the project artifacts land.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Artifacts may replace files.")] = False,
    timeout: Timeout = None,
    memory_mb: MemoryMb = None,
    env: Env = None,
    packages: Packages = None,
    start: Start = "fork",
    engine: Annotated[
        str | None,
        typer.Option(metavar="E", help="What holds it: auto, jail, docker or gvisor. Runs it here."),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Run it here, even if a service is running.")
    ] = False,
    project: Annotated[str, typer.Option(metavar="DIR", help="The project.")] = ".",
    as_json: AsJson = False,
) -> None:
    """Run a program in a jar, by the running service if there is one. The exit status is the program's."""
    import asyncio

    from belljar.cli import remote
    from belljar.cli.asking import approved_here
    from belljar.cli.outcome import exit_status, print_summary
    from belljar.cli.packing import pack
    from belljar.config import load_here
    from belljar.flows.project import SUMMARY_BYTES, Project, new_run_id, prefix_for, summary
    from belljar.wiring import check_enabled, grant_for

    root = Path(project)
    if not root.is_dir():
        raise BadRequest(f"{project} is not a folder", field="project")
    config = load_here()
    check_enabled(config)
    asked = {"limits.timeout_s": timeout, "limits.memory_mb": memory_mb}
    overrides = {name: value for name, value in asked.items() if value is not None}
    with ExitStack() as stack:
        grant: Grant | remote.Granted
        if local or engine is not None or not remote.is_there(config):
            grant = grant_for(config, overrides)
        else:
            grant = remote.granted(stack.enter_context(remote.connected()), config, overrides)
        request = pack(
            root,
            grant.limits,
            file=file,
            code=code,
            language=language,
            arguments=arguments,
            inputs=input_,
            env=env,
            stdin=stdin,
            start=start,
            packages=packages,
        )
        run_id = new_run_id()
        prefix = prefix_for(run_id, output_prefix, config.allowed_prefixes)
        here = stack.enter_context(Project(root)).start(run_id)
        here.event("sandbox_start", grant=grant.digest)
        try:
            if isinstance(grant, remote.Granted):
                result = remote.run_there(grant, request, live=not as_json).result
            else:
                approved = grant.approve_at is not None and approved_here(grant, request, ask=not as_json)
                running = _run(config, engine, grant, request, live=not as_json, approved=approved)
                result = asyncio.run(running)
        except BaseException as error:
            here.event("sandbox_failed", reason=getattr(error, "code", type(error).__name__))
            raise
        landed = here.land(
            [(artifact.path, artifact.content) for artifact in result.artifacts],
            lambda landed: summary(run_id, result, landed, keep=SUMMARY_BYTES),
            prefix=prefix,
            overwrite=overwrite,
            verdict=result.verdict,
            exit_code=result.exit_code,
        )
    if as_json:
        _print_json(result, landed, run_id)
    else:
        print_summary(result, landed)
    raise typer.Exit(exit_status(result))


async def _run(
    config: Config, name: str | None, grant: Grant, request: RunRequest, *, live: bool, approved: bool
) -> RunResult:
    from belljar.cli.terminal import Screen
    from belljar.execution.runs import stream
    from belljar.models import Output, RunResult, Stream
    from belljar.wiring import engine_for, packages_for

    screens = {Stream.STDOUT: Screen(sys.stdout), Stream.STDERR: Screen(sys.stderr)}
    result = None
    engine = await engine_for(config, name)
    try:
        grant = await engine.fit(grant, request.language)
        packages = None
        if request.packages:
            packages = await packages_for(config).prepare(engine, grant, request.packages)
        running = stream(engine, grant, request, approved=approved, packages=packages)
        async with aclosing(running) as events:
            async for event in events:
                if isinstance(event, Output) and live:
                    screens[event.stream].write(event.data)
                elif isinstance(event, RunResult):
                    result = event
    finally:
        for screen in screens.values():
            screen.close()
        await engine.close()
    assert result is not None
    return result


def _print_json(result: RunResult, landed: Landed, run_id: str) -> None:
    import json

    from belljar.flows.project import summary

    typer.echo(json.dumps(summary(run_id, result, landed), indent=2))
