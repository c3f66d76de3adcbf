"""`belljar exec`: one program by a running service; files go in from here and come back to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import (
    Arguments,
    AsJson,
    Code,
    DataDir,
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

if TYPE_CHECKING:
    from belljar.cli.remote import RunThere
    from belljar.flows.project import Landed


def exec_(
    file: File = None,
    arguments: Arguments = None,
    code: Code = None,
    language: Language = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="PATH", help="A file or folder below here to send along."),
    ] = None,
    stdin: Stdin = None,
    out_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where its files are written; without it, nowhere.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="They may replace files.")] = False,
    timeout: Timeout = None,
    memory_mb: MemoryMb = None,
    env: Env = None,
    packages: Packages = None,
    start: Start = "fork",
    project_id: ProjectId = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="R", help="The same request under the same id is run once.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Run a program by the service. The exit status is the program's."""
    from belljar.cli import remote
    from belljar.cli.outcome import exit_status, print_summary
    from belljar.cli.packing import language_of, pack, unpack

    config = config_with(data_dir=data_dir)
    asked = {"limits.timeout_s": timeout, "limits.memory_mb": memory_mb}
    overrides = {name: value for name, value in asked.items() if value is not None}
    with remote.connected(config) as client:
        grant = remote.granted(client, config, overrides, language_of(language, file))
        request = pack(
            Path(),
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
        ran = remote.run_there(grant, request, live=not as_json, project_id=project_id, request_id=request_id)
    files = [(artifact.path, artifact.content) for artifact in ran.result.artifacts]
    landed = unpack(out_dir, files, overwrite=overwrite)
    if as_json:
        _print_json(ran, landed, content=out_dir is None)
    else:
        print_summary(ran.result, landed)
    raise typer.Exit(exit_status(ran, landed))


def _print_json(ran: RunThere, landed: Landed, *, content: bool) -> None:
    import json

    answer = dict(ran.answer.answer)
    if not content:
        del answer["output_files"]  # they are in the folder
    answer["written_files"] = landed.written
    answer["refused_files"] = [{"path": path, "reason": reason} for path, reason in landed.refused]
    typer.echo(json.dumps(answer, indent=2))
