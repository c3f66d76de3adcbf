"""`belljar doctor`: what this machine can enforce, how to mend what it cannot, and what was left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from belljar.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from belljar.cli.checkup import Checkup
    from belljar.config import Config
    from belljar.engines.base import Check


def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove containers and volumes of belljars that are gone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine. Exit status 1 if runs are not possible as it is."""
    import asyncio

    from belljar.cli.checkup import examine
    from belljar.config import load_here

    config, problem = None, ""
    try:
        config = load_here()
    except BadConfig as error:
        problem = error.message
    found = asyncio.run(examine(config, problem))
    removed = asyncio.run(_clean(config)) if clean and config else []
    if as_json:
        _print_json(found, removed if clean else None)
    else:
        _print(found)
        for what in removed:
            typer.echo(f"removed {what}")
        if clean and not removed:
            typer.echo("nothing was left behind")
    raise typer.Exit(0 if found.ready else 1)


def print_checks(checks: Iterable[Check]) -> None:
    from belljar.cli.tables import one_line

    for check in checks:
        mark = "ok  " if check.ok else "FAIL" if check.required else "weak"
        typer.echo(f"  {mark}  {check.name}: {one_line(check.detail)}")
        if not check.ok:
            typer.echo(f"        FIX: {one_line(check.fix)}")


def _print(found: Checkup) -> None:
    from belljar.cli.tables import one_line

    typer.echo(f"belljar: {'ready' if found.ready else 'not ready'}")
    print_checks(found.service)
    for key, where in found.settings.items():
        typer.echo(f"        {key}: {one_line(where)}")
    for probe in found.engines:
        typer.echo(f"engine {probe.engine}: {'usable' if probe.usable else 'cannot be used'}")
        print_checks(probe.checks)
    if found.images:
        typer.echo("images")
        print_checks(found.images)


def _print_json(found: Checkup, removed: list[str] | None) -> None:
    import json
    from dataclasses import asdict

    answer = {
        "ready": found.ready,
        "service": [asdict(check) for check in found.service],
        "settings": found.settings,
        "engines": [{**asdict(probe), "usable": probe.usable} for probe in found.engines],
        "images": [asdict(check) for check in found.images],
    }
    typer.echo(json.dumps(answer if removed is None else {**answer, "removed": removed}, indent=2))


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
