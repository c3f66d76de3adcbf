"""policy.yaml, in the form of seed 004: text to a checked `PolicySet`, or one sentence with file and line.

policies:
  default:      what applies where neither the role nor the tool says otherwise
  ceilings:     what no role, tool, skill or request may exceed
  tools:        by name; a tool's tier and its own words
  agent_roles:  by name; a role's tools, its own words, and what it inherits
  approvers:    by tier; who may decide on a run that waits for a person
network:        one more layer of rules, for everyone
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from belljar.errors import BadRequest
from belljar.models import NetworkRules, RiskTier
from belljar.policy.decisions import PolicySet
from belljar.policy.layers import Policy
from belljar.policy.limits import BY_KEY, BY_WIRE_NAME
from belljar.policy.roles import BUILT_IN, DEFAULT, Role, Tool, check_name, lineage
from belljar.policy.statements import (
    MOST_ITEMS,
    NETWORK_KEYS,
    STATEMENTS,
    Shape,
    Statement,
    approver,
    compose,
)
from belljar.policy.trees import Node, from_yaml, read_text
from belljar.wording import nearest, printable, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KEYS", "PROFILES", "load", "load_profile", "loads"]

PROFILES = ("default", "supervised")

_FILESYSTEM = "filesystem_access"
_COMMON = frozenset({*BY_KEY, *STATEMENTS, _FILESYSTEM}) - {"risk_level"}
_RULES = frozenset(key for key, statement in STATEMENTS.items() if statement.part is not None)
_LIST_KEYS = frozenset({"enabled", "domains", "ips", "ports"})
_READ_ONLY = "read_only_domains"

KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "": frozenset({"policies", "network"}),
        "policies": frozenset({"default", "ceilings", "tools", "agent_roles", "approvers"}),
        "default": _COMMON - NETWORK_KEYS,
        "ceilings": _COMMON - _RULES - {"sandbox_enabled", _FILESYSTEM},
        "tool": _COMMON | {"risk_level"},
        "role": _COMMON | {"inherits", "tools"},
        "approvers": frozenset(RiskTier),
        "network": frozenset({"default", "allowlist", "denylist", _READ_ONLY}),
        "allowlist": _LIST_KEYS,
        "denylist": _LIST_KEYS,
    }
)
"""The keys of each kind of block."""

_KEY_OF = MappingProxyType(
    {limit.name: key for key, limit in BY_KEY.items()}
    | {statement.field: key for key, statement in STATEMENTS.items()}
)

_APPROVERS = Statement("approvers", Shape.LIST, approver)


def load(path: str | os.PathLike[str]) -> PolicySet:
    """Raises BadPolicy when the file cannot be read or is malformed."""
    return loads(read_text(path), name=printable(os.fspath(path)))


def load_profile(name: str) -> PolicySet:
    """One of the policies that come with belljar. Raises BadRequest for any other name."""
    if name not in PROFILES:
        raise BadRequest(f"unknown profile {quoted(name)}{nearest(name, PROFILES)}", field="profile")
    file = resources.files("belljar.policy") / "profiles" / f"{name}.yaml"
    return loads(file.read_text("utf-8"), name=f"{name}.yaml")


def loads(text: str, *, name: str = "policy.yaml") -> PolicySet:
    """Raises BadPolicy whose message begins with `name` and, where there is one, the line at fault."""
    top = _block(from_yaml(text, name), "")
    blocks = _block(top["policies"], "policies") if "policies" in top else {}
    ceilings = Policy()
    if "ceilings" in blocks:
        ceilings = _words(_block(blocks["ceilings"], "ceilings")).policy("settings")
    tools = _tools(blocks.get("tools"), ceilings)
    return PolicySet(
        name=name,
        settings=_settings(blocks.get("default"), top.get("network"), ceilings),
        ceilings=ceilings,
        tools=tools,
        roles=_roles(blocks.get("agent_roles"), ceilings, tools),
        approvers=_approvers(blocks.get("approvers")),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """What one block says, read but not yet anybody's: a role's words are joined with those it inherits."""

    limits: dict[str, float] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def over(self, other: _Words) -> _Words:
        return _Words(other.limits | self.limits, other.said | self.said)

    def policy(self, layer: str) -> Policy:
        return compose(layer, self.limits, self.said)


def _block(node: Node, kind: str) -> dict[str, Node]:
    entries = node.entries()
    for key, value in entries.items():
        if key in KEYS[kind]:
            continue
        if kind == "default" and key in NETWORK_KEYS:
            raise value.unknown(key, "; rules for everyone are written in `network`")
        if kind == "ceilings" and key in _RULES:
            raise value.unknown(key, "; lists have no ceiling, because every layer must allow")
        if key in BY_WIRE_NAME and (here := BY_WIRE_NAME[key][0].key) in KEYS[kind]:
            raise value.unknown(key, f"; in a policy file it is `{here}`")
        raise value.unknown(key, nearest(key, KEYS[kind]))
    return entries


def _words(entries: Mapping[str, Node]) -> _Words:
    words = _Words()
    for key, node in entries.items():
        with node.located():
            if key in BY_KEY:
                limit = BY_KEY[key]
                words.limits[limit.name] = limit.from_words(node.text())
            elif key in STATEMENTS:
                words.said[key] = _value(STATEMENTS[key], node)
            elif key == _FILESYSTEM and node.text() != "workspace_only":
                raise BadRequest("the only value is `workspace_only`: a run never sees the host's files")
    return words


def _value(statement: Statement, node: Node) -> Any:
    if statement.shape is Shape.BOOLEAN:
        return node.boolean()
    if statement.shape is Shape.WORD:
        return statement.read(node.text())
    if len(node.items()) > MOST_ITEMS:
        raise BadRequest(f"has more than {MOST_ITEMS} items")
    values = []
    for item in node.items():
        with item.located():
            values.append(statement.read(item.text()))
    return tuple(values)


def _check_ceilings(policy: Policy, ceilings: Policy, entries: Mapping[str, Node]) -> None:
    for name in policy.wider_than(ceilings):
        key = _KEY_OF[name]
        raise entries[key].fault(f"is more than `policies.ceilings.{key}` allows")


def _check_jar(policy: Policy, tier: RiskTier, entries: Mapping[str, Node]) -> None:
    if policy.sandboxed is False and tier.rank > RiskTier.LOW.rank:
        raise entries["sandbox_enabled"].fault("only a tool of tier `safe` or `low` may run outside a jar")


def _settings(default: Node | None, network: Node | None, ceilings: Policy) -> Policy:
    entries = _block(default, "default") if default else {}
    policy = _words(entries).policy("settings")
    _check_ceilings(policy, ceilings, entries)
    _check_jar(policy, RiskTier.HIGH, entries)
    return replace(policy, network_rules=_network(network)) if network else policy


def _network(node: Node) -> tuple[NetworkRules, ...]:
    entries = _block(node, "network")
    if "default" in entries and entries["default"].text() != "none":
        raise entries["default"].fault(
            "the only value is `none`; open the network with `network_access: true`"
        )
    words = _words({key: each for key, each in entries.items() if key == _READ_ONLY})
    for kind, verb in (("allowlist", "allowed"), ("denylist", "denied")):
        if kind not in entries:
            continue
        block = _block(entries[kind], kind)
        enabled = block["enabled"].boolean() if "enabled" in block else True
        listed = _words({f"{verb}_{key}": each for key, each in block.items() if key != "enabled"})
        if enabled:
            if kind == "allowlist" and "domains" not in block:
                raise entries[kind].fault("needs `domains`; an empty list allows none")
            words = listed.over(words)
    return words.policy("settings").network_rules


def _tools(node: Node | None, ceilings: Policy) -> Mapping[str, Tool]:
    tools = {name: Tool(name) for name in BUILT_IN}
    for name, block in (node.entries() if node else {}).items():
        with block.located():
            check_name(name)
        entries = _block(block, "tool")
        policy = _words(entries).policy(f"tool:{name}")
        _check_ceilings(policy, ceilings, entries)
        if policy.risk is None and name not in BUILT_IN:
            raise block.fault("needs a `risk_level`, because it is not a built-in tool")
        # A lower tier is the operator's to give, but not a way to run code outside a jar.
        tiers = (BUILT_IN.get(name, RiskTier.SAFE), policy.risk or RiskTier.SAFE)
        _check_jar(policy, max(tiers, key=lambda tier: tier.rank), entries)
        tools[name] = Tool(name, policy)
    return MappingProxyType(tools)


def _roles(node: Node | None, ceilings: Policy, tools: Mapping[str, Tool]) -> Mapping[str, Role]:
    blocks: dict[str, dict[str, Node]] = {}
    words: dict[str, _Words] = {}
    parents: dict[str, str | None] = {}
    may_use: dict[str, frozenset[str] | None] = {}
    for name, block in (node.entries() if node else {}).items():
        with block.located():
            check_name(name)
            if name == DEFAULT:
                raise BadRequest("is the name of `policies.default`; give the role another")
        blocks[name] = entries = _block(block, "role")
        words[name] = _words(entries)
        own = words[name].policy(f"role:{name}")
        _check_ceilings(own, ceilings, entries)
        _check_jar(own, RiskTier.HIGH, entries)
        parents[name] = entries["inherits"].text() if "inherits" in entries else None
        may_use[name] = _listed(entries["tools"], tools) if "tools" in entries else None

    roles = {}
    for name in blocks:
        line: tuple[str, ...] = (name,)
        if "inherits" in blocks[name]:
            with blocks[name]["inherits"].located():
                line = lineage(name, parents)
        every = words[name]
        for ancestor in line[1:]:
            every = every.over(words[ancestor])
        listed = next((may_use[each] for each in line if may_use[each] is not None), None)
        roles[name] = Role(name, every.policy(f"role:{name}"), listed)
    return MappingProxyType(roles)


def _listed(node: Node, tools: Mapping[str, Tool]) -> frozenset[str]:
    for item in node.items():
        if item.text() not in tools:
            raise item.fault(f"unknown tool {quoted(item.text())}{nearest(item.text(), tools)}")
    return frozenset(item.text() for item in node.items())


def _approvers(node: Node | None) -> Mapping[RiskTier, frozenset[str]]:
    entries = _block(node, "approvers") if node else {}
    return MappingProxyType(
        {RiskTier(tier): frozenset(_value(_APPROVERS, names)) for tier, names in entries.items()}
    )
