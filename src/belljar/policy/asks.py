"""What a request asks for, as a layer: one table from every name on the wire to the key it means.

Keys may be nested or dotted, and limits may leave out `limits.`, so the bodies of `/run` and
`/sandbox/execs` fit as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from belljar.errors import BadRequest
from belljar.policy.layers import Layer
from belljar.policy.limits import BY_WIRE_NAME
from belljar.policy.statements import MOST_ITEMS, NETWORK_KEYS, STATEMENTS, Shape, compose
from belljar.wording import nearest, quoted

__all__ = ["REQUEST", "request_layer"]

REQUEST = "request"

_GROUPS = frozenset({"limits", "network", "net"})

_LIMITS: Mapping[str, str] = MappingProxyType(
    {name: name for name in BY_WIRE_NAME} | {f"limits.{name}": name for name in BY_WIRE_NAME}
)
_WORDS: Mapping[str, str] = MappingProxyType(
    {key: key for key in STATEMENTS if key not in ("risk_level", "images")}
    | {f"network.{key}": key for key in NETWORK_KEYS}
    | {
        "network.enabled": "network_access",
        "net.mode": "network_access",
        "image": "images",
        "languages": "supported_languages",
        "sandboxed": "sandbox_enabled",
        "approve_at": "approve_code_at",
    }
)


def request_layer(overrides: Mapping[str, object]) -> Layer:
    """Raises BadRequest with the field at fault for an unknown key, a bad value, or one thing said twice."""
    if not isinstance(overrides, Mapping):
        raise BadRequest("policy overrides must be an object")
    limits: dict[str, float] = {}
    said: dict[str, Any] = {}
    meant: dict[str, str] = {}
    for name, value in _flattened(overrides):
        try:
            if name in _LIMITS:
                limit, per = BY_WIRE_NAME[_LIMITS[name]]
                key, limits[limit.name] = limit.name, limit.from_number(value, per)
            elif name in _WORDS:
                key = _WORDS[name]
                said[key] = _read(name, key, value)
            else:
                near = nearest(name, [*_LIMITS, *_WORDS])
                raise BadRequest(f"unknown override {quoted(name)}{near}", field=name[:64])
        except BadRequest as error:
            if error.field is not None:
                raise
            raise BadRequest(f"{name}: {error.message}", field=name) from None
        if key in meant:
            raise BadRequest(f"{name}: `{meant[key]}` says the same; give one of them", field=name)
        meant[key] = name
    return Layer(REQUEST, compose(REQUEST, limits, said))


def _flattened(overrides: Mapping[str, object], group: str = "") -> Iterator[tuple[str, object]]:
    for key, value in overrides.items():
        if not isinstance(key, str):
            raise BadRequest("policy overrides must have strings as keys", field=group or None)
        name = f"{group}.{key}" if group else key
        if not group and key in _GROUPS:
            if not isinstance(value, Mapping):
                raise BadRequest(f"{name} must be an object", field=name)
            yield from _flattened(value, key)
        else:
            yield name, value


def _read(name: str, key: str, value: object) -> Any:
    statement = STATEMENTS[key]
    if name == "net.mode":
        if value != "none":
            raise BadRequest("must be `none`; to ask for the network, say `network.enabled`")
        return False
    if name == "image":
        return [statement.read(_text(value))]
    if statement.shape is Shape.BOOLEAN:
        if not isinstance(value, bool):
            raise BadRequest("must be true or false")
        return value
    if statement.shape is Shape.WORD:
        return statement.read(_text(value))
    if not isinstance(value, (list, tuple)) or len(value) > MOST_ITEMS:
        raise BadRequest(f"must be a list of at most {MOST_ITEMS}")
    return [statement.read(_text(item, numbers=key.endswith("_ports"))) for item in value]


def _text(value: object, *, numbers: bool = False) -> str:
    if numbers and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31:
        return str(value)
    if not isinstance(value, str) or numbers:
        raise BadRequest("must be a number from 1 to 65535" if numbers else "must be a string")
    return value
