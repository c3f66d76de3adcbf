from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadPolicy
from belljar.policy.trees import Node, from_json, from_yaml, read_text

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=10)
KEYS = st.text(alphabet="abcdef_.ü", min_size=1, max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


def plain(node: Node) -> Any:
    if isinstance(node.content, dict):
        return {key: plain(value) for key, value in node.content.items()}
    return [plain(item) for item in node.content] if isinstance(node.content, tuple) else node.content


@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_the_library_reads_it(value: Any, indent: Any) -> None:
    assert plain(from_json(json.dumps(value, indent=indent), "x.json")) == value


def test_json_nodes_know_their_line_and_place() -> None:
    root = from_json('{\n "a": {\n  "b":\n   [1,\n    2]\n }\n}', "x.json")
    b = root.entries()["a"].entries()["b"]
    assert (b.line, b.place) == (3, "a.b")
    assert [item.line for item in b.items()] == [4, 5]


def test_yaml_nodes_know_their_line_and_place() -> None:
    root = from_yaml("a:\n  b:\n    - 1\n    - 2\n", "x.yaml")
    b = root.entries()["a"].entries()["b"]
    assert (b.line, b.place) == (2, "a.b")
    assert [item.line for item in b.items()] == [3, 4]


def test_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"x" * 256 * 1024)
    assert len(read_text(path)) == 256 * 1024


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(b"x" * (256 * 1024 + 1), "larger than 256 KB", id="large"),
        pytest.param(b"a: \0", "not a text file", id="binary"),
        pytest.param(b"a: \xff", "not UTF-8: byte 3", id="latin-1"),
    ],
)
def test_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "p"
    path.write_bytes(content)
    with pytest.raises(BadPolicy, match=complaint):
        read_text(path)


def test_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_text(path) == "a: 1"


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="is a directory"):
        read_text(tmp_path)


def test_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadPolicy, match="not a regular file"):
        read_text(tmp_path / "pipe")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("no\0name", id="nul"),
        pytest.param("x" * 5000, id="long"),
        pytest.param("\ud800", id="lone-surrogate"),
        pytest.param("", id="empty"),
    ],
)
def test_name_of_no_file_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        read_text(name)
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()


def test_every_descriptor_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(BadPolicy):
            read_text(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before
