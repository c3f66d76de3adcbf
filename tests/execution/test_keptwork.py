"""The `work` of a project between its runs: what goes back, what goes, and what no run may be given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.errors import LimitExceeded, StoreUnavailable
from belljar.execution.keptwork import KeptWork
from belljar.models import Artifact, Limits, RunResult, Skipped, SkipReason, Usage, Verdict

NOT_GIVEN = [
    pytest.param(name, id=name)
    for name in ("a\\b", ".netrc", ".ssh/x", "/".join(["d"] * 40), "..hidden/\\x07", "C:x")
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data/projects/p/work"


@pytest.fixture
def work(folder: Path) -> KeptWork:
    return KeptWork(folder)


def left(*removed: str, **changed: bytes) -> RunResult:
    return of_files(changed, removed)


def of_files(changed: dict[str, bytes], removed: tuple[str, ...] = ()) -> RunResult:
    return RunResult(
        verdict=Verdict.EXITED,
        exit_code=0,
        signal=None,
        stdout=b"",
        stderr=b"",
        stdout_bytes=0,
        stderr_bytes=0,
        usage=Usage(),
        artifacts=tuple(Artifact(path, len(data), "", "", data) for path, data in changed.items()),
        removed=removed,
    )


def kept(work: KeptWork, limits: Limits | None = None) -> dict[str, bytes]:
    return {file.path: file.content for file in work.load(limits or Limits())}


def test_what_a_run_changed_is_there_for_the_next(work: KeptWork) -> None:
    work.keep(left(a=b"1", b=b"2"), Limits())
    work.keep(of_files({"b": b"3", "artifacts/c": b"the run's alone"}), Limits())
    assert kept(work) == {"a": b"1", "b": b"3"}


def test_what_a_run_removed_does_not_come_back(work: KeptWork, folder: Path) -> None:
    work.keep(of_files({"d/e/a": b"1", "d/b": b"2", "c": b"3"}), Limits())
    work.keep(left("d/e/a", "c", "never/there", "c/below"), Limits())
    assert kept(work) == {"d/b": b"2"}
    assert not (folder / "d/e").exists()


@pytest.mark.parametrize(
    ("before", "after"), [pytest.param("a", "a/b", id="folder"), pytest.param("a/b", "a", id="file")]
)
def test_a_file_and_a_folder_can_take_each_other_s_name(work: KeptWork, before: str, after: str) -> None:
    work.keep(of_files({before: b"1"}), Limits())
    work.keep(of_files({after: b"2"}, (before,)), Limits())
    assert kept(work) == {after: b"2"}


def test_what_another_run_put_in_the_place_of_a_removed_file_stays(work: KeptWork) -> None:
    work.keep(of_files({"a/b": b"1"}), Limits())
    work.keep(left("a"), Limits())
    assert kept(work) == {"a/b": b"1"}


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_what_no_run_may_be_given_is_not_kept_and_named(work: KeptWork, name: str) -> None:
    skipped = work.keep(of_files({name: b"x", "good": b"y"}), Limits())
    assert skipped == (Skipped(name, SkipReason.NOT_KEPT),)
    assert kept(work) == {"good": b"y"}


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_a_project_that_has_such_a_file_works_again(work: KeptWork, folder: Path, name: str) -> None:
    for path in (folder / name, folder / "good"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"y")
    assert kept(work) == {"good": b"y"}


@pytest.mark.parametrize(
    ("limits", "size", "fit"),
    [
        pytest.param(Limits(input_files=3), 1, ["a", "b"], id="files"),
        pytest.param(Limits(input_mb=1), 1 << 20, ["a", "c"], id="bytes"),
    ],
)
def test_more_than_the_next_run_can_be_given_is_not_kept_and_named(
    work: KeptWork, limits: Limits, size: int, fit: list[str]
) -> None:
    skipped = work.keep(left(a=b"x", b=b"x" * size, c=b"x"), limits)
    assert sorted(kept(work, limits)) == fit
    assert {skip.path for skip in skipped} == {"a", "b", "c"} - set(fit)
    assert work.keep(left(a=b"y"), limits) == ()
    assert kept(work, limits)["a"] == b"y"


def test_folders_are_not_counted_as_files(work: KeptWork) -> None:
    limits = Limits(input_files=3)
    work.keep(of_files({"a/b/c/d": b"1", "e/f/g": b"2"}), limits)
    assert kept(work, limits) == {"a/b/c/d": b"1", "e/f/g": b"2"}


@pytest.mark.parametrize(
    "limits", [pytest.param(Limits(input_files=1), id="files"), pytest.param(Limits(input_mb=1), id="bytes")]
)
def test_work_that_does_not_fit_a_smaller_grant_is_refused(work: KeptWork, limits: Limits) -> None:
    work.keep(left(a=b"x" * (1 << 20), b=b"x"), Limits())
    with pytest.raises(LimitExceeded):
        work.load(limits)


@pytest.mark.parametrize(
    "blocked", [pytest.param("..", id="cannot be made"), pytest.param(".", id="no folder")]
)
def test_work_that_cannot_be_used_is_named_without_the_place_of_the_data(
    work: KeptWork, folder: Path, blocked: str
) -> None:
    path = Path(os.path.normpath(folder / blocked))
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(StoreUnavailable, match="^the folder projects/p/work cannot be used: "):
        work.load(Limits())
