from __future__ import annotations

import pytest

from belljar.errors import BadRequest, PolicyEscalation
from belljar.models import Grant, RiskTier
from belljar.policy.decisions import PolicySet, decide
from belljar.policy.files import PROFILES, load_profile
from belljar.policy.limits import LIMITS


def test_default_profile_grants_the_products_defaults() -> None:
    assert decide(load_profile("default")).grant == Grant()


def test_default_profile_lets_a_request_ask_for_more() -> None:
    overrides = {
        "limits": {"timeout_s": 600, "memory_mb": 4096, "cpu_cores": 4, "pids": 512, "stdout_kb": 16384}
    }
    limits = decide(load_profile("default"), overrides=overrides).grant.limits
    assert (limits.timeout_s, limits.memory_mb, limits.cpu_cores, limits.pids) == (600, 4096, 4, 512)


def test_supervised_profile_asks_a_person_about_high_risk() -> None:
    assert decide(load_profile("supervised")).grant.approve_at is RiskTier.HIGH


def test_nobody_can_switch_supervision_off() -> None:
    with pytest.raises(PolicyEscalation, match="approve_at"):
        decide(load_profile("supervised"), overrides={"approve_at": "off"})


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> PolicySet:
    return load_profile(request.param)


def test_profile_has_no_network_and_nobody_can_ask_for_it(profile: PolicySet) -> None:
    assert not decide(profile).grant.network.enabled
    with pytest.raises(PolicyEscalation, match=r"network\.enabled"):
        decide(profile, overrides={"network.enabled": True})


@pytest.mark.parametrize("name", [limit.name for limit in LIMITS if limit.name != "idle_timeout_s"])
def test_profile_has_a_ceiling_for_every_limit(profile: PolicySet, name: str) -> None:
    assert getattr(profile.ceilings, name) is not None


@pytest.mark.parametrize("name", [limit.name for limit in LIMITS if limit.name != "idle_timeout_s"])
def test_supervised_ceilings_are_tighter(name: str) -> None:
    supervised, default = load_profile("supervised").ceilings, load_profile("default").ceilings
    assert getattr(supervised, name) < getattr(default, name)


def test_unknown_profile_comes_with_a_suggestion() -> None:
    with pytest.raises(BadRequest, match="did you mean `supervised`"):
        load_profile("supervized")


@pytest.mark.parametrize("name", ["../default", "default.yaml", "", "Default"])
def test_profile_is_a_name_and_never_a_path(name: str) -> None:
    with pytest.raises(BadRequest, match="unknown profile"):
        load_profile(name)
