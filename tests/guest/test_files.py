"""The files of a session as the guest tells of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.guest import files, protocol


@pytest.mark.parametrize("name", [b"\xff" * 255, b"\x01" * 255], ids=["bytes", "control"])
def test_a_listing_of_long_names_comes_in_frames_that_may_be_sent(tmp_path: Path, name: bytes) -> None:
    """However deep they lie: each is told with its whole path."""
    area = folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir(name, dir_fd=folder)
        folder, above = os.open(name, os.O_RDONLY, dir_fd=folder), folder
        if above != area:
            os.close(above)
    for number in range(256):
        os.close(os.open(b"%d" % number, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    request = {
        "op": "list",
        "area": "work",
        "path": "",
        "max_entries": 1000,
        "max_depth": 64,
        "max_name_bytes": 8 << 20,
    }
    decoder = protocol.Decoder()
    told = [frame for sent in files.answer({"work": area}, 2, request) for frame in decoder.feed(sent)]
    os.close(area)
    assert [frame.kind for frame in told][-1] == protocol.END
    assert sum(len(frame.json()["entries"]) for frame in told[:-1]) == 60 + 256
