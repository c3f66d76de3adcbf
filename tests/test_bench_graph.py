"""The benchmark of graphs works. Times are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench/bench_graph.py"


def test_it_measures_every_shape() -> None:
    command = [sys.executable, str(BENCH), "--nodes", "30", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["nodes"] == 30
    assert len(found["shapes"]) == 4
    for times in found["shapes"].values():
        assert times.keys() == {"read_us", "run_us", "resume_us", "bare_us", "ratio"}
        assert min(times.values()) > 0
