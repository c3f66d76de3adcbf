"""The project store: what is packed, what lands, and that it lands whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest, LimitExceeded, NotFound, PathNotAllowed
from belljar.flows.project import Landed, Project, ProjectRun, prefix_for, summary
from belljar.models import Limits, RunResult, Usage, Verdict

PREFIXES = ("docs/", ".belljar/runs/")
DEFAULT = "docs/artifacts/run-1"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ProjectRun]:
    with Project(tmp_path) as project:
        yield project.start("run-1")


def land(run: ProjectRun, *files: tuple[str, bytes], prefix: str = DEFAULT, **options: Any) -> Landed:
    return run.land(files, lambda landed: {"written_files": landed.written}, prefix=prefix, **options)


def events(run: ProjectRun) -> list[str]:
    return [str(event["event"]) for event in run.events()]


def test_artifacts_land_below_the_runs_own_folder(run: ProjectRun, tmp_path: Path) -> None:
    landed = land(run, ("a.txt", b"1"), ("artifacts/deep/b.txt", b"22"))
    assert landed.written == ("docs/artifacts/run-1/a.txt", "docs/artifacts/run-1/deep/b.txt")
    assert landed.total_bytes == 3
    assert (tmp_path / "docs/artifacts/run-1/deep/b.txt").read_bytes() == b"22"


def test_two_files_of_one_name_both_land(run: ProjectRun) -> None:
    landed = land(run, ("x", b"work"), ("artifacts/x", b"artifact"))
    assert landed.written == ("docs/artifacts/run-1/x", "docs/artifacts/run-1/artifacts/x")


def test_the_result_and_the_event_say_what_was_written(run: ProjectRun, tmp_path: Path) -> None:
    land(run, ("a.txt", b"1"), exit_code=0)
    written = json.loads((tmp_path / ".belljar/runs/run-1/sandbox/result.json").read_text())
    assert written == {"written_files": ["docs/artifacts/run-1/a.txt"]}
    [event] = run.events()
    assert (event["event"], event["exit_code"], event["files"][0]["size"]) == ("sandbox_complete", 0, 1)


def test_a_summary_has_the_start_of_the_output(tmp_path: Path) -> None:
    result = RunResult(
        verdict=Verdict.EXITED,
        exit_code=0,
        signal=None,
        stdout=b"x" * 10_000,
        stderr=b"\xff",
        stdout_bytes=10_000,
        stderr_bytes=1,
        usage=Usage(wall_s=0.25),
    )
    told: Any = summary("run-1", result, Landed(DEFAULT), keep=4096)
    assert told["duration_ms"] == 250
    assert len(told["stdout"]) < 10_000 == told["stdout_bytes"]
    assert told["stderr"] == "\N{REPLACEMENT CHARACTER}"


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
    run: ProjectRun, tmp_path: Path, name: str, reason: str
) -> None:
    landed = land(run, (name, b"evil"), ("good", b"1"))
    assert landed.refused == ((name, reason),)
    assert landed.written == ("docs/artifacts/run-1/good",)
    assert not (tmp_path / "docs/artifacts/up").exists()


@pytest.mark.parametrize("name", ["events.jsonl", "state.json", "sandbox/x/result.json"])
def test_a_run_cannot_write_what_is_written_down_about_it(run: ProjectRun, name: str) -> None:
    landed = land(run, (name, b"forged"), prefix=".belljar/runs/run-1", overwrite=True)
    assert landed.refused == ((name, "reserved"),)


def test_nothing_is_overwritten_unless_asked_for(run: ProjectRun, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/report.md").write_text("mine")
    assert land(run, ("report.md", b"new"), prefix="docs").refused == (("report.md", "exists"),)
    assert (tmp_path / "docs/report.md").read_text() == "mine"


def test_an_overwrite_is_an_event(run: ProjectRun, tmp_path: Path) -> None:
    there = tmp_path / "docs/out/report.md"
    there.parent.mkdir(parents=True)
    there.write_text("old")
    landed = land(run, ("report.md", b"new"), prefix="docs/out", overwrite=True)
    assert there.read_bytes() == b"new"
    assert events(run) == ["overwrite", "sandbox_complete"]
    assert landed.changes[0].before is not None


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_link_in_the_project_leads_nowhere(run: ProjectRun, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/out").symlink_to(tmp_path / "outside")
    assert land(run, ("x", b"1"), prefix="docs/out", overwrite=overwrite).refused == (("x", "symlink"),)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_of_the_artifacts_name_is_replaced_and_not_followed(run: ProjectRun, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("keep")
    (tmp_path / "docs/out").mkdir(parents=True)
    (tmp_path / "docs/out/x").symlink_to(tmp_path / "secret")
    land(run, ("x", b"new"), prefix="docs/out", overwrite=True)
    assert (tmp_path / "secret").read_text() == "keep"
    assert (tmp_path / "docs/out/x").read_bytes() == b"new"


def test_a_folder_is_not_replaced_by_a_file_nor_a_file_by_a_folder(run: ProjectRun, tmp_path: Path) -> None:
    (tmp_path / "docs/out/folder").mkdir(parents=True)
    (tmp_path / "docs/out/file").touch()
    landed = land(run, ("folder", b"1"), ("file/x", b"2"), prefix="docs/out", overwrite=True)
    assert [reason for _, reason in landed.refused] == ["not_regular", "not_regular"]


@pytest.mark.parametrize("prefix", ["src", "docs2/x", "../docs", "/docs"])
def test_a_prefix_outside_the_allowed_ones_is_refused(prefix: str) -> None:
    with pytest.raises(PathNotAllowed) as refused:
        prefix_for("run-1", prefix, PREFIXES)
    assert refused.value.field == "output_prefix"


# Whole, or not at all

KILLED_AT = """
import os, signal, sys
from pathlib import Path
from belljar.flows import landing, project
calls = 0
def killing(function, at):
    def called(*args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return called
folder, at, prefix = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with project.Project(folder) as opened:
    run = opened.start("run-1")
    # Every step of a landing that changes the disk.
    os.rename, os.mkdir = killing(os.rename, at), killing(os.mkdir, at)
    landing.tree.write_file = killing(landing.tree.write_file, at)
    landing.append = killing(landing.append, at)
    run.land([(f"f{n}", b"x" * 100) for n in range(5)], lambda landed: {}, prefix=prefix)
print(calls)
"""


def landing_killed_at(folder: Path, step: int, prefix: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED_AT, str(folder), str(step), prefix]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("prefix", [pytest.param(DEFAULT, id="new"), pytest.param("docs/out", id="shared")])
def test_a_run_that_dies_in_the_middle_of_landing_leaves_all_or_nothing(tmp_path: Path, prefix: str) -> None:
    steps = 100
    outcomes = set()
    step = 0
    while step < steps:
        step += 1
        folder = tmp_path / str(step)
        (folder / "docs/out").mkdir(parents=True)
        (folder / "docs/out/other").touch()
        done = landing_killed_at(folder, step, prefix)
        if done.returncode == 0:
            steps = int(done.stdout)
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        if prefix == DEFAULT:  # one rename, so there is no half of it at any time
            assert len(list((folder / prefix).glob("f*"))) in (0, 5)
        with Project(folder) as project:
            landed = sorted(path.name for path in (folder / prefix).glob("f*"))
            told = [event["event"] for event in project.again("run-1").events()]
        assert landed in ([], [f"f{n}" for n in range(5)])
        assert (folder / ".belljar/runs/run-1/sandbox/result.json").exists() == bool(landed)
        assert ("sandbox_complete" in told) == bool(landed)
        assert not list((folder / ".belljar/landing").glob("*"))
        outcomes.add(bool(landed))
    assert outcomes == {True, False}
    assert steps > 10


def test_a_landing_that_is_under_way_is_left_alone(run: ProjectRun, tmp_path: Path) -> None:
    def told(landed: Landed) -> dict[str, object]:
        with Project(tmp_path):  # somebody else opens the project now
            pass
        return {}

    assert run.land([("x", b"1")], told, prefix=DEFAULT).written == (f"{DEFAULT}/x",)
    assert (tmp_path / DEFAULT / "x").read_bytes() == b"1"


@pytest.mark.parametrize(
    "decision",
    [
        pytest.param("{}", id="empty"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"files": 7}', id="odd"),
        pytest.param(
            json.dumps(
                {
                    "prefix": "../../up",
                    "files": ["../../up/x", "/tmp/x"],
                    "result_path": "../../up/result.json",
                    "result": "evil",
                    "trail_path": "docs/none",
                    "trail": "evil",
                }
            ),
            id="leads-out",
        ),
    ],
)
def test_a_landing_that_came_with_the_project_harms_nobody(tmp_path: Path, decision: str) -> None:
    folder = tmp_path / "a/project"
    place = folder / ".belljar/landing/evil"
    (place / "files").mkdir(parents=True)
    (place / "commit.json").write_text(decision)
    with Project(folder):
        assert not place.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["project"]


# What goes in


def test_files_and_folders_are_packed_under_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/a").write_text("1")
    (tmp_path / "data/deep/b").write_text("2")
    with Project(tmp_path) as project:
        packed = project.pack(["data/", "data/a"], Limits())
    assert {file.path: file.content for file in packed} == {"data/a": b"1", "data/deep/b": b"2"}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("../x", PathNotAllowed, id="parent"),
        pytest.param(".ssh/id", PathNotAllowed, id="sensitive"),
        pytest.param("src/x", PathNotAllowed, id="outside-prefix"),
        pytest.param("docs/none", BadRequest, id="missing"),
        pytest.param("docs/link", BadRequest, id="link"),
        pytest.param("docs/pipe", BadRequest, id="fifo"),
        pytest.param("docs/large", LimitExceeded, id="too-large"),
        pytest.param("docs/many", LimitExceeded, id="too-many"),
    ],
)
def test_what_cannot_be_packed_is_refused_at_once(tmp_path: Path, name: str, error: type[BadRequest]) -> None:
    (tmp_path / "docs/many").mkdir(parents=True)
    (tmp_path / "docs/link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "docs/pipe")
    with (tmp_path / "docs/large").open("wb") as file:
        file.truncate((1 << 20) + 1)
    for number in range(4):
        (tmp_path / f"docs/many/{number}").touch()
    with Project(tmp_path) as project, pytest.raises(error) as refused:
        project.pack([name], Limits(input_mb=1, input_files=3), allowed_prefixes=("docs/",))
    assert refused.value.field == "input_files"


@given(sizes=st.lists(st.integers(0, 600_000), max_size=6))
def test_packed_files_never_exceed_the_limit_together(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("project")
    for number, size in enumerate(sizes):
        (folder / f"f{number}").write_bytes(bytes(size))
    with Project(folder) as project:
        names = [f"f{number}" for number in range(len(sizes))]
        if sum(sizes) <= 1 << 20:
            assert [len(file.content) for file in project.pack(names, Limits(input_mb=1))] == sizes
        else:
            with pytest.raises(LimitExceeded):
                project.pack(names, Limits(input_mb=1))


def test_a_run_that_was_never_there_is_not_found(tmp_path: Path) -> None:
    with Project(tmp_path) as project:
        for name in ("none", "../..", ""):
            with pytest.raises(NotFound):
                project.again(name)


def test_what_is_no_folder_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        Project(tmp_path / "none")
