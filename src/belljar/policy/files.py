"""policy.yaml, in the form of seed 004: text to a checked `PolicySet`, or one sentence with file and line.

    policies:
      default:      what applies where neither the role nor the tool says otherwise
      ceilings:     what no role, tool, skill or request may exceed
      tools:        by name; a tool's tier and its own words
      agent_roles:  by name; a role's tools, its own words, and what it inherits
    network:        one more layer of rules, for everyone
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeVar

from belljar.errors import BadPolicy, BadRequest
from belljar.models import RiskTier
from belljar.policy.decisions import PolicySet
from belljar.policy.layers import Policy
from belljar.policy.limits import BY_KEY, BY_WIRE_NAME
from belljar.policy.roles import BUILT_IN, DEFAULT, Role, Tool, check_name, lineage
from belljar.policy.statements import NETWORK_KEYS, STATEMENTS, Shape, compose
from belljar.policy.suggestions import did_you_mean, printable, shown
from belljar.policy.trees import Node, from_yaml, read_text

__all__ = ["KEYS", "PROFILES", "load", "load_profile", "loads"]

PROFILES = ("default", "supervised")

_FILESYSTEM = "filesystem_access"
_SAID_BY_ALL = frozenset({*BY_KEY, *STATEMENTS, _FILESYSTEM}) - {"risk_level"}
_RULES = frozenset(key for key, said in STATEMENTS.items() if said.part is not None)

KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "policies": frozenset({"default", "ceilings", "tools", "agent_roles"}),
        "network": frozenset({"default", "allowlist", "denylist"}),
        # The network block is where rules for everyone are written.
        "default": _SAID_BY_ALL - NETWORK_KEYS,
        # Rules have no ceiling: every layer must allow anyway.
        "ceilings": _SAID_BY_ALL - _RULES - {"sandbox_enabled", _FILESYSTEM},
        "tools": _SAID_BY_ALL | {"risk_level"},
        "agent_roles": _SAID_BY_ALL | {"inherits", "tools"},
    }
)
"""The keys of each kind of block."""

_NETWORK_LISTS = MappingProxyType({"allowlist": "allowed", "denylist": "denied"})
_Value = TypeVar("_Value")


def load(path: str | os.PathLike[str]) -> PolicySet:
    return loads(read_text(path), name=printable(os.fspath(path)))


def load_profile(name: str) -> PolicySet:
    """One of the policies that come with belljar."""
    if name not in PROFILES:
        raise BadRequest(f"unknown profile {shown(name)}{did_you_mean(name, PROFILES)}", field="profile")
    file = resources.files("belljar.policy") / "profiles" / f"{name}.yaml"
    return loads(file.read_text("utf-8"), name=f"{name}.yaml")


def loads(text: str, *, name: str = "policy.yaml") -> PolicySet:
    """Raises BadPolicy whose message begins with `name` and the line at fault."""
    top = from_yaml(text, name).entries(("policies", "network"))
    policies = top["policies"].entries(KEYS["policies"]) if "policies" in top else {}
    ceilings = Policy()
    if "ceilings" in policies:
        ceilings = _policy("settings", policies["ceilings"].entries(_keys("ceilings", policies["ceilings"])))
    tools = _tools(policies.get("tools"), ceilings)
    return PolicySet(
        name=name,
        settings=_settings(policies.get("default"), top.get("network"), ceilings),
        ceilings=ceilings,
        roles=_roles(policies.get("agent_roles"), ceilings, tools),
        tools=tools,
    )
