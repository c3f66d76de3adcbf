"""`belljar top`: what the runs and sessions of a service take, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEAD = ("kind", "id", "project", "cpu %", "memory MB", "of", "pids", "sent", "received", "alerts")


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    every: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds between two looks.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each look.")] = False,
) -> None:
    """Show what the runs and sessions of the service take right now."""
    from belljar.cli.remote import connected
    from belljar.cli.tables import print_table, table

    with connected() as client:
        if as_json:
            import json

            while True:
                typer.echo(json.dumps(client.usage()))
                if once:
                    return
                time.sleep(every)
        if once:
            print_table(_HEAD, _rows(client.usage()))
            return
        from rich.live import Live

        with Live(table(_HEAD, _rows(client.usage())), auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(table(_HEAD, _rows(client.usage())), refresh=True)


def _rows(usage: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Most busy first."""
    return [
        (
            one.get("kind"),
            one.get("id"),
            one.get("project_id"),
            one.get("cpu_usage_percent"),
            one.get("memory_usage_mb"),
            one.get("memory_limit_mb"),
            one.get("pids_current"),
            one.get("network_tx_bytes"),
            one.get("network_rx_bytes"),
            ", ".join(map(str, one.get("alerts", ()))),
        )
        for one in sorted(usage, key=lambda one: -float(one.get("cpu_usage_percent", 0)))
    ]
