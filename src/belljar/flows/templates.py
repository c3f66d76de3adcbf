"""`{{name}}` and `{{node.output.field}}` in a graph: which names a value refers to, and the value filled in.

A text that is one template becomes what that stands for, with its type; in a longer text it becomes text.
What is filled in is not looked at again: nothing that a program printed can be a template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from belljar.errors import BadRequest
from belljar.wording import quoted

__all__ = ["at", "filled", "references"]

_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*\}\}")


def references(value: Any) -> Iterator[str]:
    """Every `a.b.c` that is in a template somewhere in it."""
    if isinstance(value, str):
        yield from (found[1] for found in _TEMPLATE.finditer(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from references(key)
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def filled(value: Any, look_up: Callable[[str], Any]) -> Any:
    """The value with `look_up` of each reference in its place; one that raises KeyError is left as it is."""
    if isinstance(value, str):
        whole = _TEMPLATE.fullmatch(value)
        if whole:
            return _found(whole, look_up)
        return _TEMPLATE.sub(lambda one: _as_text(_found(one, look_up)), value)
    if isinstance(value, dict):
        return {_as_text(filled(key, look_up)): filled(item, look_up) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, look_up) for item in value]
    return value


def at(value: Any, reference: str, steps: list[str]) -> Any:
    """What lies at the end of these steps within a value."""
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            have = f"; it has {', '.join(map(str, value))}"[:200] if isinstance(value, dict) else ""
            raise BadRequest(f"{quoted(reference)} is not there: no {quoted(step)}{have}", field=reference)
    return value


def _found(template: re.Match[str], look_up: Callable[[str], Any]) -> Any:
    try:
        return look_up(template[1])
    except KeyError:
        return template[0]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
