"""`belljar exec`: one program by a running service; files go in from here and come back to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from belljar.cli.remote import RunThere
    from belljar.flows.project import Landed


def exec_(
    file: Annotated[str | None, typer.Argument(help="A program; - reads it from standard input.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")] = None,
    code: Annotated[str | None, typer.Option(help="The program itself.")] = None,
    language: Annotated[
        str | None, typer.Option(help="python, bash, javascript or typescript; else from the file's name.")
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="PATH", help="A file or folder below here to send along."),
    ] = None,
    stdin: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="What the program reads from standard input; - is ours."),
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where its files are written; without it, nowhere.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="They may replace files.")] = False,
    timeout: Annotated[float | None, typer.Option(metavar="S", help="Seconds it may take.")] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="N", help="Memory it may use.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable of its environment.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Python in a warm interpreter (fork) or a new one (exec).")
    ] = "fork",
    project_id: Annotated[str | None, typer.Option(metavar="P", help="The project it is for.")] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="R", help="The same request under the same id is run once.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing live.")] = False,
) -> None:
    """Run a program by the service. The exit status is the program's."""
    from belljar.cli import remote
    from belljar.cli.outcome import exit_status, print_summary
    from belljar.cli.packing import pack, unpack
    from belljar.config import load_here

    asked = {"limits.timeout_s": timeout, "limits.memory_mb": memory_mb}
    overrides = {name: value for name, value in asked.items() if value is not None}
    with remote.connected() as client:
        grant = remote.granted(client, load_here(), overrides)
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
        )
        ran = remote.run_there(grant, request, live=not as_json, project_id=project_id, request_id=request_id)
    files = [(artifact.path, artifact.content) for artifact in ran.result.artifacts]
    landed = unpack(out_dir, files, overwrite=overwrite)
    if as_json:
        _print_json(ran, landed, content=out_dir is None)
    else:
        print_summary(ran.result, landed)
    raise typer.Exit(exit_status(ran.result))


def _print_json(ran: RunThere, landed: Landed, *, content: bool) -> None:
    import json

    answer = dict(ran.answer.answer)
    if not content:
        del answer["output_files"]  # they are in the folder
    answer["written_files"] = landed.written
    answer["refused_files"] = [{"path": path, "reason": reason} for path, reason in landed.refused]
    typer.echo(json.dumps(answer, indent=2))
