"""What a graph costs beside the work of its nodes: a thousand nodes that do nothing, each written down.

python -m bench.bench_graph [--json] [--nodes N]

The same graph is run in several shapes, and gone on with. The yardstick is the same number of tasks in a bare
`asyncio.TaskGroup` that each append as many lines to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from belljar.flows.graph import Graph, from_data
from belljar.flows.graph_nodes import Workshop
from belljar.flows.graph_run import resume_graph, run_graph
from belljar.flows.project import Project

LINES_A_NODE = 2
"""`node_start` and `node_complete`."""


async def nothing(task: Mapping[str, Any]) -> None:
    pass


def shapes(count: int) -> dict[str, list[list[str]]]:
    """Name of a shape to what each node needs."""
    return {
        "no node needs another": [[] for _ in range(count)],
        "each needs the one before": [[f"n{n - 1}"] if n else [] for n in range(count)],
        "eight chains side by side": [[f"n{n - 8}"] if n >= 8 else [] for n in range(count)],
        "each needs ten before it": [[f"n{m}" for m in range(max(0, n - 10), n)] for n in range(count)],
    }


def graph_of(needs: list[list[str]]) -> Graph:
    nodes = [{"id": f"n{n}", "type": "agent_task", "agent": "a", "needs": one} for n, one in enumerate(needs)]
    return from_data({"nodes": nodes}, "bench")


async def timed(graph: Graph, folder: Path) -> dict[str, float]:
    """Microseconds a node, to run all of it, and to go on with it when all is finished."""
    with Project(folder) as project:
        # Nobody is asked to run a program.
        workshop = Workshop(None, project, project.start("run"), ("docs/",), {"a": nothing})  # type: ignore[arg-type]
        start = perf_counter()
        outcome = await run_graph(graph, workshop)
        ran = perf_counter()
        again = await resume_graph(workshop)
        resumed = perf_counter()
    assert outcome.ok
    assert again.ok
    count = len(graph.nodes)
    return {"run_us": (ran - start) / count * 1e6, "resume_us": (resumed - ran) / count * 1e6}


async def bare(count: int, folder: Path) -> float:
    """Microseconds a task."""
    line = b"x" * 150 + b"\n"

    async def one() -> None:
        for _ in range(LINES_A_NODE):
            fd = os.open(folder / "lines", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(fd, line)
            os.close(fd)

    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
    return (perf_counter() - start) / count * 1e6


def measure(count: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, needs in shapes(count).items():
        start = perf_counter()
        graph = graph_of(needs)
        read_us = (perf_counter() - start) / count * 1e6
        with tempfile.TemporaryDirectory() as folder:
            yardstick = asyncio.run(bare(count, Path(folder)))
            found[name] = {"read_us": read_us, **asyncio.run(timed(graph, Path(folder)))}
        found[name]["bare_us"] = yardstick
        found[name]["ratio"] = found[name]["run_us"] / yardstick
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a graph whose nodes do nothing.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000)
    options = parser.parse_args()
    found = measure(max(1, options.nodes))
    if options.json:
        sys.stdout.write(json.dumps({"nodes": options.nodes, "shapes": found}, indent=2) + "\n")
        return
    sys.stdout.write(f"{options.nodes} nodes; microseconds a node\n")
    for name, one in found.items():
        sys.stdout.write(
            f"{name:28} read {one['read_us']:6.0f}   run {one['run_us']:6.0f} "
            f"({one['ratio']:.1f} x a bare task)   resume {one['resume_us']:6.0f}\n"
        )


if __name__ == "__main__":
    main()
