"""`belljar doctor`: what this machine can enforce, and how to mend what it cannot."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check this machine. Exit status 1 if no engine can be used."""
    from belljar.config import load_here
    from belljar.engines.jail.probe import probe

    result = probe(load_here().jail_cgroup_parent)
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps({"engines": [{**asdict(result), "usable": result.usable}]}, indent=2))
    else:
        typer.echo(f"engine {result.engine}: {'usable' if result.usable else 'cannot be used'}")
        for check in result.checks:
            mark = "ok  " if check.ok else "FAIL" if check.required else "weak"
            typer.echo(f"  {mark}  {check.name}: {check.detail}")
            if not check.ok:
                typer.echo(f"        FIX: {check.fix}")
    raise typer.Exit(0 if result.usable else 1)
