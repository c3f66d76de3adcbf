from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from belljar.models import Limits, NetworkRules, OnOutputLimit, PatternRules, RiskTier
from belljar.policy.layers import FIELDS, OFF, SYSTEM, Policy, Threshold

LAYERS = st.sampled_from(["settings", "role:a", "tool:b", "skill:c.d", "request"])
PATTERNS = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
PATTERN_RULES = st.builds(PatternRules, LAYERS, st.none() | PATTERNS, PATTERNS)
NETWORK_RULES = st.builds(NetworkRules, LAYERS, hosts=st.none() | PATTERNS, denied_hosts=PATTERNS)
SETS = st.frozensets(st.sampled_from("abcd"))

# By type, so that a field of a new type has no values here until someone says what they are.
VALUES: dict[object, st.SearchStrategy[Any]] = {
    int | None: st.none() | st.integers(0, 5),
    float | None: st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    bool | None: st.none() | st.booleans(),
    frozenset[str] | None: st.none() | SETS,
    RiskTier | None: st.none() | st.sampled_from(RiskTier),
    Threshold | None: st.none() | st.sampled_from([*RiskTier, OFF]),
    OnOutputLimit | None: st.none() | st.sampled_from(OnOutputLimit),
    tuple[PatternRules, ...]: st.lists(PATTERN_RULES, max_size=2).map(tuple),
    tuple[NetworkRules, ...]: st.lists(NETWORK_RULES, max_size=2).map(tuple),
}
POLICIES = st.builds(Policy, **{name: VALUES[hint] for name, hint in get_type_hints(Policy).items()})


def no_wider(name: str, narrow: Any, wide: Any) -> bool:
    """Whether `narrow` permits nothing that `wide` forbids; written without the code under test."""
    if name in ("paths", "commands", "packages", "network_rules"):
        return set(narrow) >= set(wide)
    if wide is None:
        return True
    if narrow is None:
        return False
    if name in ("network_access", "accept_weaker_limits"):
        return wide or not narrow
    if name == "sandboxed":
        return narrow or not wide
    if name in ("images", "languages"):
        return bool(narrow <= wide)
    if name == "risk":
        return bool(narrow.rank >= wide.rank)
    if name == "approve_at":
        order = [*RiskTier, OFF]
        return order.index(narrow) <= order.index(wide)
    if name == "on_output_limit":
        return bool(narrow == OnOutputLimit.KILL or wide == OnOutputLimit.TRUNCATE)
    if name == "idle_timeout_s":
        return (narrow or math.inf) <= (wide or math.inf)
    assert name in {each.name for each in fields(Limits)}, f"say here when {name} is wider"
    return bool(narrow <= wide)


@given(POLICIES, POLICIES)
def test_narrowing_is_never_wider_than_either_side(one: Policy, other: Policy) -> None:
    both = one.narrowed_by(other)
    for each in fields(Policy):
        for side in (one, other):
            assert no_wider(each.name, getattr(both, each.name), getattr(side, each.name)), each.name


@given(POLICIES)
def test_narrowing_by_itself_changes_nothing(one: Policy) -> None:
    once = one.narrowed_by(one)
    for each in fields(Policy):
        before, after = getattr(one, each.name), getattr(once, each.name)
        if isinstance(before, tuple):  # the merge puts rules in order, each once
            before, after = set(before), set(after)
        assert before == after, each.name


@given(POLICIES, POLICIES)
def test_narrowing_does_not_depend_on_the_side(one: Policy, other: Policy) -> None:
    assert one.narrowed_by(other) == other.narrowed_by(one)


@given(POLICIES, POLICIES, POLICIES)
def test_narrowing_does_not_depend_on_the_grouping(one: Policy, two: Policy, three: Policy) -> None:
    left = one.narrowed_by(two).narrowed_by(three)
    right = one.narrowed_by(two.narrowed_by(three))
    assert left == right


@given(POLICIES)
def test_a_layer_without_opinion_changes_nothing(one: Policy) -> None:
    assert one.narrowed_by(Policy()) == one == Policy().narrowed_by(one)


@given(POLICIES, POLICIES)
def test_wider_fields_are_those_that_narrowing_would_change(one: Policy, ceiling: Policy) -> None:
    wider = one.wider_than(ceiling)
    for name, value in one.stated().items():
        most = getattr(ceiling, name)
        if name not in ("paths", "commands", "packages", "network_rules") and most is not None:
            assert (name in wider) == (not no_wider(name, value, most)), name


def test_rules_of_both_sides_are_kept_in_the_order_of_the_layers() -> None:
    request = PatternRules("request", deny=("b",))
    tool = PatternRules("tool:x", allow=("a",))
    settings = PatternRules("settings", allow=())
    one, other = Policy(paths=(request, settings)), Policy(paths=(tool, settings))
    assert one.narrowed_by(other).paths == (settings, tool, request)


def test_every_limit_of_a_run_is_a_field_of_a_layer() -> None:
    assert {each.name for each in fields(Limits)} <= FIELDS.keys()


def test_the_system_has_an_opinion_on_everything_but_rules() -> None:
    assert FIELDS.keys() - SYSTEM.stated().keys() == {"paths", "commands", "packages", "network_rules"}
