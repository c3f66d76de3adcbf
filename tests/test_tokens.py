"""The token files: whole or not there, and for nobody else to read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from belljar.errors import BadConfig, StoreUnavailable
from belljar.tokens import Role, Tokens

WRITERS = [
    pytest.param(lambda tokens: tokens.operator_token(), id="operator"),
    pytest.param(lambda tokens: tokens.create(Role.AGENT, None), id="agent"),
]


@pytest.mark.parametrize("write", WRITERS)
def test_a_token_file_is_for_its_owner_and_nothing_else_is_left(
    tmp_path: Path, write: Callable[[Tokens], object]
) -> None:
    write(Tokens(tmp_path / "data"))
    [file] = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("write", WRITERS)
def test_a_disk_that_is_full_is_one_clear_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Tokens], object]
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="cannot be written: No space left"):
        write(Tokens(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tokens = Tokens(tmp_path / "file/data")
    with pytest.raises(BadConfig, match="cannot be read: Not a directory"):
        tokens.all()
    with pytest.raises(StoreUnavailable, match="cannot be written: Not a directory"):
        tokens.create(Role.AGENT, None)


def test_tokens_that_are_made_at_once_by_several_are_all_there(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:  # each opens the files for itself, as another process would
        made = list(pool.map(lambda _: Tokens(tmp_path).create(Role.AGENT, None)[0].id, range(40)))
    assert {token.id for token in Tokens(tmp_path).all()} == set(made)


def test_two_that_start_at_once_have_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, link = Tokens(tmp_path), os.link

    def beaten(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        other.operator_token()
        link(source, target)

    monkeypatch.setattr(os, "link", beaten)
    assert Tokens(tmp_path).operator_token() == other.operator_token()
    assert [file.name for file in tmp_path.iterdir()] == ["token"]
