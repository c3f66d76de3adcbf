"""JSON from a stranger: one object of bounded size, depth and number of values, that means one thing only.

The standard parser takes more than JSON (`NaN`, a key twice, half a character) and can be made to build
far more than it was sent. What decides is looked at before anything is built.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from belljar.errors import BadRequest, LimitExceeded
from belljar.wording import quoted

__all__ = ["MAX_DEPTH", "MAX_VALUES", "loads"]

MAX_DEPTH = 32
MAX_VALUES = 100_000
"""Every `[[],[],…]` of a few bytes is an object of many."""
_LARGEST = 2**63 - 1
_DIGITS = 400
"""Of a fraction; as many as the longest double has before and after the point, roughly."""

# An unterminated string is taken to the end of the text, so that no second attempt starts inside it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def loads(data: bytes | bytearray, *, max_bytes: int) -> dict[str, Any]:
    """The object in `data`.

    Raises:
        LimitExceeded: it is longer than `max_bytes`.
        BadRequest: it is not an object of strict JSON, or a larger one than anybody means.
    """
    if len(data) > max_bytes:
        raise LimitExceeded(f"{len(data)} bytes of JSON; at most {max_bytes} are read", field="body")
    _check_shape(data)
    try:
        text = data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise _fault(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _fault(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    if not isinstance(value, dict):
        raise _fault("an object was expected")
    if _HALF_A_CHARACTER.search(text):
        _check_text(value)
    return value


def _check_shape(data: bytes | bytearray) -> None:
    """Depth and number of values. Most bodies have so few brackets and commas that no more is needed."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH and data.count(b",") < MAX_VALUES:
        return
    bare = _STRING.sub(b"", data)
    if bare.count(b"[") + bare.count(b"{") + bare.count(b",") > MAX_VALUES:
        raise _fault(f"more than {MAX_VALUES} values")
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise _fault(f"nested deeper than {MAX_DEPTH} levels")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for name, _ in pairs:
            if name not in found:  # taken out below when it was met first
                raise _fault(f"the key {quoted(name)} is given twice")
            del found[name]
    return found


def _integer(digits: str) -> int:
    # Length first: int() of a long run of digits is slow, and then refuses by itself.
    if len(digits) > 20 or abs(int(digits)) > _LARGEST:
        raise _fault(f"the number {quoted(digits[:20])} is too large")
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > _DIGITS or math.isinf(number := float(digits)):
        raise _fault(f"the number {quoted(digits[:20])} is too large")
    return number


def _constant(word: str) -> NoReturn:
    raise _fault(f"{word} is not JSON")


def _check_text(value: object) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _fault("a string holds half a character (a lone surrogate)") from None
    elif isinstance(value, dict):
        for key, below in value.items():
            _check_text(key)
            _check_text(below)
    elif isinstance(value, list):
        for below in value:
            _check_text(below)


def _fault(what: str) -> BadRequest:
    return BadRequest(f"the body is not JSON that can be taken: {what}", field="body")
