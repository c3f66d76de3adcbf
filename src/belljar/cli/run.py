"""`belljar run`: one program under glass, its output live, its artifacts in the project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import (
    Arguments,
    AsJson,
    Code,
    DataDir,
    Engine,
    Env,
    File,
    Language,
    MemoryMb,
    Packages,
    ProjectId,
    Start,
    Stdin,
    Timeout,
    config_with,
)
from belljar.errors import BadRequest

if TYPE_CHECKING:
    from belljar.cli.remote import RunThere
    from belljar.flows.project import Landed


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
    engine: Engine = None,
    local: Annotated[
        bool,
        typer.Option("--local", help="Run it here, even if a service is running. So does --engine."),
    ] = False,
    data_dir: DataDir = None,
    project_id: ProjectId = None,
    project: Annotated[str, typer.Option(metavar="DIR", help="The project.")] = ".",
    as_json: AsJson = False,
) -> None:
    """Run a program in a jar, by the running service if there is one. The exit status is the program's."""
    import json

    from belljar.cli import remote
    from belljar.cli.outcome import exit_status, print_summary
    from belljar.cli.packing import in_project, language_of, pack
    from belljar.flows.project import SUMMARY_BYTES, Project, new_run_id, prefix_for
    from belljar.wiring import check_enabled

    root = Path(project)
    if not root.is_dir():
        raise BadRequest(f"{project} is not a folder", field="project")
    config = config_with(engine=engine, data_dir=data_dir)
    check_enabled(config)
    asked = {"limits.timeout_s": timeout, "limits.memory_mb": memory_mb}
    overrides = {name: value for name, value in asked.items() if value is not None}
    with remote.at_hand(config, here=local or engine is not None) as client, Project(root) as opened:
        grant = remote.granted(client, config, overrides, language_of(language, file))
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
        asked_prefix = output_prefix and in_project(root, output_prefix)
        prefix = prefix_for(run_id, asked_prefix, config.allowed_prefixes)
        try:
            here = opened.start(run_id)
        except BadRequest as error:
            message = f"{error.message}; name a folder that can be written to with --project DIR"
            raise BadRequest(message, field=error.field) from error
        here.event("sandbox_start", grant=grant.digest)
        try:
            ran = remote.run_there(grant, request, live=not as_json, project_id=project_id)
        except BaseException as error:
            here.event("sandbox_failed", reason=getattr(error, "code", type(error).__name__))
            raise
        result = ran.result
        landed = here.land(
            [(artifact.path, artifact.content) for artifact in result.artifacts],
            lambda landed: _told(run_id, ran, landed, keep=SUMMARY_BYTES),
            prefix=prefix,
            overwrite=overwrite,
            exec_id=ran.answer.id,
            verdict=result.verdict,
            exit_code=result.exit_code,
        )
    if as_json:
        typer.echo(json.dumps(_told(run_id, ran, landed), indent=2))
    else:
        print_summary(result, landed)
    if ran.answer.error_code:
        typer.echo(f"belljar: {ran.answer.error_code}: {ran.answer.error_reason}", err=True)
    raise typer.Exit(exit_status(ran, landed))


def _told(run_id: str, ran: RunThere, landed: Landed, keep: int | None = None) -> dict[str, object]:
    from belljar.flows.project import summary

    answer = ran.answer
    ids = {"exec_id": answer.id, "request_id": answer.request_id, "receipt": answer.receipt}
    return ids | summary(run_id, ran.result, landed, keep=keep)
