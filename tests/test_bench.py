"""The benchmarks work: they measure what they say and report it in one shape. Times are not looked at."""

from __future__ import annotations

import asyncio
import json
import math
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.jail.engine import JailEngine

BENCH = Path(__file__).parent.parent / "bench"
NAMES = (
    "egress",
    "hello",
    "idle",
    "output",
    "patterns",
    "pool",
    "preload",
    "service",
    "sessions",
    "soak",
    "sustained",
    "throughput",
)


@pytest.fixture(scope="module")
def measuring() -> dict[str, Any]:
    return runpy.run_path(str(BENCH / "measuring.py"))


def bench(*options: str) -> str:
    probe = asyncio.run(JailEngine().probe())
    if not probe.usable:
        pytest.skip("; ".join(f"{check.name}: {check.detail}" for check in probe.missing))
    command = [sys.executable, str(BENCH / "bench.py"), "--size", "smoke", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_one_json_object(name: str) -> None:
    found = json.loads(bench("--json", "--only", name))
    assert found.keys() == {"machine", "commit", "held_by", "benchmarks"}
    assert found["machine"]["cores"] >= 1
    assert found["held_by"].keys() == {"cpu", "memory", "pids"}
    assert found["benchmarks"].keys() == {name}
    report = found["benchmarks"][name]
    assert report.keys() == {"tables", "promises"}
    for rows in report["tables"].values():
        assert rows
        assert all(row.keys() == rows[0].keys() for row in rows)
        assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    for promise in report["promises"]:
        assert promise.keys() == {"text", "measured", "limit", "kept"}


@pytest.mark.timeout(180)
def test_a_person_sees_ratios_beside_times_and_what_became_of_the_promises() -> None:
    shown = bench("--only", "hello")
    assert "p50_ratio" in shown
    assert "p50_ms" in shown
    assert "kept  " in shown or "BROKEN" in shown


def test_what_is_kept_of_a_benchmark_takes_the_place_of_what_was_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    bench = runpy.run_path(str(BENCH / "bench.py"))
    document = tmp_path / "benchmarks.md"
    document.write_text("# Benchmarks\n\n## hello\n\nold\n\n## soak\n\nold\n")
    report = bench["Report"](tables={"Table": [{"part": "a", "ratio": 1.234}]})
    for name in ("hello", "output"):
        bench["write"](document, name, report, "today")
    section = "today\n\nTable:\n\n| part | ratio |\n| --- | --- |\n| a | 1.23 |\n"
    assert document.read_text() == (
        f"# Benchmarks\n\n## hello\n\n{section}\n## soak\n\nold\n\n## output\n\n{section}"
    )


def test_an_unknown_benchmark_is_refused() -> None:
    command = [sys.executable, str(BENCH / "bench.py"), "--only", "moon"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "moon" in done.stderr


@pytest.mark.parametrize(
    ("samples", "grows"),
    [
        pytest.param([7] * 40, False, id="constant"),
        pytest.param([10 * run for run in range(40)], True, id="straight-up"),
        pytest.param([10 * run + run % 3 for run in range(40)], True, id="up-with-noise"),
        pytest.param([run % 5 for run in range(40)], False, id="noise"),
        pytest.param([100 * (run > 10) for run in range(40)], False, id="one-step"),
        pytest.param([-run for run in range(40)], False, id="down"),
        pytest.param([1, 2], False, id="too-few"),
    ],
)
def test_growth_is_what_goes_on_beyond_noise(
    measuring: dict[str, Any], samples: list[int], grows: bool
) -> None:
    runs = [250 * number for number in range(len(samples))]
    assert measuring["trend"](runs, samples).grows is grows


def test_a_slope_is_given_per_thousand_runs(measuring: dict[str, Any]) -> None:
    line = measuring["trend"]([0, 250, 500, 750, 1000, 1250], [5, 6, 7, 8, 9, 10])
    assert line.slope == pytest.approx(4)
    assert line.margin == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("share", "sample"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_quantile_is_a_sample(measuring: dict[str, Any], share: float, sample: int) -> None:
    assert measuring["quantile"](list(range(100, 0, -1)), share) == sample
