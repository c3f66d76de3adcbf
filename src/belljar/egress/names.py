"""Host names as programs write them, in the one form that rules are compared with.

Lower case, ASCII, no final dot. What a resolver could take for an address, in whatever notation, is no name.
"""

from __future__ import annotations

import re

__all__ = ["NotAName", "canonical", "shown"]

_LONGEST = 253
_SHOWN = 100
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# inet_aton(3) reads decimal, octal and hexadecimal numbers, one to four of them.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")


class NotAName(Exception):
    """Says why, to the program."""


def canonical(text: str) -> str:
    """NotAName for an address or for anything else that is no plain host name."""
    name = text.lower() if text.isascii() else text
    name = name.removesuffix(".")
    if ":" in name or "%" in name or "[" in name or _NUMERIC.fullmatch(name):
        raise NotAName("it is an address; hosts are reached by name only")
    if not name.isascii():
        raise NotAName("it is not ASCII; write an international name in its `xn--` form")
    if not name or len(name) > _LONGEST or not all(map(_LABEL.fullmatch, name.split("."))):
        raise NotAName("it is not a host name")
    return name


def shown(text: str) -> str:
    """What a program wrote, safe to log: printable ASCII, and not too much of it."""
    return ascii(text[:_SHOWN])[1:-1]
