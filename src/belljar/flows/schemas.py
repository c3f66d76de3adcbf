"""JSON Schemas of strangers: which keywords they may use, and checking a value without being held up by it.

A schema may come with a hostile skill and a value from a hostile program. So there is no `$ref` (which can
reach out, loop, or double its work at each step) and no regular expression (which can take for ever), and
the work of a check, values times subschemas, is bounded before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from belljar.errors import BadRequest, LimitExceeded
from belljar.wording import nearest, printable, quoted

if TYPE_CHECKING:
    from belljar.policy.trees import Node

__all__ = ["Schema", "read_schema"]

MAX_SUBSCHEMAS = 256
MAX_WORK = 200_000
"""Values of an instance times subschemas; about a second of checking."""

_PLAIN = frozenset(
    """title description default examples format deprecated readOnly $comment
    enum const required minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minItems maxItems minProperties maxProperties""".split()
)
_ONE = frozenset({"additionalProperties", "items", "contains", "not", "if", "then", "else"})
_MANY = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED = frozenset({"properties"})
_KEYWORDS = _PLAIN | _ONE | _MANY | _NAMED | {"type", "$schema"}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WHY_NOT = {
    "$ref": "write the schema out; a reference can reach elsewhere or loop",
    "$dynamicRef": "write the schema out; a reference can reach elsewhere or loop",
    "$defs": "write the schema out; without references there is no use for definitions",
    "pattern": "a regular expression can take for ever; let the program check it, in its jar",
    "patternProperties": "a regular expression can take for ever; let the program check it, in its jar",
    "uniqueItems": "comparing all with all takes too long; let the program check it, in its jar",
}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that is known to be harmless."""

    document: Mapping[str, Any]
    subschemas: int = 1

    def check(self, value: object, *, field: str) -> None:
        """
        Raises:
            BadRequest: `value` is not what the schema asks for; the error's field says where.
            LimitExceeded: checking it would take too long.
        """
        from jsonschema import Draft202012Validator

        if _values(value) * self.subschemas > MAX_WORK:
            raise LimitExceeded(f"{field} has too many values to be checked", field=field)
        if self.document.get("additionalProperties") is False and isinstance(value, Mapping):
            known = self.document.get("properties", {})
            unknown = next((name for name in value if name not in known), None)
            if unknown is not None:  # the likely cause of other faults
                what = f"{field}: unknown name {quoted(unknown)}{nearest(unknown, known)}"
                raise BadRequest(what, field=f"{field}.{unknown}"[:200])
        fault = next(iter(Draft202012Validator(self.document).iter_errors(value)), None)
        if fault is not None:
            place = ".".join([field, *map(str, fault.absolute_path)])[:200]
            raise BadRequest(f"{place}: {printable(fault.message)}", field=place)

    @property
    def texts(self) -> frozenset[str]:
        """Properties that are always strings when they are there."""
        properties = self.document.get("properties", {})
        return frozenset(name for name, below in properties.items() if below.get("type") == "string")


def read_schema(node: Node) -> Schema:
    """The schema of an object, from a file.

    Raises:
        BadPolicy: with file, line and key.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    subschemas = sum(1 for _ in _checked(node))
    if subschemas > MAX_SUBSCHEMAS:
        raise node.fault(f"is a schema of more than {MAX_SUBSCHEMAS} parts")
    document = _plain(node)
    try:
        Draft202012Validator.check_schema(document)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path))
        raise node.fault(f"{where}: {printable(error.message)}".removeprefix(": ")) from None
    if document.get("type") != "object":
        raise node.fault('must be the schema of an object: `"type": "object"`')
    return Schema(document, subschemas)


def _checked(node: Node) -> Iterator[Node]:
    """Every subschema, once its keywords are known to be harmless."""
    if isinstance(node.content, bool):
        yield node
        return
    yield node
    for keyword, below in node.entries().items():
        if keyword not in _KEYWORDS:
            why = _WHY_NOT.get(keyword)
            raise below.unknown(keyword, f"; {why}" if why else nearest(keyword, _KEYWORDS))
        if keyword == "$schema" and below.text() != _DIALECT:
            raise below.fault(f"the only dialect is {_DIALECT}")
        if keyword in _ONE:
            yield from _checked(below)
        elif keyword in _MANY:
            for each in below.items():
                yield from _checked(each)
        elif keyword in _NAMED:
            for each in below.entries().values():
                yield from _checked(each)


def _plain(node: Node) -> Any:
    if isinstance(node.content, dict):
        return {key: _plain(below) for key, below in node.content.items()}
    if isinstance(node.content, tuple):
        return [_plain(below) for below in node.content]
    return node.content


def _values(value: object) -> int:
    """How many values there are in one, itself included."""
    count, left = 0, [value]
    while left:
        count += 1
        here = left.pop()
        if isinstance(here, Mapping):
            left.extend(here.values())
        elif isinstance(here, list):
            left.extend(here)
    return count
