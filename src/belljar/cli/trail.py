"""`belljar trail`: which run wrote which file of a project, and whether it still is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def trail(
    path: Annotated[
        str | None, typer.Argument(help="A file or a folder of the project; without it, all.")
    ] = None,
    project: Annotated[Path, typer.Option(metavar="DIR", help="The project.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Which run created or changed which file, with digests; the oldest first."""
    import json
    from dataclasses import asdict

    from belljar.cli.tables import print_table
    from belljar.flows.project import Project
    from belljar.flows.trail import state_of, trail_of

    with Project(project) as opened:
        entries = trail_of(opened, path)
        now = {path: state_of(opened, last) for path, last in {one.path: one for one in entries}.items()}
    if as_json:
        typer.echo(json.dumps({"entries": [asdict(one) for one in entries], "now": now}, indent=2))
        return
    rows = [
        (one.at[:19], one.run_id, one.node or "", one.change, one.path, one.sha256[:16], now[one.path])
        for one in entries
    ]
    print_table(("when", "run", "node", "change", "path", "sha256", "now"), rows)
