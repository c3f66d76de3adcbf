"""What a layer may say besides limits: every key, the field it means, and how one word of it is read.

Policy files, skill manifests and requests are read into the same table, so a key means the same, and is
checked the same, wherever it is said. Readers take text and raise BadRequest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from belljar.errors import BadRequest
from belljar.models import Language, NetworkRules, OnOutputLimit, PatternRules, RiskTier
from belljar.policy import hosts, packages, units
from belljar.policy.layers import OFF, Policy, Threshold
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["MOST_ITEMS", "NETWORK_KEYS", "STATEMENTS", "Shape", "Statement", "approver", "compose"]


class Shape(StrEnum):
    """What form the value of a key has."""

    BOOLEAN = "boolean"  # true or false
    WORD = "word"  # one scalar
    LIST = "list"  # of scalars


def _as_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Statement:
    field: str
    """The field of `Policy` it speaks to."""
    shape: Shape
    read: Callable[[str], Any] = _as_is
    """One word, or one item of the list."""
    part: str | None = None
    """For rules: the attribute of the layer's rules that the list becomes."""


MOST_ITEMS = 1000
"""In one list."""

_Choice = TypeVar("_Choice", bound=StrEnum)

_LONGEST = 1024
_ROOT = "/workspace"
_IMAGE = re.compile(
    r"[a-z0-9](?:[a-z0-9._/:-]*[a-z0-9])?(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@sha256:[0-9a-f]{64})?"
)

_DECIDE = ("operator", "approver")
_NEVER_DECIDE = ("agent", "viewer")
_TOKEN_ID = re.compile(r"tok-[0-9a-f]{12}")


def _choice(kind: type[_Choice]) -> Callable[[str], _Choice]:
    def read(text: str) -> _Choice:
        try:
            return kind(text)
        except ValueError:
            known = ", ".join(f"`{each}`" for each in kind)
            raise BadRequest(f"{quoted(text)} is none of {known}{nearest(text, kind)}") from None

    return read


_tier = _choice(RiskTier)


def _threshold(text: str) -> Threshold:
    return OFF if text == OFF else _tier(text)


def _language(text: str) -> Language:
    return Language.BASH if text == "shell" else _choice(Language)(text)


def _image(text: str) -> str:
    if len(text) > 255 or not _IMAGE.fullmatch(text) or ".." in text or "//" in text:
        raise BadRequest(f"{quoted(text)} is not an image name; write it like `python:3.12-slim`")
    return text


def _path(text: str) -> str:
    _check_printable(text)
    parts = text.split("/")
    if parts[:2] != ["", _ROOT[1:]]:
        raise BadRequest(f"{quoted(text)} does not start with `{_ROOT}`, where every path of a run lies")
    if "\\" in text or not {"", ".", ".."}.isdisjoint(parts[2:]):
        raise BadRequest(f"{quoted(text)} has a part that is empty, `.`, `..` or holds a backslash")
    return text


def _command(text: str) -> str:
    _check_printable(text)
    if text != text.strip():
        raise BadRequest(f"{quoted(text)} has spaces around it")
    return text


def _check_printable(text: str) -> None:
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise BadRequest(f"{quoted(text)} is empty, too long or holds characters that cannot be printed")


def approver(text: str) -> str:
    """A role of tokens that may decide at all, or one token by its id."""
    if text in _NEVER_DECIDE:
        raise BadRequest(
            f"a token of role {quoted(text)} decides nothing; name `operator`, `approver` or a token"
        )
    if text not in _DECIDE and not _TOKEN_ID.fullmatch(text):
        known = "`operator`, `approver` or the id of a token, like `tok-0123456789ab`"
        raise BadRequest(f"{quoted(text)} is none of {known}{nearest(text, _DECIDE)}")
    return text


def _port(text: str) -> int:
    return hosts.port(units.whole(text))


def _denied_host(text: str) -> str:
    return hosts.denied_range(text) or hosts.host_pattern(text)


STATEMENTS: Mapping[str, Statement] = MappingProxyType(
    {
        "sandbox_enabled": Statement("sandboxed", Shape.BOOLEAN),
        "network_access": Statement("network_access", Shape.BOOLEAN),
        "accept_weaker_limits": Statement("accept_weaker_limits", Shape.BOOLEAN),
        "risk_level": Statement("risk", Shape.WORD, _tier),
        "approve_code_at": Statement("approve_at", Shape.WORD, _threshold),
        "on_output_limit": Statement("on_output_limit", Shape.WORD, _choice(OnOutputLimit)),
        "images": Statement("images", Shape.LIST, _image),
        "supported_languages": Statement("languages", Shape.LIST, _language),
        "allowed_paths": Statement("paths", Shape.LIST, _path, "allow"),
        "denied_paths": Statement("paths", Shape.LIST, _path, "deny"),
        "allowed_commands": Statement("commands", Shape.LIST, _command, "allow"),
        "denied_commands": Statement("commands", Shape.LIST, _command, "deny"),
        "allowed_packages": Statement("packages", Shape.LIST, packages.pattern, "allow"),
        "denied_packages": Statement("packages", Shape.LIST, packages.pattern, "deny"),
        "allowed_domains": Statement("network_rules", Shape.LIST, hosts.host_pattern, "hosts"),
        "allowed_ips": Statement("network_rules", Shape.LIST, hosts.address_range, "addresses"),
        "allowed_ports": Statement("network_rules", Shape.LIST, _port, "ports"),
        "denied_domains": Statement("network_rules", Shape.LIST, _denied_host, "denied_hosts"),
        "denied_ips": Statement("network_rules", Shape.LIST, hosts.address_range, "denied_addresses"),
        "denied_ports": Statement("network_rules", Shape.LIST, _port, "denied_ports"),
        "read_only_domains": Statement("network_rules", Shape.LIST, hosts.host_pattern, "read_only_hosts"),
    }
)
NETWORK_KEYS = frozenset(key for key, said in STATEMENTS.items() if said.field == "network_rules")


def compose(layer: str, limits: Mapping[str, float], said: Mapping[str, Any]) -> Policy:
    """The policy of `layer` from its limits (by field) and its other words (by key, already read)."""
    fields: dict[str, Any] = dict(limits)
    rules: dict[str, dict[str, tuple[Any, ...]]] = {}
    for key, value in said.items():
        statement = STATEMENTS[key]
        if statement.part is not None:
            rules.setdefault(statement.field, {})[statement.part] = tuple(value)
        elif statement.shape is Shape.LIST:
            fields[statement.field] = frozenset(value)
        else:
            fields[statement.field] = value
    for field, parts in rules.items():
        fields[field] = (
            _network(layer, parts) if field == "network_rules" else PatternRules(layer, **parts),
        )
    return Policy(**fields)


def _network(layer: str, parts: dict[str, tuple[Any, ...]]) -> NetworkRules:
    """Denied names that were read as ranges are ranges; no host pattern has a slash."""
    names = parts.pop("denied_hosts", ())
    ranges = parts.pop("denied_addresses", ()) + tuple(name for name in names if "/" in name)
    names = tuple(name for name in names if "/" not in name)
    return NetworkRules(layer, denied_hosts=names, denied_addresses=ranges, **parts)
