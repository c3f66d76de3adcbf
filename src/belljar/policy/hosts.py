"""Where bytes may go, as patterns: host names, address ranges and ports, checked and in one form.

A host pattern is lower-case labels joined by dots; `*` stands for one or more whole labels
(`*.example.com` is every name under example.com, not example.com itself). An address is never a host
pattern. In a list of denials `10.*` is understood as the range 10.0.0.0/8, because that is what it means.
"""

from __future__ import annotations

import ipaddress
import re

from belljar.errors import BadRequest
from belljar.wording import quoted

__all__ = ["address_range", "denied_range", "host_pattern", "port"]

_LONGEST = 253
_LABEL = re.compile(r"\*|[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_OCTETS = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3}){0,2})((?:\.\*)+)")
# What a resolver reads as an address: the last label is a number, in decimal or hexadecimal.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")


def host_pattern(text: str) -> str:
    if "://" in text:
        raise BadRequest(f"{quoted(text)} has a scheme; write the host alone")
    if _is_address(text) or _OCTETS.fullmatch(text) or _NUMERIC.fullmatch(text):
        raise BadRequest(f"{quoted(text)} is an address, not a host; addresses belong in `ips`, as ranges")
    if re.search(r":[0-9*]+$", text):
        raise BadRequest(f"{quoted(text)} has a port; ports have a list of their own")
    if "/" in text or "@" in text:
        raise BadRequest(f"{quoted(text)} is not a host; write the name alone, without user or path")
    if not text.isascii():
        raise BadRequest(f"{quoted(text)} is not ASCII; write international names in their `xn--` form")
    if text != text.lower():
        raise BadRequest(f"{quoted(text)} must be in lower case")
    if len(text) > _LONGEST or not all(_LABEL.fullmatch(label) for label in text.split(".")):
        raise BadRequest(
            f"{quoted(text)} is not a host pattern; write it like `api.example.com` or `*.example.com`, "
            "`*` only as a whole label"
        )
    return text


def address_range(text: str) -> str:
    """One address or one CIDR range, in canonical form."""
    try:
        # Scoped addresses (`fe80::1%eth0`) name an interface of one machine; the parser would take them.
        meant = None if "%" in text else ipaddress.ip_network(text, strict=False)
    except ValueError:
        meant = None
    if meant is None:
        raise BadRequest(
            f"{quoted(text)} is not an address range; write it like `203.0.113.7` or `10.0.0.0/8`"
        )
    if meant.network_address != ipaddress.ip_address(text.partition("/")[0]):
        raise BadRequest(f"{quoted(text)} has bits past its prefix; did you mean `{meant}`?")
    return str(meant)


def denied_range(text: str) -> str | None:
    """The range that an entry such as `10.*`, `127.0.0.1` or `10.0.0.0/8` stands for; None for a host."""
    if match := _OCTETS.fullmatch(text):
        octets = match[1].split(".")
        stars = match[2].count("*")
        if stars == 1 or stars + len(octets) == 4:
            padded = ".".join(octets + ["0"] * (4 - len(octets)))
            return address_range(f"{padded}/{8 * len(octets)}")
    return address_range(text) if _is_address(text.partition("/")[0]) else None


def port(number: int) -> int:
    if not 1 <= number <= 65535:
        raise BadRequest("a port is a number from 1 to 65535")
    return number


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
