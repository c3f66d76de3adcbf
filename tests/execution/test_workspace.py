"""The `work` of a project between its runs: what goes back, what goes, and what no run may be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import LimitExceeded, StoreUnavailable
from belljar.execution.workspace import Workspace
from belljar.models import Artifact, Limits, RunResult, Skipped, SkipReason, Usage, Verdict

NOT_GIVEN = [
    pytest.param(name, id=name)
    for name in ("a\\b", ".netrc", ".ssh/x", "/".join(["d"] * 40), "..hidden/\\x07", "C:x")
]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


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


def kept(workspace: Workspace, limits: Limits | None = None) -> dict[str, bytes]:
    return {file.path: file.content for file in workspace.kept_work("p", limits or Limits())}


def test_what_a_run_changed_is_there_for_the_next(workspace: Workspace) -> None:
    workspace.keep_work("p", left(a=b"1", b=b"2"), Limits())
    workspace.keep_work("p", of_files({"b": b"3", "artifacts/c": b"the run's alone"}), Limits())
    assert kept(workspace) == {"a": b"1", "b": b"3"}


def test_what_a_run_removed_does_not_come_back(workspace: Workspace) -> None:
    workspace.keep_work("p", of_files({"d/e/a": b"1", "d/b": b"2", "c": b"3"}), Limits())
    workspace.keep_work("p", left("d/e/a", "c", "never/there", "c/below"), Limits())
    assert kept(workspace) == {"d/b": b"2"}
    assert not (workspace.project("p") / "work/d/e").exists()


@pytest.mark.parametrize(
    ("before", "after"), [pytest.param("a", "a/b", id="folder"), pytest.param("a/b", "a", id="file")]
)
def test_a_file_and_a_folder_can_take_each_other_s_name(
    workspace: Workspace, before: str, after: str
) -> None:
    workspace.keep_work("p", of_files({before: b"1"}), Limits())
    workspace.keep_work("p", of_files({after: b"2"}, (before,)), Limits())
    assert kept(workspace) == {after: b"2"}


def test_what_another_run_put_in_the_place_of_a_removed_file_stays(workspace: Workspace) -> None:
    workspace.keep_work("p", of_files({"a/b": b"1"}), Limits())
    workspace.keep_work("p", left("a"), Limits())
    assert kept(workspace) == {"a/b": b"1"}


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_what_no_run_may_be_given_is_not_kept_and_named(workspace: Workspace, name: str) -> None:
    skipped = workspace.keep_work("p", of_files({name: b"x", "good": b"y"}), Limits())
    assert skipped == (Skipped(name, SkipReason.NOT_KEPT),)
    assert kept(workspace) == {"good": b"y"}


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_a_project_that_has_such_a_file_works_again(workspace: Workspace, name: str) -> None:
    work = workspace.project("p") / "work"
    for path in (work / name, work / "good"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"y")
    assert kept(workspace) == {"good": b"y"}


@pytest.mark.parametrize(
    ("limits", "size", "fit"),
    [
        pytest.param(Limits(input_files=3), 1, ["a", "b"], id="files"),
        pytest.param(Limits(input_mb=1), 1 << 20, ["a", "c"], id="bytes"),
    ],
)
def test_more_than_the_next_run_can_be_given_is_not_kept_and_named(
    workspace: Workspace, limits: Limits, size: int, fit: list[str]
) -> None:
    skipped = workspace.keep_work("p", left(a=b"x", b=b"x" * size, c=b"x"), limits)
    assert sorted(kept(workspace, limits)) == fit
    assert {skip.path for skip in skipped} == {"a", "b", "c"} - set(fit)
    assert workspace.keep_work("p", left(a=b"y"), limits) == ()
    assert kept(workspace, limits)["a"] == b"y"


def test_folders_are_not_counted_as_files(workspace: Workspace) -> None:
    limits = Limits(input_files=3)
    workspace.keep_work("p", of_files({"a/b/c/d": b"1", "e/f/g": b"2"}), limits)
    assert kept(workspace, limits) == {"a/b/c/d": b"1", "e/f/g": b"2"}


@pytest.mark.parametrize(
    "limits", [pytest.param(Limits(input_files=1), id="files"), pytest.param(Limits(input_mb=1), id="bytes")]
)
def test_work_that_does_not_fit_a_smaller_grant_is_refused(workspace: Workspace, limits: Limits) -> None:
    workspace.keep_work("p", left(a=b"x" * (1 << 20), b=b"x"), Limits())
    with pytest.raises(LimitExceeded):
        workspace.kept_work("p", limits)


@pytest.mark.parametrize(
    "blocked",
    [pytest.param("projects/p", id="cannot be made"), pytest.param("projects/p/work", id="no folder")],
)
def test_work_that_cannot_be_used_is_named_without_the_place_of_the_data(
    tmp_path: Path, blocked: str
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    path = workspace.root / blocked
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(StoreUnavailable, match="^the folder workspace/projects/p/work cannot be used: "):
        workspace.kept_work("p", Limits())
