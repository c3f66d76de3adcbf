from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.execution.retention import sweep

DAY = 86_400
NOW = 1_000 * DAY


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Five runs of 1 KiB, made one day after the other, the last one today."""
    for age in range(5):
        folder = tmp_path / f"p{age % 2}/artifacts/ex-{age}"
        (folder / "files").mkdir(parents=True)
        (folder / "files/data").write_bytes(bytes(1024))
        os.utime(folder, (NOW - age * DAY, NOW - age * DAY))
    return tmp_path


def left(projects: Path) -> set[str]:
    return {path.name for path in projects.glob("*/artifacts/*")}


def test_what_is_too_old_goes(projects: Path) -> None:
    removed = sweep(projects, live=(), now=NOW, keep_days=2.5, keep_gb=0)
    assert {path.name for path in removed} == {"ex-3", "ex-4"}
    assert left(projects) == {"ex-0", "ex-1", "ex-2"}


def test_the_oldest_goes_when_it_is_too_much(projects: Path) -> None:
    sweep(projects, live=(), now=NOW, keep_days=0, keep_gb=2.5 * 1024 / (1 << 30))
    assert left(projects) == {"ex-0", "ex-1"}


def test_a_run_that_goes_on_is_never_touched(projects: Path) -> None:
    sweep(projects, live={"ex-4"}, now=NOW, keep_days=1, keep_gb=1 / (1 << 30))
    assert left(projects) == {"ex-4"}


def test_without_limits_everything_stays(projects: Path) -> None:
    assert sweep(projects, live=(), now=NOW, keep_days=0, keep_gb=0) == ()
    assert len(left(projects)) == 5


def test_a_link_in_a_run_is_removed_and_not_followed(projects: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    (projects / "p0/artifacts/ex-4/files/link").symlink_to(outside)
    sweep(projects, live=(), now=NOW, keep_days=3.5, keep_gb=0)
    assert (outside / "keep").exists()
    assert "ex-4" not in left(projects)
