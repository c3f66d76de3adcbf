"""`belljar graph`: many runs as one job. Run a graph, go on with one that was killed, check it, draw it."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import AsJson
from belljar.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from belljar.flows.graph import Graph
    from belljar.flows.graph_nodes import Workshop
    from belljar.flows.graph_run import GraphOutcome, NodeState
    from belljar.flows.project import Project, ProjectRun

app = typer.Typer(help="Run many steps as one job.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph, as .json or .yaml.")]
ProjectDir = Annotated[Path, typer.Option("--project", metavar="DIR", help="The project.")]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="N=A", help="Who does agent_task N: module:function, or an address."),
]
AtOnce = Annotated[int, typer.Option("--at-once", metavar="N", min=1, help="Nodes at once.")]
Local = Annotated[bool, typer.Option("--local", help="Run it here, even if a service is running.")]
ProjectId = Annotated[str | None, typer.Option(metavar="P", help="The service's project it is for.")]


class Form(StrEnum):
    TEXT = "text"
    SVG = "svg"


@app.command("run")
def run(
    file: File,
    project: ProjectDir = Path(),
    var: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="The value of a variable of the graph.")
    ] = None,
    agent: Agents = None,
    at_once: AtOnce = 8,
    project_id: ProjectId = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Run a graph, by the running service if there is one. Exit status 1 if a node failed."""
    from belljar.flows import graph
    from belljar.flows.graph_run import run_graph
    from belljar.flows.project import Project, new_run_id

    read = graph.read_file(file, _pairs(var, "var"))
    with Project(project) as opened:
        here = opened.start(new_run_id())

        async def work(workshop: Workshop, told: Callable[[str, NodeState], None]) -> GraphOutcome:
            return await run_graph(read, workshop, at_once=at_once, progress=told)

        _run(work, project, opened, here, agent, project_id, local, as_json, len(read.nodes))


@app.command("resume")
def resume(
    run_id: Annotated[str, typer.Argument(help="As `graph run` told it.")],
    project: ProjectDir = Path(),
    agent: Agents = None,
    at_once: AtOnce = 8,
    project_id: ProjectId = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a graph that was broken off, or whose nodes failed. What is finished is not run again."""
    from belljar.flows.graph_run import resume_graph
    from belljar.flows.project import Project

    with Project(project) as opened:
        here = opened.again(run_id)

        async def work(workshop: Workshop, told: Callable[[str, NodeState], None]) -> GraphOutcome:
            return await resume_graph(workshop, at_once=at_once, progress=told)

        _run(work, project, opened, here, agent, project_id, local, as_json, None)


@app.command("validate")
def validate(file: File, as_json: AsJson = False) -> None:
    """Check a graph; nothing is run."""
    read = _read(file)
    if as_json:
        typer.echo(_as_json(read))
    else:
        typer.echo(f"{file}: {len(read.nodes)} nodes, nothing wrong")


@app.command("show")
def show(
    file: File,
    form: Annotated[Form, typer.Option("--format", help="As text or as a picture.")] = Form.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a graph; with --json, list its nodes and what each needs."""
    from belljar.flows.graph_picture import as_svg, as_text

    read = _read(file)
    if as_json:
        drawn = _as_json(read) + "\n"
    else:
        drawn = as_svg(read) if form is Form.SVG else as_text(read) + "\n"
    if output is None:
        typer.echo(drawn, nl=False)
        return
    try:
        output.write_text(drawn, "utf-8")
    except OSError as error:
        raise BadRequest(f"{output} cannot be written: {error.strerror}", field="output") from error


def _as_json(read: Graph) -> str:
    import json

    nodes = [{"id": node.id, "type": node.kind, "needs": sorted(node.needs)} for node in read.nodes.values()]
    return json.dumps({"nodes": nodes, "variables": dict(read.variables)}, indent=2)


def _read(file: Path) -> Graph:
    from belljar.flows import graph

    return graph.read_file(file)


def _run(
    work: Callable[[Workshop, Callable[[str, NodeState], None]], Awaitable[GraphOutcome]],
    folder: Path,
    project: Project,
    here: ProjectRun,
    agent: Sequence[str] | None,
    project_id: str | None,
    local: bool,
    as_json: bool,
    nodes: int | None,
) -> None:
    import asyncio

    from belljar.cli import remote
    from belljar.config import load_here
    from belljar.flows.agents import agent_from
    from belljar.flows.graph_nodes import Workshop

    config = load_here()
    sys.path.insert(0, str(Path.cwd()))  # where a person's own agents are
    agents = {name: agent_from(said) for name, said in _pairs(agent, "agent").items()}
    opening = remote.opened(config, here=local)
    told = _Progress(here.run_id, folder, nodes, quiet=as_json)

    async def all_of_it() -> GraphOutcome:
        async with opening as client:
            workshop = Workshop(client, project, here, config.allowed_prefixes, agents, project_id)
            return await work(workshop, told)

    try:
        outcome = asyncio.run(all_of_it())
    except KeyboardInterrupt:
        typer.echo(f"belljar: broken off; go on with: {told.resume}", err=True)
        raise
    if as_json:
        _print_json(outcome)
    else:
        told.summary(outcome)
    raise typer.Exit(0 if outcome.ok else 1)


class _Progress:
    """A line on stderr for each node that is over."""

    def __init__(self, run_id: str, folder: Path, nodes: int | None, *, quiet: bool) -> None:
        where = "" if folder == Path() else f" --project {shlex.quote(str(folder))}"
        self.resume = f"belljar graph resume {run_id}{where}"
        self._quiet = quiet
        self._nodes = "?" if nodes is None else str(nodes)
        self._over = 0
        if not quiet:
            typer.echo(f"belljar: graph run {run_id}", err=True)

    def __call__(self, name: str, state: NodeState) -> None:
        from belljar.cli.tables import one_line
        from belljar.flows.graph_run import Status

        if self._quiet or state.status is Status.RUNNING:
            return
        self._over += 1
        took = "" if state.duration_ms is None else f"  {state.duration_ms / 1000:.2f} s"
        why = "" if state.error is None else f"  {one_line(state.error['message'])}"
        place = f"[{self._over:>{len(self._nodes)}}/{self._nodes}]"
        typer.echo(f"{place} {name}: {state.status}{took}{why}", err=True)

    def summary(self, outcome: GraphOutcome) -> None:
        from collections import Counter

        from belljar.cli.tables import one_line

        counts = Counter(str(state.status) for state in outcome.nodes.values())
        typer.echo(", ".join(f"{count} {status}" for status, count in counts.items()), err=True)
        for state in outcome.nodes.values():
            if isinstance(state.output, dict):
                for path in state.output.get("written_files", ()):
                    typer.echo(one_line(path))
        if not outcome.ok:
            typer.echo(f"belljar: go on with: {self.resume}", err=True)


def _print_json(outcome: GraphOutcome) -> None:
    import json
    from dataclasses import asdict

    nodes = {name: asdict(state) for name, state in outcome.nodes.items()}
    typer.echo(json.dumps({"run_id": outcome.run_id, "ok": outcome.ok, "nodes": nodes}, indent=2))


def _pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    found = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadRequest(f"--{option} needs a name and a value, like K=V, not {pair!r}", field=option)
        found[name] = value
    return found
