"""One layer's opinion, and the one operation that joins two: the narrower of both.

    system ─► settings ─► role ─► tool ─► skill ─► request  ═► Grant

`narrowed_by` is a meet: never wider than either side, idempotent, commutative, associative. Each field
names its own meet where it is declared, so a field without one cannot be added. Patterns cannot be
intersected safely (`*.example.com` against `api.example.com`), so each layer's rules are kept beside
the others' and every one must allow.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from belljar.models import Grant, Limits, NetworkRules, OnOutputLimit, PatternRules, RiskTier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FIELDS", "LIMIT_FIELDS", "OFF", "RULE_FIELDS", "SYSTEM", "Layer", "Policy", "Threshold"]

OFF: Final = "off"
"""Never ask a person: the widest threshold. None is taken: it means no opinion."""
Threshold = RiskTier | Literal["off"]

_LAYERS = ("system", "settings", "role", "tool", "skill", "request")


def _shorter(one: float, other: float) -> float:
    """The smaller, where 0 stands for no limit."""
    return min(one, other) if one and other else one or other


def _both(one: bool, other: bool) -> bool:
    return one and other


def _either(one: bool, other: bool) -> bool:
    return one or other


def _common(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    return one & other


def _earlier(one: Threshold, other: Threshold) -> Threshold:
    return min(one, other, key=_lateness)


def _lateness(threshold: Threshold) -> int:
    return threshold.rank if isinstance(threshold, RiskTier) else len(RiskTier)


def _graver(one: RiskTier, other: RiskTier) -> RiskTier:
    return max(one, other, key=lambda tier: tier.rank)


def _harsher(one: OnOutputLimit, other: OnOutputLimit) -> OnOutputLimit:
    return OnOutputLimit.KILL if OnOutputLimit.KILL in (one, other) else OnOutputLimit.TRUNCATE


_Rules = tuple[PatternRules, ...] | tuple[NetworkRules, ...]


def _all_rules(one: _Rules, other: _Rules) -> _Rules:
    """Both sides' rules, each once, in the order of the layers."""
    if not one or not other:
        return one or other
    return tuple(sorted({*one, *other}, key=_place))


def _place(rules: PatternRules | NetworkRules) -> tuple[int, str]:
    return _LAYERS.index(rules.layer.partition(":")[0]), repr(rules)


def _joined_by(meet: Callable[[Any, Any], Any], default: object = None) -> Any:
    return field(default=default, metadata={"meet": meet})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one layer says. None (for rules: no rules) is no opinion; limits are those of `models.Limits`."""

    timeout_s: float | None = _joined_by(min)
    grace_s: float | None = _joined_by(min)
    idle_timeout_s: float | None = _joined_by(_shorter)
    memory_mb: int | None = _joined_by(min)
    cpu_cores: float | None = _joined_by(min)
    pids: int | None = _joined_by(min)
    nofile: int | None = _joined_by(min)
    stdout_kb: int | None = _joined_by(min)
    stderr_kb: int | None = _joined_by(min)
    input_mb: int | None = _joined_by(min)
    input_files: int | None = _joined_by(min)
    artifact_mb: int | None = _joined_by(min)
    artifact_files: int | None = _joined_by(min)
    workspace_mb: int | None = _joined_by(min)
    workspace_files: int | None = _joined_by(min)
    tmp_mb: int | None = _joined_by(min)

    network_access: bool | None = _joined_by(_both)
    network_rules: tuple[NetworkRules, ...] = _joined_by(_all_rules, ())
    images: frozenset[str] | None = _joined_by(_common)
    """Images that may be used. Empty: none may be named. Exactly one: that one is used."""
    languages: frozenset[str] | None = _joined_by(_common)
    sandboxed: bool | None = _joined_by(_either)
    paths: tuple[PatternRules, ...] = _joined_by(_all_rules, ())
    commands: tuple[PatternRules, ...] = _joined_by(_all_rules, ())
    packages: tuple[PatternRules, ...] = _joined_by(_all_rules, ())
    risk: RiskTier | None = _joined_by(_graver)
    approve_at: Threshold | None = _joined_by(_earlier)
    on_output_limit: OnOutputLimit | None = _joined_by(_harsher)
    accept_weaker_limits: bool | None = _joined_by(_both)

    def narrowed_by(self, other: Policy) -> Policy:
        """The stricter of the two, field by field."""
        return Policy(**{name: _met(name, getattr(self, name), getattr(other, name)) for name in FIELDS})

    def wider_than(self, ceiling: Policy) -> tuple[str, ...]:
        """The fields in which this says more than `ceiling` does, where both say something."""
        return tuple(
            name
            for name, value in self.stated().items()
            if name not in RULE_FIELDS
            and (most := getattr(ceiling, name)) is not None
            and FIELDS[name](value, most) != value
        )

    def stated(self) -> dict[str, Any]:
        """The fields on which this layer has an opinion."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None and value != ()}


FIELDS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {each.name: each.metadata["meet"] for each in fields(Policy)}
)
"""Every field of a layer and its meet."""
LIMIT_FIELDS = tuple(each.name for each in fields(Limits))
RULE_FIELDS = frozenset(name for name, meet in FIELDS.items() if meet is _all_rules)


def _met(name: str, one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return FIELDS[name](one, other)


@dataclass(frozen=True, slots=True)
class Layer:
    """A policy and the name that explain gives it: `role:x`, `tool:x`, `skill:x.y`, `request`."""

    name: str
    policy: Policy


def _system() -> Policy:
    """The product's own defaults as the lowest layer: it has an opinion on everything but rules."""
    grant = Grant()
    return Policy(
        **asdict(grant.limits),
        network_access=grant.network.enabled,
        images=frozenset(),
        languages=grant.languages,
        sandboxed=grant.sandboxed,
        risk=grant.risk,
        approve_at=grant.approve_at or OFF,
        on_output_limit=grant.on_output_limit,
        accept_weaker_limits=grant.accept_weaker_limits,
    )


SYSTEM = _system()
