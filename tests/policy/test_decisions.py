from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest, ImageNotAllowed, PolicyEscalation, ToolNotAllowed
from belljar.models import Grant, Limits, NetworkRules, PatternRules, RiskTier
from belljar.policy.decisions import PolicySet, decide, narrower
from belljar.policy.layers import Layer, Policy
from belljar.policy.limits import LIMITS
from belljar.policy.roles import BUILT_IN, Role, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = st.integers(2, 10**6)
LIMIT_VALUES: dict[str, Any] = {each.name: WHOLE for each in fields(Limits)}
SOME_LIMITS = st.builds(Policy, **{name: st.none() | value for name, value in LIMIT_VALUES.items()})


@st.composite
def policy_sets(draw: st.DrawFn) -> PolicySet:
    """Settings within ceilings; a role and a tool that state what they like, as a checked file would."""
    ceilings = draw(SOME_LIMITS)
    tools = {name: Tool(name) for name in BUILT_IN} | {"t": Tool("t", Policy(risk=RiskTier.LOW))}
    tools["code_run"] = Tool("code_run", draw(SOME_LIMITS).narrowed_by(ceilings))
    return PolicySet(
        settings=draw(SOME_LIMITS).narrowed_by(ceilings),
        ceilings=ceilings,
        roles={"r": Role("r", draw(SOME_LIMITS).narrowed_by(ceilings))},
        tools=tools,
    )


NAMED: Any = {"role": st.sampled_from([None, "r"]), "tool": st.sampled_from([None, "code_run", "t"])}


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    for each in fields(value):  # type: ignore[arg-type]
        part = getattr(value, each.name)
        if is_dataclass(part):
            yield from leaves(part, f"{place}{each.name}.")
        else:
            yield f"{place}{each.name}", part


def test_explain_has_a_row_for_every_leaf_of_a_grant() -> None:
    decision = decide(PolicySet())
    assert [row.field for row in decision.explain()] == [place for place, _ in leaves(Grant())]


@given(policies=policy_sets(), **NAMED)
def test_explain_names_the_layer_and_the_value_of_every_field(
    policies: PolicySet, role: str | None, tool: str | None
) -> None:
    decision = decide(policies, role=role, tool=tool, overrides={"limits.pids": 1})
    layers = {"system", "settings", "role:r", "tool:code_run", "tool:t", "request"}
    values = dict(leaves(decision.grant))
    for row in decision.explain():
        assert row.layer in layers
        assert row.value == values[row.field]
        if row.field.startswith("limits."):
            assert row.ceiling_layer in layers


@given(policies=policy_sets(), limit=st.sampled_from(LIMITS), **NAMED)
def test_request_above_a_ceiling_is_refused_with_field_ceiling_and_layer(
    policies: PolicySet, limit: Any, role: str | None, tool: str | None
) -> None:
    place = f"limits.{limit.name}"
    term = decide(policies, role=role, tool=tool).provenance[place]
    if limit.name == "idle_timeout_s" and not term.ceiling:
        return  # no ceiling at all: nothing is above it
    asked = 0 if limit.name == "idle_timeout_s" else int(term.ceiling) + 1
    with pytest.raises(PolicyEscalation) as caught:
        decide(policies, role=role, tool=tool, overrides={place: asked})
    error = caught.value
    assert (error.field, error.asked, error.ceiling, error.layer) == (
        place,
        asked,
        term.ceiling,
        term.ceiling_layer,
    )
    assert place in error.message
    assert error.layer in error.message


@given(policies=policy_sets(), limit=st.sampled_from(LIMITS), data=st.data(), **NAMED)
def test_request_up_to_the_ceiling_is_granted_exactly(
    policies: PolicySet, limit: Any, data: st.DataObject, role: str | None, tool: str | None
) -> None:
    place = f"limits.{limit.name}"
    ceiling = decide(policies, role=role, tool=tool).provenance[place].ceiling
    asked = data.draw(st.integers(1, max(1, int(ceiling))))
    decision = decide(policies, role=role, tool=tool, overrides={place: asked})
    assert getattr(decision.grant.limits, limit.name) == asked
    assert decision.provenance[place].layer == "request"


@given(policies=policy_sets(), skill=SOME_LIMITS, asked=SOME_LIMITS)
def test_no_grant_is_wider_than_what_role_tool_and_skill_state(
    policies: PolicySet, skill: Policy, asked: Policy
) -> None:
    overrides = {f"limits.{name}": value for name, value in asked.stated().items()}
    try:
        grant = decide(
            policies, role="r", tool="code_run", skill=Layer("skill:a.b", skill), overrides=overrides
        ).grant
    except PolicyEscalation:
        return
    granted = Policy(**{each.name: getattr(grant.limits, each.name) for each in fields(Limits)})
    for stated in (
        policies.roles["r"].policy,
        policies.tools["code_run"].policy,
        policies.ceilings,
        skill,
        asked,
    ):
        assert granted.wider_than(stated) == ()


def test_role_or_tool_may_state_more_than_the_default_and_the_narrower_wins() -> None:
    policies = PolicySet(
        settings=Policy(memory_mb=512),
        roles={"r": Role("r", Policy(memory_mb=2048))},
        tools={"code_run": Tool("code_run", Policy(memory_mb=1024))},
    )
    assert decide(policies).grant.limits.memory_mb == 512
    assert decide(policies, role="r").grant.limits.memory_mb == 2048
    both = decide(policies, role="r", tool="code_run")
    assert both.provenance["limits.memory_mb"] == (1024, "tool:code_run", 1024, "tool:code_run")


def test_ceiling_lets_a_request_ask_for_more_than_the_default() -> None:
    policies = PolicySet(settings=Policy(memory_mb=256), ceilings=Policy(memory_mb=1024))
    decision = decide(policies, overrides={"memory_mb": 1024})
    assert decision.provenance["limits.memory_mb"] == (1024, "request", 1024, "settings")


def test_ceiling_below_the_products_default_lowers_it() -> None:
    decision = decide(PolicySet(ceilings=Policy(memory_mb=64)))
    assert decision.provenance["limits.memory_mb"] == (64, "settings", 64, "settings")


def test_what_a_skill_states_is_the_ceiling_of_the_request() -> None:
    policies = PolicySet(ceilings=Policy(memory_mb=1024))
    skill = Layer("skill:shell.run", Policy(memory_mb=600))
    assert decide(policies, skill=skill).grant.limits.memory_mb == 600
    with pytest.raises(PolicyEscalation, match="skill:shell.run"):
        decide(policies, skill=skill, overrides={"memory_mb": 601})


def test_skill_cannot_raise_a_ceiling() -> None:
    with pytest.raises(PolicyEscalation, match="limits.memory_mb"):
        decide(PolicySet(), skill=Layer("skill:a.b", Policy(memory_mb=513)))


def test_network_is_open_only_when_the_operator_said_so() -> None:
    policies = PolicySet(tools={"t": Tool("t", Policy(risk=RiskTier.LOW, network_access=True))})
    assert decide(policies, tool="t").grant.network.enabled
    assert not decide(policies, tool="t", overrides={"network.enabled": False}).grant.network.enabled
    assert not decide(policies).grant.network.enabled
    with pytest.raises(PolicyEscalation, match=r"network\.enabled"):
        decide(policies, overrides={"network": {"enabled": True}})


def test_role_can_close_the_network_that_its_tool_opens() -> None:
    policies = PolicySet(
        roles={"r": Role("r", Policy(network_access=False))},
        tools={"t": Tool("t", Policy(risk=RiskTier.LOW, network_access=True))},
    )
    assert not decide(policies, role="r", tool="t").grant.network.enabled


def test_request_cannot_be_the_first_to_list_hosts() -> None:
    with pytest.raises(PolicyEscalation) as caught:
        decide(PolicySet(), overrides={"allowed_domains": ["evil.example"]})
    assert caught.value.field == "network.hosts"


def test_request_adds_its_list_of_hosts_beside_the_operators() -> None:
    listed = NetworkRules("settings", hosts=("*.example.com",))
    policies = PolicySet(settings=Policy(network_rules=(listed,)))
    decision = decide(policies, overrides={"network.allowed_domains": ["api.example.com"]})
    assert decision.grant.network.rules == (listed, NetworkRules("request", hosts=("api.example.com",)))
    assert decision.provenance["network.rules"].layer == "settings, request"


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"allowed_ports": [22]}, id="port"),
        pytest.param({"allowed_ips": ["10.0.0.0/8"]}, id="private-range"),
    ],
)
def test_request_cannot_open_ports_or_private_ranges(overrides: dict[str, object]) -> None:
    with pytest.raises(PolicyEscalation, match="network"):
        decide(PolicySet(), overrides=overrides)


def test_rules_of_every_layer_are_kept() -> None:
    policies = PolicySet(
        settings=Policy(paths=(PatternRules("settings", deny=("/workspace/.env",)),)),
        roles={"r": Role("r", Policy(paths=(PatternRules("role:r", allow=("/workspace/**",)),)))},
    )
    decision = decide(policies, role="r", overrides={"denied_paths": ["/workspace/secret"]})
    assert [rules.layer for rules in decision.grant.paths] == ["settings", "role:r", "request"]


@pytest.mark.parametrize("tool", ["system_admin", "network_scan"])
def test_critical_tool_waits_for_a_person_even_where_approval_is_off(tool: str) -> None:
    decision = decide(PolicySet(), tool=tool)
    assert decision.grant.risk is RiskTier.CRITICAL
    assert decision.grant.approve_at is RiskTier.CRITICAL
    with pytest.raises(PolicyEscalation, match="approve_at"):
        decide(PolicySet(), tool=tool, overrides={"approve_at": "off"})


@pytest.mark.parametrize(("tool", "risk"), BUILT_IN.items())
def test_built_in_tool_has_its_tier_without_a_policy(tool: str, risk: RiskTier) -> None:
    term = decide(PolicySet(), tool=tool).provenance["risk"]
    assert (term.value, term.layer) == (risk, "system")


def test_request_may_ask_to_be_approved_but_not_to_be_spared() -> None:
    policies = PolicySet(settings=Policy(approve_at=RiskTier.HIGH))
    assert decide(policies, overrides={"approve_at": "low"}).grant.approve_at is RiskTier.LOW
    with pytest.raises(PolicyEscalation, match="asked for critical, but layer 'settings' grants high"):
        decide(policies, overrides={"approve_at": "critical"})


def test_tool_that_the_role_does_not_list_is_refused() -> None:
    policies = PolicySet(roles={"reader": Role("reader", tools=frozenset({"file_read"}))})
    with pytest.raises(ToolNotAllowed, match="role `reader` may not use tool `code_run`") as caught:
        decide(policies, role="reader", tool="code_run")
    assert caught.value.field == "tool"


def test_role_with_an_empty_list_may_use_no_tool() -> None:
    policies = PolicySet(roles={"idle": Role("idle", tools=frozenset())})
    with pytest.raises(ToolNotAllowed, match="its tools are: none"):
        decide(policies, role="idle", tool="file_read")


def test_role_without_a_list_may_use_every_known_tool() -> None:
    policies = PolicySet(roles={"any": Role("any")})
    assert decide(policies, role="any", tool="code_run").grant.risk is RiskTier.HIGH


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param("Code_run", id="capital"),
        pytest.param("code_run ", id="trailing-space"),
        pytest.param("ｃｏｄｅ＿ｒｕｎ", id="full-width"),
        pytest.param("functions.code_run", id="prefixed"),
        pytest.param("code_run.", id="trailing-dot"),
        pytest.param("code_run\0", id="nul"),
        pytest.param("", id="empty"),
        pytest.param("x" * 100_000, id="endless"),
        pytest.param("\ud800", id="lone-surrogate"),
        pytest.param(7, id="number"),
        pytest.param(["code_run"], id="list"),
    ],
)
def test_tool_by_any_other_name_is_refused(tool: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decide(PolicySet(), tool=tool)
    assert caught.value.field == "tool"
    assert len(caught.value.message) < 400


def test_unknown_role_comes_with_a_suggestion() -> None:
    policies = PolicySet(roles={"data_analyst": Role("data_analyst")})
    with pytest.raises(BadRequest, match="did you mean `data_analyst`") as caught:
        decide(policies, role="data_analist")
    assert caught.value.field == "role"


def test_image_of_a_request_must_be_on_the_list() -> None:
    policies = PolicySet(ceilings=Policy(images=frozenset({"a:1", "b:1"})))
    assert decide(policies).grant.image is None
    assert decide(policies, overrides={"image": "b:1"}).grant.image == "b:1"
    with pytest.raises(ImageNotAllowed, match="c:1"):
        decide(policies, overrides={"image": "c:1"})


def test_no_image_may_be_named_where_no_layer_lists_any() -> None:
    with pytest.raises(ImageNotAllowed, match="allows none"):
        decide(PolicySet(), overrides={"image": "python:3.12-slim"})


def test_a_list_of_one_image_is_the_image() -> None:
    policies = PolicySet(tools={"t": Tool("t", Policy(risk=RiskTier.LOW, images=frozenset({"a:1"})))})
    assert decide(policies, tool="t").grant.image == "a:1"


def test_role_and_tool_without_a_common_image_are_refused() -> None:
    policies = PolicySet(
        roles={"r": Role("r", Policy(images=frozenset({"a:1"})))},
        tools={"t": Tool("t", Policy(risk=RiskTier.LOW, images=frozenset({"b:1"})))},
    )
    with pytest.raises(ImageNotAllowed, match="role:r and tool:t"):
        decide(policies, role="r", tool="t")


def test_both_layers_are_named_where_neither_alone_set_the_languages() -> None:
    policies = PolicySet(
        roles={"r": Role("r", Policy(languages=frozenset({"python", "bash"})))},
        tools={"t": Tool("t", Policy(risk=RiskTier.LOW, languages=frozenset({"python", "javascript"})))},
    )
    decision = decide(policies, role="r", tool="t")
    assert decision.grant.languages == {"python"}
    assert decision.provenance["languages"].layer == "role:r, tool:t"


def test_same_question_gets_the_same_decision() -> None:
    policies = PolicySet()
    assert decide(policies, tool="code_run") is decide(policies, tool="code_run", overrides={})


def test_a_decision_cannot_be_changed_through_its_provenance() -> None:
    decision = decide(PolicySet())
    with pytest.raises(TypeError):
        decision.provenance["limits.memory_mb"] = None  # type: ignore[index]


def test_a_decision_as_data_is_what_json_gives_back() -> None:
    policies = PolicySet(settings=Policy(commands=(PatternRules("settings", ("ls",), ()),)))
    decision = decide(policies, overrides={"limits.memory_mb": 64})
    data = decision.as_data()
    assert json.loads(json.dumps(data)) == data
    assert data["digest"] == decision.grant.digest
    assert data["grant"]["limits"]["memory_mb"] == 64
    rows = {row["field"]: row for row in data["fields"]}
    assert (rows["limits.memory_mb"]["value"], rows["limits.memory_mb"]["layer"]) == (64, "request")
    assert rows["commands"]["value"] == data["grant"]["commands"] != []


@given(policies=policy_sets(), role=st.sampled_from([None, "r"]))
def test_what_two_tools_give_together_is_within_what_each_gives(
    policies: PolicySet, role: str | None
) -> None:
    one, other = decide(policies, role=role, tool="code_run"), decide(policies, role=role, tool="t")
    both = narrower(one, other)
    for place, term in both.provenance.items():
        if place.startswith("limits.") and place != "limits.idle_timeout_s":  # there, 0 is the widest
            assert term.value == min(one.provenance[place].value, other.provenance[place].value)
            assert term in (one.provenance[place], other.provenance[place])


def test_two_tools_together_have_a_network_if_both_do_and_keep_all_rules() -> None:
    rules = NetworkRules("tool:a", hosts=("a.example",))
    more = NetworkRules("tool:b", hosts=("b.example",))
    tools = {
        "a": Tool("a", Policy(risk=RiskTier.LOW, network_access=True, network_rules=(rules,))),
        "b": Tool("b", Policy(risk=RiskTier.LOW, network_access=True, network_rules=(more,))),
        "c": Tool("c", Policy(risk=RiskTier.LOW)),
    }
    a, b, c = (decide(PolicySet(tools=tools), tool=name) for name in tools)
    assert narrower(a, b).grant.network.enabled
    assert set(narrower(a, b).grant.network.rules) == {rules, more}
    assert not narrower(a, c).grant.network.enabled
