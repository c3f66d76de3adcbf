"""`belljar bench`: what a jar costs on this machine, beside the same program without one.

Both are taken in turns, in one run: what else the machine does meanwhile slows down both.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import AsJson, Engine, config_with
from belljar.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from belljar.client import Client

_PROGRAM = "print('hi')"


def bench(
    engine: Engine = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each is done.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Measure a run in a fresh jar, from the request to the receipt, beside a bare `python3 -c`."""
    import tempfile
    from dataclasses import replace
    from pathlib import Path

    from belljar.inprocess import for_one_run, local

    config = for_one_run(config_with(engine=engine))
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as folder:
        apart = replace(config, data_dir=Path(folder), database_url=None)  # these runs are nobody's records
        with local(apart) as client:
            name = _engine_of(client)  # and with it what only the first run waits for
            jars, bare = [], []
            for _ in range(rounds):
                jars.append(_timed(lambda: _in_a_jar(client)))
                bare.append(_timed(_bare))
    measured = {"jar_ms": _summed_up(jars), "bare_ms": _summed_up(bare)}
    ratio = {point: measured["jar_ms"][point] / measured["bare_ms"][point] for point in ("p50", "p99")}
    if as_json:
        import json

        told = {"engine": name, "rounds": rounds, **measured, "ratio": ratio}
        typer.echo(json.dumps(told, indent=2))
        return
    from belljar.cli.tables import print_table

    rows = [
        (what, *(f"{times[point]:.2f}" for point in ("p50", "p99")))
        for what, times in (
            (f"a fresh jar ({name}), ms", measured["jar_ms"]),
            ("a bare python3 -c, ms", measured["bare_ms"]),
            ("ratio", ratio),
        )
    ]
    print_table((f"{_PROGRAM}, {rounds} rounds", "p50", "p99"), rows)


def _engine_of(client: Client) -> str:
    return str(client.get(_in_a_jar(client))["engine"])


def _in_a_jar(client: Client) -> str:
    result = client.run(_PROGRAM)
    if not result.ok:
        raise EngineUnavailable(f"{_PROGRAM} should have worked, but it was: {result.verdict}")
    return result.id


def _bare() -> None:
    import os
    import subprocess
    import sys

    python = os.path.realpath(sys.executable)  # without what a virtual environment adds to its start
    subprocess.run([python, "-c", _PROGRAM], stdout=subprocess.DEVNULL, check=True)


def _timed(work: Callable[[], object]) -> float:
    """In milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _summed_up(times: Sequence[float]) -> dict[str, float]:
    """By nearest rank."""
    ordered = sorted(times)
    return {f"p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 99)}
