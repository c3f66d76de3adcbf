"""From layers to one `Grant`, and the account of which layer set each part of it.

The operator's own words come first: a role's and a tool's statements, the narrower of the two; where
neither speaks, `default`; where that is silent, the product's defaults. Each part also gets a ceiling:
what the role or tool stated, else `policies.ceilings`, else the value itself. A skill and a request may
ask for anything up to the ceiling; asking for more is refused, never clamped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from belljar.errors import BadRequest, ImageNotAllowed, PolicyEscalation, ToolNotAllowed
from belljar.models import Grant, Limits, Network, NetworkRules, PatternRules, RiskTier
from belljar.policy.asks import request_layer
from belljar.policy.layers import FIELDS, LIMIT_FIELDS, OFF, RULE_FIELDS, SYSTEM, Layer, Policy
from belljar.policy.roles import BUILT_IN, CODE_RUN, SHELL_EXEC, Role, Tool
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["Decision", "PolicySet", "Row", "Term", "decide", "narrower"]

_PLACES: Mapping[str, str] = MappingProxyType(
    {name: name for name in FIELDS}
    | {name: f"limits.{name}" for name in LIMIT_FIELDS}
    | {"network_access": "network.enabled", "network_rules": "network.rules", "images": "image"}
)
"""Where in the grant each field of a layer ends up."""
_LEAVES = MappingProxyType({place: attrgetter(place) for place in _PLACES.values()})
_LIMIT_PLACES = tuple((name, _PLACES[name]) for name in LIMIT_FIELDS)

_UNLISTED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {"hosts": (), "ports": (80, 443), "addresses": ()}
)
"""What network rules allow when no layer lists any. A skill or request may narrow this, not add to it."""

_REMEMBERED = 1024
_SHOWN = 8
_Named = TypeVar("_Named")


class Term(NamedTuple):
    """One part of a grant: its value, who set it, and how far later layers may go. Rules have no ceiling."""

    value: Any
    layer: str
    ceiling: Any = None
    ceiling_layer: str | None = None


class Row(NamedTuple):
    """One line of `Decision.explain`."""

    field: str
    value: object
    layer: str
    ceiling: object
    ceiling_layer: str | None


@dataclass(frozen=True, slots=True)
class Decision:
    grant: Grant
    provenance: Mapping[str, Term]
    """For every leaf of the grant (`limits.memory_mb`, `network.enabled`, `paths`, …) its term."""

    def explain(self) -> tuple[Row, ...]:
        return tuple(
            Row(place, _LEAVES[place](self.grant), term.layer, term.ceiling, term.ceiling_layer)
            for place, term in self.provenance.items()
        )

    def as_data(self) -> dict[str, Any]:
        """The grant, its digest and every row of `explain`, of nothing but what JSON has."""
        return {
            "grant": _as_data(self.grant),
            "digest": self.grant.digest,
            "fields": [
                {name: _as_data(value) for name, value in row._asdict().items()} for row in self.explain()
            ],
        }

    def snapshot(self) -> dict[str, Any]:
        """Each field with its value and the layer that set it, as it is kept in every record."""
        return {row.field: {"value": _as_data(row.value), "layer": row.layer} for row in self.explain()}


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Everything the operator said, checked; knows every role and every tool that may be named."""

    name: str = "built-in"
    settings: Policy = field(default_factory=Policy)
    """`policies.default` and `network`."""
    ceilings: Policy = field(default_factory=Policy)
    roles: Mapping[str, Role] = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=lambda: {name: Tool(name) for name in BUILT_IN})
    approvers: Mapping[RiskTier, frozenset[str]] = field(default_factory=dict)
    """By tier: the roles and ids of tokens that may decide. A tier that is left out: every person's token."""
    _decided: dict[tuple[str | None, str | None], Decision] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def operators_word(self, role: str | None, tool: str | None) -> Decision:
        """What the operator gives this role and tool before anyone asks for less; remembered."""
        try:
            return self._decided[role, tool]
        except (KeyError, TypeError):  # TypeError: a name that is not even hashable
            pass
        decision = _operators_word(self, _known(role, self.roles, "role"), _known(tool, self.tools, "tool"))
        if len(self._decided) >= _REMEMBERED:
            self._decided.clear()
        self._decided[role, tool] = decision
        return decision

    def runners(self, role: str | None) -> tuple[str, ...]:
        """The tools by which this role may run programs: for code, for commands, or for both."""
        known = _known(role, self.roles, "role")
        listed = None if known is None else known.tools
        return tuple(tool for tool in (CODE_RUN, SHELL_EXEC) if listed is None or tool in listed)

    def usual_tool(self, role: str | None, skill: Layer | None = None) -> str | None:
        """The tool that a run of this role is if it does not say; of a skill its own, where one is known."""
        if skill is None:
            return next(iter(self.runners(role)), None)
        name = skill.name.replace(":", ".", 1)
        return name if name in self.tools else None


def decide(
    policies: PolicySet,
    *,
    role: str | None = None,
    tool: str | None = None,
    skill: Layer | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Decision:
    """The grant for one request.

    Raises:
        BadRequest: an unknown role or tool, or an override that makes no sense; `field` says which.
        ToolNotAllowed: the role does not list the tool.
        PolicyEscalation, ImageNotAllowed: the skill or the request asks for more than it may have.
    """
    decision = policies.operators_word(role, tool)
    terms = decision.provenance
    if skill is not None:
        terms = _narrowed(terms, skill, sealed=True)
    if overrides is not None:
        terms = _narrowed(terms, request_layer(overrides), sealed=False)
    return decision if terms is decision.provenance else _decision(terms)


def narrower(one: Decision, other: Decision) -> Decision:
    """What both give, for what is used under either."""
    terms = {}
    for name, place in _PLACES.items():
        term, others = one.provenance[place], other.provenance[place]
        value = FIELDS[name](term.value, others.value)
        if name in RULE_FIELDS:
            terms[place] = _ruled(value)
        elif value != term.value:
            terms[place] = others if value == others.value else Term(value, f"{term.layer}, {others.layer}")
        else:
            terms[place] = term
    decision = _decision(terms)
    weaker = one.grant.accept_weaker_limits and other.grant.accept_weaker_limits
    return replace(decision, grant=replace(decision.grant, accept_weaker_limits=weaker))


def _known(name: str | None, named: Mapping[str, _Named], what: str) -> _Named | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise BadRequest(f"{what} must be a string", field=what)
    if name not in named:
        raise BadRequest(f"unknown {what} {quoted(name)}{nearest(name, named)}", field=what)
    return named[name]


def _operators_word(policies: PolicySet, role: Role | None, tool: Tool | None) -> Decision:
    speakers = []
    if role is not None:
        speakers.append(Layer(f"role:{role.name}", role.policy))
        if tool is not None and role.tools is not None and tool.name not in role.tools:
            raise ToolNotAllowed(
                f"role `{role.name}` may not use tool `{tool.name}`; its tools are: {_list(role.tools)}",
                field="tool",
            )
    if tool is not None:
        speakers.append(Layer(f"tool:{tool.name}", tool.policy))

    stated = Policy()
    for speaker in speakers:
        stated = stated.narrowed_by(speaker.policy)
    every = policies.settings.narrowed_by(stated)

    terms = {}
    for name, place in _PLACES.items():
        if name in RULE_FIELDS:
            terms[place] = _ruled(getattr(every, name))
        elif getattr(stated, name) is not None:
            terms[place] = _stated(name, getattr(stated, name), speakers)
        else:
            terms[place] = _unstated(name, policies)

    if tool is not None:
        if tool.policy.risk is None:
            terms["risk"] = Term(tool.risk, "system", tool.risk, "system")
        if tool.risk is RiskTier.CRITICAL and terms["approve_at"].value == OFF:
            layer = terms["risk"].layer
            terms["approve_at"] = Term(RiskTier.CRITICAL, layer, RiskTier.CRITICAL, layer)
    return _decision(terms)


def _stated(name: str, narrowest: Any, speakers: Iterable[Layer]) -> Term:
    """What the role and the tool leave of each other's statements, which nobody may exceed."""
    said = {
        speaker.name: value for speaker in speakers if (value := getattr(speaker.policy, name)) is not None
    }
    if name == "images" and not narrowest and any(said.values()):
        raise ImageNotAllowed(f"no image is allowed by both {' and '.join(said)}", field="image")
    setter = next((layer for layer, value in said.items() if value == narrowest), ", ".join(said))
    return Term(narrowest, setter, narrowest, setter)


def _unstated(name: str, policies: PolicySet) -> Term:
    value, layer = getattr(policies.settings, name), "settings"
    if value is None:
        value, layer = getattr(SYSTEM, name), "system"
    ceiling = getattr(policies.ceilings, name)
    if ceiling is None:
        return Term(value, layer, value, layer)
    if FIELDS[name](value, ceiling) != value:  # the operator's ceiling is below the product's default
        value, layer = FIELDS[name](value, ceiling), "settings"
    return Term(value, layer, ceiling, "settings")


def _ruled(rules: tuple[PatternRules, ...] | tuple[NetworkRules, ...]) -> Term:
    return Term(rules, ", ".join(dict.fromkeys(each.layer for each in rules)) or "system")


def _narrowed(terms: Mapping[str, Term], layer: Layer, *, sealed: bool) -> Mapping[str, Term]:
    """The terms when `layer` has asked for its part; `sealed` makes that the ceiling for the next one."""
    narrowed = {}
    for name, asked in layer.policy.stated().items():
        place = _PLACES[name]
        term = terms[place]
        if name in RULE_FIELDS:
            if name == "network_rules":
                _check_network(term.value, asked)
            elif name == "packages":
                _check_packages(term.value, asked)
            narrowed[place] = _ruled(FIELDS[name](term.value, asked))
            continue
        if FIELDS[name](asked, term.ceiling) != asked:
            raise _beyond(name, asked, term)
        narrowed[place] = (
            Term(asked, layer.name, asked, layer.name)
            if sealed
            else term._replace(value=asked, layer=layer.name)
        )
    return {**terms, **narrowed} if narrowed else terms


def _check_network(held: tuple[NetworkRules, ...], asked: tuple[NetworkRules, ...]) -> None:
    """Every layer must allow, so a list only narrows; unless it is the first one, which would open."""
    for rules in asked:
        for part, unlisted in _UNLISTED.items():
            wanted = getattr(rules, part)
            first = all(getattr(each, part) is None for each in held)
            if wanted is not None and first and not set(wanted) <= set(unlisted):
                raise PolicyEscalation(
                    field=f"network.{part}", asked=_list(wanted), ceiling=_list(unlisted), layer="system"
                )


def _check_packages(held: tuple[PatternRules, ...], asked: tuple[PatternRules, ...]) -> None:
    """As with hosts: a list narrows, unless it is the first one."""
    wanted = [pattern for rules in asked for pattern in rules.allow or ()]
    if wanted and all(rules.allow is None for rules in held):
        raise PolicyEscalation(field="packages", asked=_list(wanted), ceiling="none", layer="system")


def _beyond(name: str, asked: Any, term: Term) -> PolicyEscalation | ImageNotAllowed:
    layer = term.ceiling_layer or term.layer
    if name == "images":
        return ImageNotAllowed(
            f"image {_list(asked - term.ceiling)} is not allowed; layer '{layer}' allows "
            f"{_list(term.ceiling)}; the operator lists images under `images`",
            field="image",
        )
    if isinstance(asked, frozenset):
        asked, ceiling = _list(asked), _list(term.ceiling)
        return PolicyEscalation(field=_PLACES[name], asked=asked, ceiling=ceiling, layer=layer)
    return PolicyEscalation(field=_PLACES[name], asked=asked, ceiling=term.ceiling, layer=layer)


def _as_data(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value  # most are
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {name: _as_data(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_data(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value


def _list(values: Collection[object]) -> str:
    shown = sorted(map(str, values))[:_SHOWN]
    return ", ".join([*shown, "…"] if len(values) > _SHOWN else shown) or "none"


def _decision(terms: Mapping[str, Term]) -> Decision:
    images = terms["image"].value
    approve_at = terms["approve_at"].value
    grant = Grant(
        limits=Limits(**{name: terms[place].value for name, place in _LIMIT_PLACES}),
        network=Network(terms["network.enabled"].value, terms["network.rules"].value),
        image=next(iter(images)) if len(images) == 1 else None,
        languages=terms["languages"].value,
        sandboxed=terms["sandboxed"].value,
        paths=terms["paths"].value,
        commands=terms["commands"].value,
        packages=terms["packages"].value,
        risk=terms["risk"].value,
        approve_at=None if approve_at == OFF else approve_at,
        on_output_limit=terms["on_output_limit"].value,
        accept_weaker_limits=terms["accept_weaker_limits"].value,
    )
    return Decision(grant, MappingProxyType(dict(terms)))
