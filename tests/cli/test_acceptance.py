"""The flow of a run in a project (design 001 §6), and what that design wants to be accepted by (§9).

Its four points on graphs, paths, limits and tools are kept in tests/flows: test_graph_run.py (a `sandbox_run` that goes
well, `../` refused, files past their limit refused) and test_legacy.py (tools with the backend on and off); its point on
units in test_project.py and tests/test_paths.py. What is here is all of it as a person meets it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

HERE = {"BELLJAR_PORT": "9", "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always"}
CODE = """
import csv
rows = list(csv.DictReader(open('docs/input/data.csv')))
with open('/workspace/artifacts/total.txt', 'w') as file:
    file.write(str(sum(int(row['n']) for row in rows)))
print(len(rows), 'rows')
"""


@pytest.fixture
def project(belljar: Belljar) -> Path:
    Path("docs/input").mkdir(parents=True)
    Path("docs/input/data.csv").write_text("n\n1\n2\n3\n")
    Path("task.py").write_text(CODE)
    return Path()


@pytest.mark.usefixtures("jail", "project")
def test_a_run_takes_from_the_project_and_leaves_its_artifacts_and_its_trail_there(belljar: Belljar) -> None:
    ran = belljar(
        "run", "task.py", "--project", ".", "--language", "python", "--input", "docs/input/data.csv",
        "--timeout", "20", "--json", **HERE,
    )  # fmt: skip
    summary = ran.json
    run_id = summary["run_id"]
    assert ran.status == 0
    assert summary["written_files"] == [f"docs/artifacts/{run_id}/total.txt"]
    assert summary["written_bytes"] == 1
    assert Path(f"docs/artifacts/{run_id}/total.txt").read_text() == "6"
    kept = json.loads(Path(f".belljar/runs/{run_id}/sandbox/result.json").read_text())
    assert (kept["exit_code"], kept["timed_out"], kept["stdout"]) == (0, False, "3 rows\n")
    assert [file["path"] for file in kept["output_files"]] == ["artifacts/total.txt"]
    lines = Path(f".belljar/runs/{run_id}/events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["sandbox_start", "sandbox_complete"]


@pytest.mark.usefixtures("jail", "project")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--input", "../../etc/passwd"), id="input-outside"),
        pytest.param(("--input", "docs/input/none.csv"), id="input-missing"),
        pytest.param(("--output-prefix", "../out"), id="output-outside"),
        pytest.param(("--output-prefix", "src"), id="output-not-allowed"),
    ],
)
def test_a_path_that_leads_out_is_refused_before_anything_runs(
    belljar: Belljar, arguments: tuple[str, ...]
) -> None:
    ran = belljar("run", "task.py", *arguments, **HERE)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert not Path(".belljar").exists()


@pytest.mark.usefixtures("jail", "project")
def test_a_run_that_cannot_be_is_a_failure_in_the_trail(belljar: Belljar) -> None:
    ran = belljar("run", "--code", "1", "--package", "numpy", **HERE)
    assert ran.status != 0
    [events] = Path(".belljar/runs").glob("*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["event"] for event in told] == ["sandbox_start", "sandbox_failed"]
