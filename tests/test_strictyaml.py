from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadConfig, BadPolicy, BelljarError
from belljar.strictyaml import MAX_BYTES, MAX_DEPTH, Node, read, read_file
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML is installed with and without libyaml; both must say the same."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader")


def plain(node: Node) -> object:
    if isinstance(node.value, dict):
        return {key: plain(below) for key, below in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, tuple) else node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("no", "no", id="no"),
        pytest.param("on", "on", id="on"),
        pytest.param("True", "True", id="capital-true"),
        pytest.param("true", True, id="true"),
        pytest.param("false", False, id="false"),
        pytest.param("~", None, id="tilde"),
        pytest.param("", None, id="nothing"),
        pytest.param("-12", -12, id="int"),
        pytest.param("0.5", 0.5, id="float"),
        pytest.param("1e3", 1000.0, id="exponent"),
        pytest.param("012", "012", id="not-octal"),
        pytest.param("0x10", "0x10", id="not-hex"),
        pytest.param("1_000", "1_000", id="no-underscores"),
        pytest.param("1:30", "1:30", id="not-sexagesimal"),
        pytest.param("2026-01-01", "2026-01-01", id="not-a-date"),
        pytest.param(".inf", ".inf", id="not-infinity"),
        pytest.param("'5'", "5", id="quoted-number"),
        pytest.param('"true"', "true", id="quoted-true"),
        pytest.param("|\n  5", "5", id="block"),
        pytest.param("[a, 1]", ["a", 1], id="list"),
        pytest.param("{no: 1}", {"no": 1}, id="mapping"),
    ],
)
def test_a_value_means_what_it_looks_like(text: str, value: object) -> None:
    assert plain(read(f"key: {text}", "f")) == {"key": value}


def test_an_empty_file_is_a_node_without_value() -> None:
    assert read("# nothing\n", "f") == Node(None, 1)


def test_a_value_has_the_line_of_its_key() -> None:
    root = read("a: 1\n\nb:\n\n  - x\n  - y\n", "f").value
    assert isinstance(root, dict)
    assert [root["a"].line, root["b"].line] == [1, 3]
    assert isinstance(root["b"].value, tuple)
    assert [item.line for item in root["b"].value] == [5, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: 1\nb: 2\na: 3", "f:3: duplicate key `a`; it is already given on line 1", id="twice"),
        pytest.param("{x: 1, 'x': 2}", "f:1: duplicate key `x`; it is already given on line 1", id="quoted"),
        pytest.param("a: &b 1", "f:1: the anchor `&b` is not understood here", id="anchor"),
        pytest.param("a: 1\nb: *a", "f:2: the alias `*a` is not understood here", id="alias"),
        pytest.param("*a : 1", "f:1: the alias `*a` is not understood here", id="alias-key"),
        pytest.param("a: !!str 1", "f:1: the tag `tag:yaml.org,2002:str` is not understood here", id="tag"),
        pytest.param("a:\n  <<: {b: 1}", "f:2: the merge key `<<` is not understood here", id="merge"),
        pytest.param("a: 1\n---\nb: 2", "f:2: a second document begins here", id="documents"),
        pytest.param("%YAML 1.1\n---\na: 1", "f:1: a `%` directive is not understood here", id="directive"),
        pytest.param("{[1]: 2}", "f:1: a key must be plain text", id="list-as-key"),
        pytest.param("a: 1e999", "f:1: the number `1e999` is too large", id="infinite"),
        pytest.param(
            "a: 9223372036854775808", "f:1: the number `9223372036854775808` is too large", id="big"
        ),
    ],
)
def test_what_surprises_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read(text, "f")
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: [1", id="open-bracket"),
        pytest.param("a: b: c", id="two-colons"),
        pytest.param("\tb: 2", id="tab"),
        pytest.param("a: \x00", id="nul"),
        pytest.param("a: \ud800", id="lone-surrogate"),
        pytest.param('a: "\\U00110000"', id="no-such-character"),
        pytest.param('a: "\\ud800"', id="surrogate-escape"),
        pytest.param("%YAML " + "9" * 5000 + ".1\n---\n", id="huge-version"),
    ],
)
def test_what_is_not_yaml_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=r"^f(:\d+)?: "):
        read(text, "f")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="brackets"),
        pytest.param("{a: " * 50_000, id="braces"),
        pytest.param("- " * 100_000, id="dashes"),
        pytest.param("? " * 100_000, id="question-marks"),
    ],
)
def test_nesting_is_bounded_and_quickly_refused(text: str) -> None:
    began = time.process_time()
    with pytest.raises(BadConfig, match=f"deeper than {MAX_DEPTH} levels"):
        read(text, "f")
    assert time.process_time() - began < 5  # in truth some 0.03 s


def test_the_deepest_nesting_allowed_is_read() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f").line == 1


def test_errors_are_of_the_class_asked_for() -> None:
    with pytest.raises(BadPolicy):
        read("a: &x 1", "policy.yaml", error=BadPolicy)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#?,~<\n \t019.\\\x85\ufeff\ud800", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BelljarError):
        read(text, "f")


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(BadConfig) as caught:
        read_file(file)
    assert caught.value.message.startswith(f"{file}:2: duplicate key `a`")


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert plain(read_file(file)) == {"a": 1}


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(BadConfig, match=r"a\.yaml:2: not UTF-8 text"):
        read_file(file)


@pytest.mark.parametrize("char", ["#", "é"])
def test_a_file_past_the_cap_is_refused_for_its_size(tmp_path: Path, char: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# " + char * MAX_BYTES)
    with pytest.raises(BadConfig, match="larger than the 256 KiB"):
        read_file(file)


def test_a_sparse_terabyte_is_refused_without_being_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(BadConfig, match="larger than the 256 KiB"):
        read_file(file)


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(BadConfig, match="not a regular file"):
        read_file(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("absent.yaml", "No such file or directory", id="absent"),
        pytest.param(".", "Is a directory", id="directory"),
        pytest.param("x\x00y", "not a path", id="nul"),
        pytest.param("x" * 300, "File name too long", id="long-name"),
    ],
)
def test_a_path_that_cannot_be_read_says_why(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        read_file(tmp_path / name)


def test_a_near_word_is_suggested() -> None:
    assert nearest("netwrok", ["network", "limits"]) == "; did you mean `network`?"


def test_no_far_word_is_suggested() -> None:
    assert nearest("zzz", ["network", "limits"]) == ""


@given(st.text())
def test_quoted_text_is_printable_and_short(text: str) -> None:
    shown = quoted(text)
    assert shown.isprintable()
    assert len(shown) <= 2 + 200 * len("\\U0010ffff")
