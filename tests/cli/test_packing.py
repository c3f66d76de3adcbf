from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.packing import unpack
from belljar.errors import BadRequest


def test_files_are_written_below_the_folder(tmp_path: Path) -> None:
    landed = unpack(tmp_path / "a/out", [("x/y.txt", b"1"), ("artifacts/z", b"2")], overwrite=False)
    assert landed.written == ("x/y.txt", "artifacts/z")
    assert (tmp_path / "a/out/x/y.txt").read_bytes() == b"1"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("../evil", id="parent"),
        pytest.param("/etc/evil", id="absolute"),
        pytest.param("a\\..\\evil", id="backslash"),
        pytest.param(".ssh/authorized_keys", id="sensitive"),
        pytest.param("a\x00", id="nul"),
        pytest.param("", id="empty"),
        pytest.param("link/evil", id="through-a-link"),
    ],
)
def test_a_hostile_name_is_left_out_and_the_rest_is_kept(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (out / "link").symlink_to(tmp_path / "elsewhere")
    landed = unpack(out, [(name, b"x"), ("good", b"y")], overwrite=True)
    assert landed.written == ("good",)
    assert [path for path, _ in landed.refused] == [name]
    assert not list((tmp_path / "elsewhere").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "out"]


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    assert unpack(tmp_path, [("a", b"theirs")], overwrite=False).refused == (("a", "exists"),)
    assert (tmp_path / "a").read_text() == "mine"
    assert unpack(tmp_path, [("a", b"theirs")], overwrite=True).written == ("a",)
    assert (tmp_path / "a").read_text() == "theirs"


def test_a_link_under_the_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a").symlink_to("mine")
    assert unpack(tmp_path, [("a", b"theirs")], overwrite=False).written == ()
    assert unpack(tmp_path, [("a", b"theirs")], overwrite=True).written == ("a",)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_a_bad_request(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest):
        unpack(tmp_path / "file/x", [], overwrite=False)


def test_without_a_folder_nothing_is_written() -> None:
    assert unpack(None, [("a", b"x")], overwrite=False).written == ()
