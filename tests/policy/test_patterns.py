from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.models import PatternRules
from belljar.policy.patterns import allows, allows_work, expression, matches


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/workspace/**", "/workspace/work/a/b.txt"),
        ("/workspace/**/*.key", "/workspace/a.key"),
        ("/workspace/**/*.key", "/workspace/x/y/a.key"),
        ("/workspace/work/?.txt", "/workspace/work/a.txt"),
        ("/workspace/work/[a].txt", "/workspace/work/[a].txt"),
        ("/workspace/**", "/workspace/odd\nname"),
    ],
)
def test_a_pattern_matches(pattern: str, path: str) -> None:
    assert allows(path, [PatternRules("x", (pattern,))])
    assert not allows(path, [PatternRules("x", None, (pattern,))])


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/workspace/*", "/workspace/work/a.txt"),
        ("/workspace/work/?.txt", "/workspace/work/ab.txt"),
        ("/workspace/work/[a].txt", "/workspace/work/a.txt"),
        ("/workspace/work/a.txt", "/workspace/work/a_txt"),
        ("/workspace/**/*.key", "/workspace/a.keys"),
    ],
)
def test_a_pattern_does_not_match(pattern: str, path: str) -> None:
    assert not allows(path, [PatternRules("x", (pattern,))])


def test_every_layer_must_allow_and_any_may_deny() -> None:
    everything, some = PatternRules("a", ("/workspace/**",)), PatternRules("b", ("/workspace/work/**",))
    assert allows("/workspace/work/x", [everything, some])
    assert not allows("/workspace/inputs/x", [everything, some])
    assert not allows("/workspace/work/x", [everything, PatternRules("c", None, ("/workspace/work/x",))])


def test_an_empty_list_allows_nothing_and_none_has_no_opinion() -> None:
    assert not allows("/workspace/work/x", [PatternRules("a", ())])
    assert allows("/workspace/work/x", [PatternRules("a", None)])


@pytest.mark.parametrize("pattern", ["/workspace/.env", "/workspace/work/.env"])
def test_a_file_of_work_is_meant_by_either_name(pattern: str) -> None:
    assert allows_work(".env", [PatternRules("x", (pattern,))])
    assert not allows_work(".env", [PatternRules("x", None, (pattern,))])
    assert allows_work("a", [PatternRules("x", None, (pattern,))])


@given(
    st.lists(st.sampled_from(["a", "b", "/", "*", "**", "**/", "?", "."]), max_size=7).map("".join),
    st.text("ab/.", max_size=9),
)
def test_a_pattern_means_the_same_as_its_expression(pattern: str, path: str) -> None:
    assert matches(pattern, path) == bool(re.fullmatch(expression(pattern), path, re.DOTALL))


def test_a_hostile_pattern_ends() -> None:
    """Its expression would try every combination, which is more than there are atoms."""
    assert not matches("**/" * 50 + "x", "a/" * 200)
    assert not matches("*a" * 50 + "x", "a" * 400)
