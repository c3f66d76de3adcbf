"""`belljar doctor`: what this machine can enforce, how to mend what it cannot, and what was left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from belljar.config import Config
    from belljar.engines.base import Check, Probe


def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove containers and volumes of belljars that are gone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine. Exit status 1 if no engine can be used."""
    import asyncio

    from belljar.config import load_here

    config = load_here()
    probes = asyncio.run(_probe_all(config))
    removed = asyncio.run(_clean(config)) if clean else []
    if as_json:
        import json
        from dataclasses import asdict

        answer = {"engines": [{**asdict(probe), "usable": probe.usable} for probe in probes]}
        typer.echo(json.dumps({**answer, "removed": removed} if clean else answer, indent=2))
    else:
        for probe in probes:
            typer.echo(f"engine {probe.engine}: {'usable' if probe.usable else 'cannot be used'}")
            print_checks(probe.checks)
        for what in removed:
            typer.echo(f"removed {what}")
        if clean and not removed:
            typer.echo("nothing was left behind")
    raise typer.Exit(0 if any(probe.usable for probe in probes) else 1)


def print_checks(checks: Iterable[Check]) -> None:
    from belljar.cli.tables import one_line

    for check in checks:
        mark = "ok  " if check.ok else "FAIL" if check.required else "weak"
        typer.echo(f"  {mark}  {check.name}: {one_line(check.detail)}")
        if not check.ok:
            typer.echo(f"        FIX: {one_line(check.fix)}")


async def _probe_all(config: Config) -> list[Probe]:
    from belljar.engines import ENGINES
    from belljar.wiring import choice_for

    choice = choice_for(config)
    return [await make(choice).probe() for make in ENGINES.values()]


async def _clean(config: Config) -> list[str]:
    """What a jail leaves goes with its process; a container does not."""
    from belljar.engines.docker import labels
    from belljar.engines.docker.api import Api
    from belljar.errors import EngineUnavailable

    try:
        api = await Api.open(config.docker_host, config.docker_context)
    except EngineUnavailable:
        return []  # no engine, no containers
    try:
        return await labels.left_behind(api)
    finally:
        await api.close()
