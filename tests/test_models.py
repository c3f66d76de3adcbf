from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import models
from belljar.models import (
    Grant,
    Limits,
    Network,
    NetworkRules,
    OnOutputLimit,
    PatternRules,
    RiskTier,
    RunResult,
    Usage,
    Verdict,
    canonical_json,
)

VALUES = [one for name in models.__all__ if dataclasses.is_dataclass(one := getattr(models, name))]

OTHER: dict[str, Any] = {
    "limits": Limits(memory_mb=1),
    "network": Network(enabled=True),
    "image": "python:3.12-slim",
    "languages": frozenset({"python"}),
    "sandboxed": False,
    "paths": (PatternRules("role", allow=()),),
    "commands": (PatternRules("tool", deny=("rm",)),),
    "packages": (PatternRules("tool", allow=("numpy",)),),
    "risk": RiskTier.HIGH,
    "approve_at": RiskTier.SAFE,
    "on_output_limit": OnOutputLimit.KILL,
    "accept_weaker_limits": True,
}
"""For each field of a grant, a value that is not its default."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("value", VALUES)
def test_values_are_frozen_and_have_no_room_for_more(value: Any) -> None:
    assert value.__dataclass_params__.frozen
    assert "__slots__" in vars(value)


@pytest.mark.parametrize("field", [one.name for one in fields(Grant)])
def test_the_digest_of_a_grant_depends_on_every_field(field: str) -> None:
    assert replace(Grant(), **{field: OTHER[field]}).digest != Grant().digest


@pytest.mark.parametrize("field", [one.name for one in fields(Limits)])
def test_the_digest_of_a_grant_depends_on_every_limit(field: str) -> None:
    changed: dict[str, Any] = {field: getattr(Limits(), field) + 1}
    assert Grant(limits=Limits(**changed)).digest != Grant().digest


@pytest.mark.parametrize("field", [one.name for one in fields(NetworkRules)])
def test_the_digest_of_a_grant_depends_on_every_network_rule(field: str) -> None:
    other: dict[str, Any] = {
        "layer": "skill",
        "hosts": (),
        "ports": (443,),
        "addresses": ("10.0.0.0/8",),
        "denied_hosts": ("*.example",),
        "denied_ports": (25,),
        "denied_addresses": ("0.0.0.0/0",),
        "read_only_hosts": ("*.example",),
    }
    rules = NetworkRules("role")
    grants = [
        Grant(network=Network(True, (one,))) for one in (rules, replace(rules, **{field: other[field]}))
    ]
    assert grants[0].digest != grants[1].digest


def test_no_opinion_and_nothing_allowed_are_different_grants() -> None:
    absent, empty = (Grant(commands=(PatternRules("role", allow=allow),)) for allow in (None, ()))
    assert absent.digest != empty.digest


def test_the_digest_is_the_same_in_every_process() -> None:
    """Sets are ordered by hash, and hashes of strings differ from process to process."""
    program = "from belljar.models import Grant; print(Grant().digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.defpath, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert digests == {Grant().digest}


@given(json_values)
def test_canonical_json_says_what_the_value_says(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@given(json_values)
def test_canonical_json_is_ascii_on_one_line(value: object) -> None:
    text = canonical_json(value).decode("ascii")
    assert "\n" not in text


@given(st.dictionaries(st.text(), json_values, min_size=2), st.randoms(use_true_random=False))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, object], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


@given(st.lists(st.text(), unique=True))
def test_canonical_json_writes_a_set_as_a_sorted_list(items: list[str]) -> None:
    assert canonical_json(frozenset(items)) == canonical_json(sorted(items))


@pytest.mark.parametrize("value", [b"bytes", object(), 1j], ids=["bytes", "object", "complex"])
def test_canonical_json_refuses_what_is_no_value_of_the_domain(value: object) -> None:
    with pytest.raises(TypeError, match="not a value of the domain"):
        canonical_json(value)


def test_risk_tiers_are_ordered_as_written() -> None:
    assert [tier.rank for tier in RiskTier] == [0, 1, 2, 3, 4]
    assert RiskTier.SAFE.rank < RiskTier.CRITICAL.rank


def result(**more: Any) -> RunResult:
    given: dict[str, Any] = {
        "verdict": Verdict.EXITED,
        "exit_code": 0,
        "signal": None,
        "stdout": b"abc",
        "stderr": b"",
        "stdout_bytes": 3,
        "stderr_bytes": 0,
        "usage": Usage(),
    }
    return RunResult(**(given | more))


@pytest.mark.parametrize("verdict", Verdict)
def test_only_the_two_time_outs_count_as_timed_out(verdict: Verdict) -> None:
    assert result(verdict=verdict).timed_out == (verdict in ("timeout", "idle_timeout"))


def test_output_is_truncated_when_more_was_written_than_is_kept() -> None:
    assert not result().stdout_truncated
    assert result(stdout_bytes=4).stdout_truncated
    assert result(stderr_bytes=1).stderr_truncated


def test_contents_of_files_are_not_in_a_repr() -> None:
    assert "secret" not in repr(models.InputFile("a", b"secret"))
    assert "secret" not in repr(models.Artifact("a", 6, "", "", b"secret"))
