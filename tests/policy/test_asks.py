from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest, BelljarError
from belljar.models import Language, NetworkRules, OnOutputLimit, PatternRules, RiskTier
from belljar.policy.asks import request_layer
from belljar.policy.decisions import decide
from belljar.policy.files import load_profile
from belljar.policy.layers import OFF, Policy
from belljar.policy.limits import BY_WIRE_NAME

# The `limits` of a /run body, name by name as seed 000 has them.
RUN_LIMITS = {
    "timeout_seconds": 30,
    "cpu_cores": 1.0,
    "memory_mb": 512,
    "pids": 128,
    "max_stdout_kb": 256,
    "max_stderr_kb": 256,
    "max_output_total_mb": 20,
}


def test_limits_of_a_run_body_are_understood_as_they_are() -> None:
    assert request_layer({"limits": RUN_LIMITS}).policy == Policy(
        timeout_s=30.0, cpu_cores=1.0, memory_mb=512, pids=128, stdout_kb=256, stderr_kb=256, artifact_mb=20
    )


def test_overrides_of_an_exec_body_are_understood_as_they_are() -> None:
    overrides = {
        "timeout_ms": 1500,
        "max_stdout_bytes": 2**20,
        "max_stderr_bytes": 2**20,
        "max_artifacts_bytes_total": 50 * 2**20,
        "net": {"mode": "none"},
    }
    assert request_layer(overrides).policy == Policy(
        timeout_s=1.5, stdout_kb=1024, stderr_kb=1024, artifact_mb=50, network_access=False
    )


def test_bytes_are_rounded_up_to_the_unit_of_the_grant() -> None:
    assert request_layer({"max_stdout_bytes": 1}).policy.stdout_kb == 1
    assert request_layer({"max_stdout_bytes": 1025}).policy.stdout_kb == 2


@pytest.mark.parametrize("name", sorted(BY_WIRE_NAME))
def test_limit_may_be_dotted_nested_or_bare(name: str) -> None:
    bare = request_layer({name: 4096}).policy
    assert bare != Policy()
    assert (
        bare
        == request_layer({f"limits.{name}": 4096}).policy
        == request_layer({"limits": {name: 4096}}).policy
    )


def test_everything_else_that_a_request_may_say() -> None:
    overrides = {
        "network": {"enabled": True, "allowed_domains": ["api.example.com"], "denied_ports": [25]},
        "image": "python:3.12-slim",
        "languages": ["python", "shell"],
        "sandboxed": True,
        "approve_at": "off",
        "on_output_limit": "kill",
        "accept_weaker_limits": False,
        "allowed_paths": ["/workspace/**"],
        "denied_commands": ["rm -rf"],
    }
    assert request_layer(overrides).policy == Policy(
        network_access=True,
        network_rules=(NetworkRules("request", hosts=("api.example.com",), denied_ports=(25,)),),
        images=frozenset({"python:3.12-slim"}),
        languages=frozenset({Language.PYTHON, Language.BASH}),
        sandboxed=True,
        approve_at=OFF,
        on_output_limit=OnOutputLimit.KILL,
        accept_weaker_limits=False,
        paths=(PatternRules("request", allow=("/workspace/**",)),),
        commands=(PatternRules("request", deny=("rm -rf",)),),
    )


BAD_NUMBERS = [
    pytest.param(-1, id="negative"),
    pytest.param(1e309, id="infinite"),
    pytest.param(float("nan"), id="nan"),
    pytest.param("64m", id="text"),
    pytest.param(True, id="boolean"),
    pytest.param(None, id="null"),
    pytest.param(2**63, id="two-to-63"),
    pytest.param(10**5000, id="5000-digits"),
    pytest.param(-(10**5000), id="minus-5000-digits"),
    pytest.param([1], id="list"),
    pytest.param({}, id="object"),
]


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("name", ["limits.memory_mb", "limits.timeout_s", "timeout_ms", "max_stdout_bytes"])
def test_number_that_makes_no_sense_is_refused_with_its_field(name: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        request_layer({name: value})
    assert caught.value.field == name
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    "name",
    ["timeout_s", "memory_mb", "cpu_cores", "pids", "nofile", "workspace_mb", "workspace_files", "tmp_mb"],
)
def test_zero_is_refused_where_it_would_mean_nothing_or_no_limit(name: str) -> None:
    with pytest.raises(BadRequest, match="at least"):
        request_layer({name: 0})


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        pytest.param({"netwrok": False}, "netwrok", id="unknown"),
        pytest.param({"limits": {"memory": 1}}, "limits.memory", id="unknown-limit"),
        pytest.param({"limits": 5}, "limits", id="group-that-is-no-object"),
        pytest.param({"limits": {"limits": {"pids": 1}}}, "limits.limits", id="group-in-group"),
        pytest.param({"memory_mb": 1, "limits": {"memory_mb": 1}}, "limits.memory_mb", id="said-twice"),
        pytest.param({"timeout_ms": 1, "timeout_s": 1}, "timeout_s", id="said-twice-by-two-names"),
        pytest.param({"memory_mb": 1.5}, "memory_mb", id="part-of-a-megabyte"),
        pytest.param({"network.enabled": 1}, "network.enabled", id="number-for-boolean"),
        pytest.param({"net.mode": "bridge"}, "net.mode", id="net-mode"),
        pytest.param({"languages": "python"}, "languages", id="word-for-list"),
        pytest.param({"languages": ["pyton"]}, "languages", id="no-such-language"),
        pytest.param({"image": "--privileged"}, "image", id="image-as-flag"),
        pytest.param({"image": "-v/:/host"}, "image", id="image-as-mount"),
        pytest.param({"image": "a b"}, "image", id="image-with-space"),
        pytest.param({"image": "../x"}, "image", id="image-upwards"),
        pytest.param({"image": "https://x/y"}, "image", id="image-as-url"),
        pytest.param({"approve_at": "never"}, "approve_at", id="no-such-tier"),
        pytest.param({"allowed_paths": ["/etc/**"]}, "allowed_paths", id="path-outside"),
        pytest.param({"allowed_paths": ["/workspace/../etc"]}, "allowed_paths", id="path-upwards"),
        pytest.param({"allowed_ports": [True]}, "allowed_ports", id="boolean-port"),
        pytest.param({"allowed_ports": [70000]}, "allowed_ports", id="port-too-high"),
        pytest.param({"allowed_ports": ["80"]}, "allowed_ports", id="port-as-text"),
        pytest.param({"allowed_domains": ["x.com"] * 1001}, "allowed_domains", id="endless-list"),
        pytest.param({"risk_level": "low"}, "risk_level", id="risk-is-not-for-asking"),
        pytest.param({1: 2}, None, id="key-that-is-no-text"),
        pytest.param([], None, id="list-for-object"),
    ],
)
def test_override_that_makes_no_sense_is_refused_with_its_field(overrides: Any, field: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        request_layer(overrides)
    assert caught.value.field == field


def test_unknown_override_comes_with_a_suggestion() -> None:
    with pytest.raises(BadRequest, match=r"did you mean `limits\.memory_mb`"):
        request_layer({"limits.memroy_mb": 1})


POLICIES = load_profile("default")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)
KEYS = st.sampled_from(["limits", "network", "net", "memory_mb", "allowed_domains", "image", "languages"])


@given(
    st.dictionaries(KEYS | st.text(max_size=20), JSON | st.dictionaries(KEYS, JSON, max_size=3), max_size=3)
)
def test_any_overrides_are_granted_or_refused(overrides: dict[str, object]) -> None:
    try:
        decide(POLICIES, overrides=overrides)
    except BelljarError:
        pass


def test_tier_words_are_those_of_the_model() -> None:
    for tier in RiskTier:
        assert request_layer({"approve_code_at": str(tier)}).policy.approve_at is tier
