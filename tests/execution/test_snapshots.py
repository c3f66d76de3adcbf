"""Snapshots on a real disk: so many of them, and whole or not there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from belljar.errors import LimitExceeded, NotFound
from belljar.execution import snapshots
from belljar.execution.snapshots import Snapshots
from belljar.execution.workspace import Workspace
from belljar.models import Artifact


@pytest.fixture
def kept(tmp_path: Path) -> Snapshots:
    return Snapshots(Workspace(tmp_path))


def files(content: bytes) -> tuple[Artifact, ...]:
    return (Artifact("a", len(content), hashlib.sha256(content).hexdigest(), "text/plain", content),)


def test_a_project_has_only_so_many(kept: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 3)

    def saved(number: int) -> bool:
        try:
            kept.save("p", files(b"%d" % number))
        except LimitExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(saved, range(20))) == 3
    known = kept.all_of("p")
    assert len(known) == 3
    kept.save("q", files(b"another project's"))
    kept.remove("p", known[0].digest)
    kept.save("p", files(b"there is room again"))


def test_a_project_has_only_so_many_bytes(kept: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 10)
    taken = kept.save("p", files(b"123456"))
    with pytest.raises(LimitExceeded, match="remove one"):
        kept.save("p", files(b"654321"))
    assert kept.save("p", files(b"123456")) == taken
    assert kept.save("p", files(b"1234")).size == 4


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda kept, digest: kept.load("p", digest), id="load"),
        pytest.param(lambda kept, digest: kept.all_of("p"), id="list"),
        pytest.param(lambda kept, digest: kept.remove("p", digest), id="remove"),
    ],
)
def test_one_that_is_removed_meanwhile_is_there_or_not(
    kept: Snapshots, use: Callable[[Snapshots, str], object]
) -> None:
    def used(digest: str) -> None:
        try:
            use(kept, digest)
        except NotFound:
            pass

    def removed(digest: str) -> None:
        try:
            kept.remove("p", digest)
        except NotFound:
            pass

    with ThreadPoolExecutor(4) as pool:
        for number in range(50):
            digest = kept.save("p", files(b"%d" % number)).digest
            for done in [pool.submit(used, digest), pool.submit(removed, digest), pool.submit(used, digest)]:
                done.result()
    assert kept.all_of("p") == []
    assert not list(kept._home("p").iterdir())
