"""Which paths of a run the layers allow: `*` within a name, `**` across folders, `?` for one character.

Everything else in a pattern stands for itself. Every layer that has a list must allow; any may deny. A
pattern may come from a stranger, so it is followed one character of the path at a time, in all its readings
at once: `**/**/**` takes as many steps as the path and the pattern are long, and not their every combination.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from belljar.models import PatternRules

__all__ = ["allows", "allows_work", "expression", "matches"]


class _Step(Enum):
    """What a place in a pattern takes; a character stands for itself."""

    ONE = "?"  # one character of a name
    SOME = "*"  # any number of them
    ALL = "**"  # any number of characters
    MAYBE = "(**/"  # the next step and all it takes, or nothing
    FOLDERS = "**/)"  # any number of characters, the last a slash


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]")
_STEPS = {
    "**/": (_Step.MAYBE, _Step.FOLDERS),
    "**": (_Step.ALL,),
    "*": (_Step.SOME,),
    "?": (_Step.ONE,),
}
_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def expression(pattern: str) -> str:
    """The pattern as a regular expression of the whole path; for where its time is limited."""
    return "".join(_EXPRESSIONS.get(token) or re.escape(token) for token in _TOKEN.findall(pattern))


def matches(pattern: str, path: str) -> bool:
    steps = [step for token in _TOKEN.findall(pattern) for step in _STEPS.get(token, (token,))]
    places = _with_skipped({0}, steps)
    for char in path:
        after = set()
        for place in places:
            step = steps[place] if place < len(steps) else None
            if step is _Step.ALL or step is _Step.FOLDERS or (step is _Step.SOME and char != "/"):
                after.add(place)
            if step == char or (step is _Step.ONE and char != "/") or (step is _Step.FOLDERS and char == "/"):
                after.add(place + 1)
        places = _with_skipped(after, steps)
        if not places:
            return False
    return len(steps) in places


def _with_skipped(places: set[int], steps: list[_Step | str]) -> set[int]:
    """The places, and those that can be reached from them without a character."""
    found, left = set(places), list(places)
    while left:
        place = left.pop()
        step = steps[place] if place < len(steps) else None
        reached: tuple[int, ...] = ()
        if step is _Step.SOME or step is _Step.ALL:
            reached = (place + 1,)
        elif step is _Step.MAYBE:
            reached = (place + 1, place + 2)
        left.extend(set(reached) - found)
        found.update(reached)
    return found


def allows(path: str, rules: Iterable[PatternRules]) -> bool:
    """`path` as a program sees it: `/workspace/artifacts/report.md`."""
    return _allow((path,), rules)


def allows_work(path: str, rules: Iterable[PatternRules]) -> bool:
    """`path` below `work`, by either of its names: some policies speak of `work` as all of `/workspace`."""
    return _allow((f"/workspace/{path}", f"/workspace/work/{path}"), rules)


def _allow(names: tuple[str, ...], rules: Iterable[PatternRules]) -> bool:
    return all(
        not _any_matches(names, each.deny) and (each.allow is None or _any_matches(names, each.allow))
        for each in rules
    )


def _any_matches(names: tuple[str, ...], patterns: Iterable[str]) -> bool:
    return any(matches(pattern, name) for pattern in patterns for name in names)
