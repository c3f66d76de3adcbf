"""Durations, sizes and numbers as people write them: `30s`, `1m30s`, `512MB`, `1.5`.

Sizes count in 1024s whichever way they are spelt: `64m`, `64MB` and `64MiB` are all 67,108,864 bytes,
as docker reads them. A size needs its unit; a duration without one is in seconds.
"""

from __future__ import annotations

import re
from decimal import Decimal

import durationpy

from belljar.errors import BadRequest
from belljar.wording import quoted

__all__ = ["LARGEST", "duration", "number", "size", "whole"]

LARGEST = 2**53
"""Every number up to here survives JSON and a float; nothing sensible is larger."""

# durationpy skips what stands between two parts ("1s?2s"), reads every script's digits, and calls a
# month `mm`; so the shape is checked here and only the arithmetic is left to it.
_DURATION = re.compile(r"(?:[0-9]{1,16}(?:\.[0-9]{1,9})?(?:ns|us|ms|s|m|h|d))+")
_NUMBER = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?")
_SIZE = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,9})?) ?(b|[kmgt](?:i?b)?)", re.IGNORECASE)
_POWER = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def duration(text: str) -> float:
    """Seconds in `30s`, `1m30s`, `500ms` or plain `30`."""
    if _NUMBER.fullmatch(text):
        return number(text)
    if len(text) > 64 or not _DURATION.fullmatch(text):
        raise BadRequest(f"{quoted(text)} is not a duration; write it like `30s`, `1m30s` or `500ms`")
    try:
        seconds: float = durationpy.from_str(text).total_seconds()
    except durationpy.DurationError as exc:
        raise BadRequest(f"{quoted(text)} is too long a time") from exc
    _check_bounds(seconds, text)
    return seconds


def size(text: str) -> int:
    """Bytes in `512MB`, `1GB`, `64m` or `10KiB`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        hint = "say the unit" if _NUMBER.fullmatch(text) else "write it"
        raise BadRequest(f"{quoted(text)} is not a size; {hint}, like `512MB` or `10KiB`")
    count = Decimal(match[1]) * 1024 ** _POWER[match[2][0].lower()]
    if count != int(count):
        raise BadRequest(f"{quoted(text)} is not a whole number of bytes")
    _check_bounds(int(count), text)
    return int(count)


def number(text: str) -> float:
    """A plain decimal number, not negative: `1`, `0.5`."""
    if not _NUMBER.fullmatch(text):
        raise BadRequest(f"{quoted(text)} is not a number; write it like `2` or `0.5`")
    _check_bounds(float(text), text)
    return float(text)


def whole(text: str) -> int:
    """A plain decimal whole number, not negative."""
    if not re.fullmatch(r"[0-9]{1,16}", text):
        raise BadRequest(f"{quoted(text)} is not a whole number")
    _check_bounds(int(text), text)
    return int(text)


def _check_bounds(value: float, text: str) -> None:
    if value > LARGEST:
        raise BadRequest(f"{quoted(text)} is too large")
