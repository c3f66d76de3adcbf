"""`belljar tools`: the service's tools for agents, and a project's legacy tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.options import ProjectId
from belljar.cli.skills import json_object
from belljar.errors import BadConfig

if TYPE_CHECKING:
    from belljar.config import Config
    from belljar.flows.legacy import Answer

app = typer.Typer(help="Tools for agents.", no_args_is_help=True)

Arguments = Annotated[str, typer.Option(metavar="JSON", help="Its arguments, an object.")]
Name = Annotated[str, typer.Argument(help="A tool.")]


@app.command("list")
def list_(
    form: Annotated[
        str, typer.Option("--format", help="belljar, or as an LLM's API takes it: openai, anthropic.")
    ] = "belljar",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the tools that this token may use."""
    from belljar.cli.remote import connected

    with connected() as client:
        tools = client.tools(form)
    if as_json or form != "belljar":
        _print_json(tools)
        return
    from belljar.cli.tables import print_table

    rows = [(one["name"], one["risk"], one["strategy"], one["description"]) for one in tools]
    print_table(("name", "risk", "strategy", "what it does"), rows)


@app.command("call")
def call(
    name: Name,
    arguments: Arguments = "{}",
    project_id: ProjectId = None,
) -> None:
    """Call a tool of the service and print its result as JSON. Status 1 if it did not succeed."""
    from belljar.cli.remote import connected
    from belljar.client.wire import ToolOptions

    options = ToolOptions(arguments=json_object(arguments, "arguments"))
    if project_id is not None:
        options["project_id"] = project_id
    with connected() as client:
        result = client.call_tool(name, **options)
    _print_json(result)
    raise typer.Exit(0 if result.get("status") == "success" else 1)


@app.command("legacy")
def legacy(
    name: Name,
    arguments: Arguments = "{}",
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where the tools are; else sandbox.tools_dir.")
    ] = None,
) -> None:
    """Call a legacy tool on the project in this folder; in a jar if the configuration says so."""
    import asyncio
    from dataclasses import asdict

    from belljar.config import load_here

    config = load_here()
    where = folder or config.tools_dir
    if where is None:
        raise BadConfig("there is no folder of tools; set sandbox.tools_dir or say --dir", field="tools_dir")
    answer = asyncio.run(_called(config, where, name, json_object(arguments, "arguments")))
    _print_json(asdict(answer))
    raise typer.Exit(0 if answer.failure is None else 1)


async def _called(config: Config, folder: Path, name: str, arguments: dict[str, Any]) -> Answer:
    from belljar.cli.remote import opened
    from belljar.flows import legacy

    tools = legacy.load_tools(folder)
    if not config.runner_features_use_for_tools:
        backend = legacy.InSubprocess()
        return await legacy.call(tools, name, arguments, project=Path(), backend=backend)
    async with opened(config) as client:
        return await legacy.call(tools, name, arguments, project=Path(), backend=legacy.InJar(client))


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
