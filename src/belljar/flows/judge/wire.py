"""What crosses between the suite and the candidate: frames of JSON, and the plain values in it.

Scalars are themselves; everything else is a list whose first item says what it is. Nothing that is read can
name a class or a function to be called here, but for a closed table of types.
"""

from __future__ import annotations

import base64
import builtins
import collections
import datetime
import decimal
import fractions
import json
import struct
from collections.abc import Callable
from typing import Any

MAX_FRAME = 16 << 20
HEAD = struct.Struct("!I")

SAFE_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, object)
}
EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
}
EXCEPTIONS["SystemExit"] = SystemExit  # type: ignore[assignment]  # a test may want it; it ends nothing there
TEXTUAL: dict[str, tuple[type, Callable[[str], Any], Callable[[Any], str]]] = {
    "Decimal": (decimal.Decimal, decimal.Decimal, str),
    "Fraction": (fractions.Fraction, fractions.Fraction, str),
    "datetime": (datetime.datetime, datetime.datetime.fromisoformat, datetime.datetime.isoformat),
    "date": (datetime.date, datetime.date.fromisoformat, datetime.date.isoformat),
    "time": (datetime.time, datetime.time.fromisoformat, datetime.time.isoformat),
}
_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Fault(Exception):
    """What came is not of the wire."""


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes; at most {MAX_FRAME} cross at once")
    return HEAD.pack(len(body)) + body


def encode(value: Any, foreign: Callable[[Any], list[Any]]) -> Any:
    """A value for the wire; `foreign` says what becomes of one that is not plain.

    A value of a class derived from a plain one is the plain one: what it overrides stays behind.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    for name, (kind, _, text) in TEXTUAL.items():
        if type(value) is kind:
            return [name, text(value)]
    if isinstance(value, (int, float, str)):
        plain = next(kind for kind in (int, float, str) if isinstance(value, kind))
        return [plain.__name__, plain.__repr__(value) if plain is not str else str.__str__(value)]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, (bytes, bytearray)):
        name = "bytes" if isinstance(value, bytes) else "bytearray"
        return [name, base64.b64encode(bytes(memoryview(value))).decode()]
    names = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        items = [encode(item, foreign) for item in tuple.__iter__(value)]
        return ["named", type(value).__name__, [*names], items]
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return [name, [encode(item, foreign) for item in kind.__iter__(value)]]  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return ["dict", [[encode(k, foreign), encode(v, foreign)] for k, v in dict.items(value)]]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, datetime.timedelta):
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if isinstance(value, type) and any(value is kind for kind in SAFE_TYPES.values()):
        return ["type", value.__name__]
    return foreign(value)


def decode(value: Any, foreign: Callable[[list[Any]], Any]) -> Any:
    """
    Raises:
        Fault: it is not of the wire.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    try:
        tag, *rest = value
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](decode(item, foreign) for item in rest[0])
        if tag == "dict":
            return {decode(key, foreign): decode(item, foreign) for key, item in rest[0]}
        if tag == "named":
            made = collections.namedtuple(rest[0], [str(field) for field in rest[1]])  # type: ignore[misc]
            return made(*(decode(item, foreign) for item in rest[2]))
        if tag in TEXTUAL:
            return TEXTUAL[tag][1](str(rest[0]))
        if tag in ("int", "float", "str"):
            return SAFE_TYPES[tag](str(rest[0]))
        if tag in ("bytes", "bytearray"):
            return SAFE_TYPES[tag](base64.b64decode(rest[0]))
        if tag == "complex":
            return complex(rest[0], rest[1])
        if tag == "range":
            return range(*map(int, rest))
        if tag == "timedelta":
            return datetime.timedelta(*rest)
        if tag == "type":
            return SAFE_TYPES[rest[0]]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Fault(f"not a value: {type(error).__name__}: {str(error)[:200]}") from None
    return foreign(value)
