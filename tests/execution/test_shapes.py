"""A run in a jar that is there already has what the jar has, if it may have so much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from belljar.errors import BadRequest
from belljar.execution.shapes import check_shape, shaped
from belljar.models import Grant, Limits, Network, NetworkRules

HOSTS = NetworkRules("settings", hosts=("a.example", "b.example"))
FEWER = NetworkRules("tool:code_run", hosts=("a.example",))
CLOSED = Network()
OPEN = Network(True, (HOSTS,))
NARROW = Network(True, (HOSTS, FEWER))


def test_the_shape_is_the_jar_s_and_the_rest_is_the_run_s() -> None:
    made = Grant(limits=Limits(memory_mb=64, timeout_s=1), image="sha256:1")
    grant = shaped(Grant(limits=Limits(memory_mb=1024, timeout_s=9)), made)
    assert (grant.limits.memory_mb, grant.limits.timeout_s, grant.image) == (64, 9, "sha256:1")


def test_a_jar_that_is_larger_than_the_run_may_have_is_refused() -> None:
    with pytest.raises(BadRequest) as refused:
        shaped(Grant(limits=Limits(pids=9)), Grant(limits=Limits(pids=10)))
    assert refused.value.field == "session_id"


@pytest.mark.parametrize(
    ("run", "jar"),
    [
        pytest.param(OPEN, CLOSED, id="closed"),
        pytest.param(OPEN, OPEN, id="the same"),
        pytest.param(OPEN, NARROW, id="less"),
    ],
)
def test_a_run_has_the_network_of_the_jar(run: Network, jar: Network) -> None:
    assert shaped(replace(Grant(), network=run), replace(Grant(), network=jar)).network == jar


@pytest.mark.parametrize(
    ("run", "jar"),
    [
        pytest.param(CLOSED, OPEN, id="open"),
        pytest.param(NARROW, OPEN, id="more"),
        pytest.param(Network(True), OPEN, id="hosts that nobody listed"),
    ],
)
def test_a_run_does_not_get_more_network_from_the_jar(run: Network, jar: Network) -> None:
    with pytest.raises(BadRequest, match="network"):
        shaped(replace(Grant(), network=run), replace(Grant(), network=jar))


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        pytest.param({"memory_mb": 32}, "limits.memory_mb", id="less"),
        pytest.param({"limits": {"memory_mb": 128}}, "limits.memory_mb", id="more"),
        pytest.param({"network.enabled": True}, "network", id="network"),
    ],
)
def test_another_shape_cannot_be_asked_for(overrides: dict[str, object], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_shape(overrides, Grant(limits=Limits(memory_mb=64)))
    assert refused.value.field == field


def test_the_same_shape_and_other_clocks_can_be_asked_for() -> None:
    check_shape({"memory_mb": 64, "timeout_s": 3}, Grant(limits=Limits(memory_mb=64)))
