"""The lexical path rules: what is refused, with which reason, and that what passes cannot leave its root."""

from __future__ import annotations

import ntpath
import os.path
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PathNotAllowed
from belljar.guest.tree import display_name
from belljar.paths import PathFault, is_within, validate, validate_prefixed

REFUSED = [
    pytest.param("", PathFault.EMPTY, id="empty"),
    pytest.param("\ud800", PathFault.SURROGATE, id="lone-surrogate"),
    pytest.param("a/\udcff.txt", PathFault.SURROGATE, id="escaped-byte"),
    pytest.param("a" * 256, PathFault.TOO_LONG, id="long-name"),
    pytest.param("é" * 128, PathFault.TOO_LONG, id="long-name-in-bytes"),
    pytest.param("a/" * 600 + "a", PathFault.TOO_LONG, id="long-path"),
    pytest.param("x" * 10_000_000, PathFault.TOO_LONG, id="huge"),
    pytest.param("a\0b", PathFault.NUL, id="nul"),
    pytest.param("a\nb", PathFault.CONTROL, id="newline"),
    pytest.param("\x1b[2J", PathFault.CONTROL, id="terminal-escape"),
    pytest.param("a\x7f", PathFault.CONTROL, id="delete"),
    pytest.param("a\x85b", PathFault.CONTROL, id="c1-next-line"),
    pytest.param("a\u2028b", PathFault.CONTROL, id="line-separator"),
    pytest.param("a\u2029b", PathFault.CONTROL, id="paragraph-separator"),
    pytest.param("gpj.\u202eexe", PathFault.CONTROL, id="right-to-left-override"),
    pytest.param("a\u2066b", PathFault.CONTROL, id="direction-isolate"),
    pytest.param("..\\x", PathFault.BACKSLASH, id="backslash-parent"),
    pytest.param("C:\\x", PathFault.BACKSLASH, id="windows-path"),
    pytest.param("\\\\server\\share", PathFault.BACKSLASH, id="windows-share"),
    pytest.param("/", PathFault.ABSOLUTE, id="root"),
    pytest.param("/etc/passwd", PathFault.ABSOLUTE, id="absolute"),
    pytest.param("//server/share", PathFault.ABSOLUTE, id="double-slash"),
    pytest.param("a/" * 32 + "a", PathFault.TOO_DEEP, id="33-components"),
    pytest.param("a//b", PathFault.EMPTY_COMPONENT, id="empty-component"),
    pytest.param("a/", PathFault.EMPTY_COMPONENT, id="trailing-slash"),
    pytest.param(".", PathFault.DOT, id="dot"),
    pytest.param("./a", PathFault.DOT, id="leading-dot"),
    pytest.param("a/./b", PathFault.DOT, id="inner-dot"),
    pytest.param("a/.", PathFault.DOT, id="trailing-dot"),
    pytest.param("..", PathFault.PARENT, id="parent"),
    pytest.param("../etc/passwd", PathFault.PARENT, id="leading-parent"),
    pytest.param("a/../../b", PathFault.PARENT, id="inner-parent"),
    pytest.param("a/..", PathFault.PARENT, id="trailing-parent"),
    pytest.param("C:", PathFault.DRIVE, id="drive"),
    pytest.param("C:/x", PathFault.DRIVE, id="drive-path"),
    pytest.param("c:x", PathFault.DRIVE, id="drive-relative"),
    pytest.param("a/c:x", PathFault.DRIVE, id="drive-inside"),
    pytest.param("．．/etc", PathFault.LOOKALIKE, id="full-width-dots"),
    pytest.param("a/‥/b", PathFault.LOOKALIKE, id="two-dot-leader"),
    pytest.param("․", PathFault.LOOKALIKE, id="one-dot-leader"),
    pytest.param("..∕etc", PathFault.LOOKALIKE, id="division-slash"),
    pytest.param("a⁄b", PathFault.LOOKALIKE, id="fraction-slash"),
    pytest.param("a／b", PathFault.LOOKALIKE, id="full-width-slash"),
    pytest.param("a＼b", PathFault.LOOKALIKE, id="full-width-backslash"),
    pytest.param("a∖b", PathFault.LOOKALIKE, id="set-minus"),
    pytest.param("℀", PathFault.LOOKALIKE, id="folds-to-a-slash-c"),
    pytest.param("...", PathFault.LOOKALIKE, id="three-dots"),
    pytest.param(".. ", PathFault.LOOKALIKE, id="dots-and-space"),
    pytest.param(" ", PathFault.LOOKALIKE, id="space"),
    pytest.param(".ssh/id_rsa", PathFault.SENSITIVE, id="ssh"),
    pytest.param("home/.aws/credentials", PathFault.SENSITIVE, id="aws-inside"),
    pytest.param(".SSH/config", PathFault.SENSITIVE, id="ssh-upper-case"),
    pytest.param(".ｓｓｈ", PathFault.SENSITIVE, id="ssh-full-width"),
    pytest.param(".ssh./x", PathFault.SENSITIVE, id="ssh-as-windows-trims-it"),
    pytest.param(".netrc", PathFault.SENSITIVE, id="netrc"),
]

ACCEPTED = [
    pytest.param("main.py", id="plain"),
    pytest.param("data/input.txt", id="directory"),
    pytest.param("a/" * 31 + "a", id="32-components"),
    pytest.param("a" * 255, id="255-bytes"),
    pytest.param("資料/輸入.csv", id="chinese"),
    pytest.param("Q：問題.md", id="full-width-colon"),
    pytest.param("e\u0301te\u0301.txt", id="decomposed-accents"),
    pytest.param("👩‍💻.txt", id="joined-emoji"),
    pytest.param("½ cup.txt", id="vulgar-fraction"),
    pytest.param("my file (1).txt", id="spaces"),
    pytest.param("-rf", id="leading-dash"),
    pytest.param(".gitignore", id="hidden"),
    pytest.param(".env", id="left-to-policy"),
    pytest.param("..a", id="leading-dots"),
    pytest.param("a..", id="trailing-dots"),
    pytest.param("%2e%2e", id="percent-dots-are-only-a-name"),
    pytest.param("at 12:30", id="colon"),
    pytest.param("$(id);`id`", id="shell-signs"),
]


@pytest.mark.parametrize(("path", "fault"), REFUSED)
def test_hostile_path_is_refused_with_its_reason(path: str, fault: PathFault) -> None:
    with pytest.raises(PathNotAllowed) as caught:
        validate(path, field="input_files[0].path")
    assert caught.value.reason == fault
    assert caught.value.field == "input_files[0].path"


def test_every_fault_has_an_example() -> None:
    assert {param.values[1] for param in REFUSED} == set(PathFault) - {PathFault.OUTSIDE_PREFIX}


@pytest.mark.parametrize("path", ACCEPTED)
def test_ordinary_path_comes_back_as_the_same_string(path: str) -> None:
    assert validate(path) is path


def accepted(path: str) -> bool:
    try:
        return validate(path) is path
    except PathNotAllowed:
        return False


PIECES = st.one_of(
    st.sampled_from(["", ".", "..", "．．", "‥", "a", "docs", "C:", "∕", "\\", ".ssh", "%2e", " ", "\u0338"]),
    st.text(max_size=6),
)
NAMES = st.lists(PIECES, min_size=1, max_size=3).map("".join)
ANY_PATHS = st.lists(NAMES, max_size=5).map("/".join)
GOOD_NAMES = st.one_of(st.text(min_size=1, max_size=6), st.just("docs"), NAMES).filter(accepted)
GOOD_PATHS = st.lists(GOOD_NAMES, min_size=1, max_size=5).map("/".join)


@given(GOOD_PATHS)
def test_accepted_path_stays_where_it_says_under_any_root(path: str) -> None:
    assert accepted(path)
    assert os.path.normpath(os.path.join("/root/dir", path)) == "/root/dir/" + path
    assert ntpath.normpath(ntpath.join("D:\\root", path)) == "D:\\root\\" + path.replace("/", "\\")


@given(GOOD_PATHS)
def test_accepted_path_stays_inside_even_when_somebody_normalises_it(path: str) -> None:
    folded = unicodedata.normalize("NFKC", path)
    assert "\\" not in folded
    assert folded.count("/") == path.count("/")
    assert not {"", ".", ".."} & set(folded.split("/"))


@given(GOOD_PATHS)
def test_accepted_path_is_displayed_as_it_is(path: str) -> None:
    assert display_name(path.encode()) == path


@given(ANY_PATHS.filter(lambda path: not accepted(path)))
def test_refusal_is_printable_and_short(path: str) -> None:
    with pytest.raises(PathNotAllowed) as caught:
        validate(path)
    assert caught.value.message.isascii()
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 250


def test_refusal_repeats_only_the_start_of_a_huge_path() -> None:
    with pytest.raises(
        PathNotAllowed, match=r"^path 'xxx.*\.\.\. is not allowed: it is longer than 1024 bytes"
    ) as caught:
        validate("x" * 1_000_000)
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("path", "prefixes", "inside"),
    [
        pytest.param("docs/a.md", ["docs/"], True, id="below"),
        pytest.param("docs/a/b/c.md", ["docs/"], True, id="far-below"),
        pytest.param("docs/a.md", ["docs"], True, id="prefix-without-slash"),
        pytest.param("docs/a.md", ["src/", "docs/"], True, id="second-prefix"),
        pytest.param("docs", ["docs"], True, id="prefix-itself"),
        pytest.param("docs", ["docs/"], False, id="directory-itself"),
        pytest.param("docs2/x", ["docs/"], False, id="longer-name"),
        pytest.param("docs2/x", ["docs"], False, id="longer-name-without-slash"),
        pytest.param("Docs/x", ["docs/"], False, id="other-case"),
        pytest.param("a/docs/x", ["docs/"], False, id="not-at-the-start"),
        pytest.param("docs/../x", ["docs/"], False, id="climbs-out"),
        pytest.param("docs/x", [], False, id="no-prefix-allows-nothing"),
        pytest.param("docs/x", [""], False, id="empty-prefix-allows-nothing"),
        pytest.param("docs/x", ["/"], False, id="root-prefix-allows-nothing"),
        pytest.param("docs/x", ["."], False, id="dot-prefix-allows-nothing"),
        pytest.param("docs/x", ["docs//"], False, id="crooked-prefix-allows-nothing"),
        pytest.param("/docs/x", ["/docs/"], False, id="absolute-is-within-nothing"),
    ],
)
def test_prefix_holds_whole_components_only(path: str, prefixes: list[str], inside: bool) -> None:
    assert is_within(path, prefixes) is inside


def test_path_under_an_allowed_prefix_comes_back() -> None:
    path = ".belljar/runs/r1/state.json"
    assert validate_prefixed(path, ("docs/", ".belljar/runs/r1/")) is path


def test_path_outside_the_prefixes_is_refused_and_the_prefixes_are_named() -> None:
    with pytest.raises(PathNotAllowed, match=re.escape("'docs/, out/'")) as caught:
        validate_prefixed("src/x.py", iter(["docs/", "out/"]), field="output_prefix")
    assert caught.value.reason == PathFault.OUTSIDE_PREFIX
    assert caught.value.field == "output_prefix"


def test_broken_rule_is_reported_before_the_prefix() -> None:
    with pytest.raises(PathNotAllowed) as caught:
        validate_prefixed("../x", ["docs/"])
    assert caught.value.reason == PathFault.PARENT
