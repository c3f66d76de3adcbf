from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.errors import PathNotAllowed
from belljar.execution.landing import Landing
from belljar.models import Artifact, RunResult, Usage, Verdict

PREFIXES = ("docs/", ".belljar/runs/")


def result(*files: tuple[str, bytes]) -> RunResult:
    return RunResult(
        verdict=Verdict.EXITED,
        exit_code=0,
        signal=None,
        stdout=b"x" * 10_000,
        stderr=b"\xff",
        stdout_bytes=10_000,
        stderr_bytes=1,
        usage=Usage(wall_s=0.25),
        artifacts=tuple(
            Artifact(path, len(content), "0" * 64, "text/plain", content) for path, content in files
        ),
    )


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path, "run-1", output_prefix=None, allowed_prefixes=PREFIXES)


def events(project: Path) -> list[str]:
    lines = (project / ".belljar/runs/run-1/events.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_artifacts_land_below_the_runs_own_folder(landing: Landing, tmp_path: Path) -> None:
    landed = landing.land(result(("a.txt", b"1"), ("artifacts/deep/b.txt", b"2")))
    assert landed.written == ("docs/artifacts/run-1/a.txt", "docs/artifacts/run-1/deep/b.txt")
    assert (tmp_path / "docs/artifacts/run-1/deep/b.txt").read_bytes() == b"2"


def test_two_files_of_one_name_both_land(landing: Landing) -> None:
    landed = landing.land(result(("x", b"work"), ("artifacts/x", b"artifact")))
    assert landed.written == ("docs/artifacts/run-1/x", "docs/artifacts/run-1/artifacts/x")


def test_the_result_is_written_down_with_the_start_of_its_output(landing: Landing, tmp_path: Path) -> None:
    landing.land(result(("a.txt", b"1")))
    written = json.loads((tmp_path / ".belljar/runs/run-1/sandbox/result.json").read_text())
    assert written["duration_ms"] == 250
    assert len(written["stdout"]) < 10_000 == written["stdout_bytes"]
    assert written["stderr"] == "\N{REPLACEMENT CHARACTER}"
    assert written["output_files"][0]["path"] == "a.txt"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("../up", "parent", id="parent"),
        pytest.param("/etc/x", "empty_component", id="absolute"),
        pytest.param(".ssh/id", "sensitive", id="sensitive"),
        pytest.param("a\nb", "control", id="newline"),
        pytest.param("..\\x", "backslash", id="backslash"),
    ],
)
def test_a_name_that_breaks_the_rules_is_refused_and_the_rest_lands(
    landing: Landing, tmp_path: Path, name: str, reason: str
) -> None:
    landed = landing.land(result((name, b"evil"), ("good", b"1")))
    assert landed.refused == ((name, reason),)
    assert landed.written == ("docs/artifacts/run-1/good",)
    assert not (tmp_path / "docs/artifacts/up").exists()


def test_nothing_is_overwritten_unless_asked_for(tmp_path: Path) -> None:
    there = tmp_path / "docs/report.md"
    there.parent.mkdir()
    there.write_text("mine")
    landing = Landing(tmp_path, "run-1", output_prefix="docs", allowed_prefixes=("docs",))
    assert landing.land(result(("report.md", b"new"))).refused == (("report.md", "exists"),)
    assert there.read_text() == "mine"


def test_an_overwrite_is_an_event(tmp_path: Path) -> None:
    there = tmp_path / "docs/out/report.md"
    there.parent.mkdir(parents=True)
    there.write_text("old")
    landing = Landing(tmp_path, "run-1", output_prefix="docs/out", allowed_prefixes=PREFIXES, overwrite=True)
    landing.land(result(("report.md", b"new")))
    assert there.read_bytes() == b"new"
    assert events(tmp_path) == ["overwrite"]


def test_a_link_in_the_project_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    project = tmp_path / "project"
    outside.mkdir()
    (project / "docs").mkdir(parents=True)
    (project / "docs/out").symlink_to(outside)
    landing = Landing(project, "run-1", output_prefix="docs/out", allowed_prefixes=PREFIXES, overwrite=True)
    assert landing.land(result(("x", b"1"))).refused == (("x", "symlink"),)
    assert list(outside.iterdir()) == []


def test_a_link_of_the_artifacts_name_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep")
    project = tmp_path / "project"
    (project / "docs/out").mkdir(parents=True)
    (project / "docs/out/x").symlink_to(secret)
    landing = Landing(project, "run-1", output_prefix="docs/out", allowed_prefixes=PREFIXES, overwrite=True)
    landing.land(result(("x", b"new")))
    assert secret.read_text() == "keep"


@pytest.mark.parametrize("prefix", ["src", "docs2/x", "../docs", "/docs"])
def test_a_prefix_outside_the_allowed_ones_is_refused_before_the_run(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(PathNotAllowed) as refused:
        Landing(tmp_path, "run-1", output_prefix=prefix, allowed_prefixes=PREFIXES)
    assert refused.value.field == "output_prefix"
