"""Ratios instead of times: samples of several things taken in turn, compared, judged and shown.

A time says little on a machine that other people use too. So whatever is compared is measured in
the same run, in an order that is shuffled in every round: noise and what one case leaves behind for
the kernel to clean up hit all of them alike.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import random
import statistics
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

Job = Callable[[], Awaitable[None]]
Case = Callable[[], Awaitable[None] | None]
"""A job, or something that blocks until it is done, as bare programs may: one thing is measured at a time."""
Row = Mapping[str, str | float | int]
"""Column to value; the columns of a table are those of its first row."""


@dataclass(frozen=True, slots=True)
class Promise:
    text: str
    measured: float
    limit: float
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one benchmark found."""

    tables: Mapping[str, Sequence[Row]]
    promises: Sequence[Promise] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A straight line through samples, per 1,000 runs, and how far to believe it."""

    slope: float
    margin: float
    """Half of the slope's 95 % interval."""
    grows: bool
    """It goes up in both halves of the samples, beyond their noise: one step alone is no growth."""


async def in_turn(cases: Mapping[str, Case], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round of each case."""
    order = random.Random(1)
    names = list(cases)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        await _seconds(cases[name])  # caches are warm for all, or for none
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            times[name].append(await _seconds(cases[name]))
    return times


async def rate(job: Job, count: int, at_once: int) -> float:
    """Jobs per second, so many of them at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await job()

    start = perf_counter()
    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(worker())
    return count / (perf_counter() - start)


async def _seconds(case: Case) -> float:
    start = perf_counter()
    waiting = case()
    if waiting is not None:
        await waiting
    return perf_counter() - start


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of them do not exceed."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def at_most(text: str, measured: float, limit: float) -> Promise:
    return Promise(text, measured, limit, measured <= limit)


def at_least(text: str, measured: float, limit: float) -> Promise:
    return Promise(text, measured, limit, measured >= limit)


def trend(runs: Sequence[int], samples: Sequence[float]) -> Trend:
    middle = len(runs) // 2
    slope, margin = _line(runs, samples)
    halves = (_line(runs[:middle], samples[:middle]), _line(runs[middle:], samples[middle:]))
    grows = slope > margin and all(part > doubt for part, doubt in halves)
    return Trend(slope=1000 * slope, margin=1000 * margin, grows=grows)


def _line(xs: Sequence[int], ys: Sequence[float]) -> tuple[float, float]:
    """Slope by least squares, and half of its 95 % interval."""
    freedom = len(xs) - 2
    if freedom < 1:
        return 0.0, math.inf
    slope, base = statistics.linear_regression(xs, ys)
    residue = sum((y - base - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    spread = (len(xs) - 1) * statistics.variance(xs)
    student = 1.96 + 2.4 / freedom + 2.8 / freedom**2 + 5.6 / freedom**3  # Student's t, or up to 6 % more
    return slope, student * math.sqrt(residue / freedom / spread)


def machine() -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release().partition("-")[0],
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "uid": os.getuid(),
    }


def commit() -> str | None:
    """Of the tree this file is in; `+` when something in it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def shown(name: str, report: Report) -> str:
    lines = [name, "=" * len(name)]
    for title, rows in report.tables.items():
        lines += ["", title, *_aligned(rows)]
    if report.promises:
        lines.append("")
    for promise in report.promises:
        word = "kept  " if promise.kept else "BROKEN"
        lines.append(f"  {word}  {promise.text}: {promise.measured:.2f} (limit {promise.limit:g})")
    return "\n".join([*lines, "", ""])


def _aligned(rows: Sequence[Row]) -> list[str]:
    columns = list(rows[0]) if rows else []
    cells = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        first, *rest = (
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(["", first, *rest]).rstrip())
    return lines


def markdown(report: Report) -> str:
    """The same tables and promises for a document."""
    lines: list[str] = []
    for title, rows in report.tables.items():
        columns = list(rows[0]) if rows else []
        cells = [
            columns,
            ["---"] * len(columns),
            *([_cell(row[column]) for column in columns] for row in rows),
        ]
        lines += [f"{title}:", "", *(f"| {' | '.join(line)} |" for line in cells), ""]
    for promise in report.promises:
        word = "kept" if promise.kept else "not kept"
        lines.append(f"- {promise.text}: {promise.measured:.2f} (limit {promise.limit:g}), {word}")
    return "\n".join(lines).strip() + "\n"


def _cell(value: str | float | int) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
