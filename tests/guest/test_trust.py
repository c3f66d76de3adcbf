"""Files beside the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.guest import trust


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(trust, "FOLDER", str(tmp_path / "folder"))
    return tmp_path / "folder"


def test_files_are_written(folder: Path) -> None:
    trust.write({"a.cjs": "text"}, "")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a.cjs": "text"}


def test_a_certificate_is_added_to_those_of_the_system(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("theirs\n")
    monkeypatch.setattr(trust, "_SYSTEMS", (str(tmp_path / "absent"), str(bundle)))
    trust.write({}, "ours\n")
    assert (folder / "certificates.pem").read_text() == "ours\ntheirs\n"


def test_a_system_that_trusts_nobody_trusts_us(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_SYSTEMS", (str(tmp_path / "absent"),))
    trust.write({}, "ours\n")
    assert (folder / "certificates.pem").read_text() == "ours\n"
