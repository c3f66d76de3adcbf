"""Archives from strangers: whatever the bytes, files and folders come out or our own error does."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import paths
from belljar.errors import BadRequest, PathNotAllowed
from belljar.execution.archives import END, Entry, header, padding, unpacked

NAMES = st.lists(
    st.text(st.characters(min_codepoint=0x61, max_codepoint=0x24F), min_size=1, max_size=60),
    min_size=1,
    max_size=6,
).map("/".join)


def packed(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@given(name=NAMES.filter(lambda name: paths.is_within(name, [name])), content=st.binary(max_size=2000))
def test_what_is_packed_is_unpacked(name: str, content: bytes) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        assert unpacked(packed({name: content}, form), max_files=1) == [Entry(name, content)]
    ours = header(name, len(content), mode=0o644, mtime_s=0) + content + padding(len(content)) + END
    assert unpacked(ours, max_files=1) == [Entry(name, content)]


@given(junk=st.binary(max_size=3000), at=st.integers(0, 2000))
def test_no_bytes_make_anything_but_files_or_our_error(junk: bytes, at: int) -> None:
    good = packed({"a/" + "n" * 120: b"x" * 600, "b": b""})
    for archive in (junk, good[:at] + junk[:20] + good[at + len(junk[:20]) :], good[:at]):
        try:
            found = unpacked(archive, max_files=10)
        except BadRequest:
            continue
        assert all(paths.is_within(entry.path, [entry.path]) for entry in found)


@pytest.mark.parametrize("size", [b"-1", b"99999999999999", b"1e3", b"", b"0x10"])
def test_a_size_that_a_header_invents_is_refused(size: bytes) -> None:
    record = b" size=" + size + b"\n"
    length = len(record) + 2
    body = (b"%d" % length) + record
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(body)
    forged = info.tobuf(tarfile.USTAR_FORMAT) + body + padding(len(body)) + packed({"f": b"content"})
    with pytest.raises(BadRequest):
        unpacked(forged, max_files=10)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "a/..", ".ssh/id", "c:/x", "\u2024\u2024/x"])
def test_a_name_that_breaks_the_rules_is_refused(name: str) -> None:
    with pytest.raises(PathNotAllowed):
        unpacked(packed({name: b""}), max_files=10)


def test_what_tar_puts_before_names_is_taken_away() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in ((".", tarfile.DIRTYPE), ("./d", tarfile.DIRTYPE), ("./d/f", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type = kind
            archive.addfile(info)
    assert unpacked(out.getvalue(), max_files=10) == [Entry("d", None), Entry("d/f", b"")]
