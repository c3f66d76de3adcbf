"""A schema of a stranger cannot reach out, loop or take for ever; what is left of it checks values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar.errors import BadPolicy, BadRequest, LimitExceeded
from belljar.flows.schemas import MAX_SUBSCHEMAS, Schema, read_schema
from belljar.policy.trees import from_json


def read(document: Any) -> Schema:
    return read_schema(from_json(json.dumps(document), "schema.json"))


def with_property(schema: Any) -> Any:
    return {"type": "object", "properties": {"x": schema}}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        pytest.param({"$ref": "https://example.com/schema"}, "properties.x.$ref", id="remote reference"),
        pytest.param({"$ref": "#"}, "properties.x.$ref", id="loop"),
        pytest.param({"$defs": {}}, "properties.x.$defs", id="definitions"),
        pytest.param({"$dynamicRef": "#a"}, "properties.x.$dynamicRef", id="dynamic reference"),
        pytest.param({"pattern": "(a+)+$"}, "properties.x.pattern", id="expression"),
        pytest.param({"patternProperties": {"(a+)+$": {}}}, "properties.x.patternProperties", id="names"),
        pytest.param({"uniqueItems": True}, "properties.x.uniqueItems", id="all with all"),
        pytest.param({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "properties.x.allOf.anyOf.$ref", id="nested"),
        pytest.param({"items": {"$id": "file:///etc/passwd"}}, "properties.x.items.$id", id="id"),
        pytest.param({"minLenght": 1}, "properties.x.minLenght", id="misspelt"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-04/schema#"}, "properties.x.$schema", id="dialect"
        ),
    ],
)
def test_a_hostile_keyword_is_refused_with_its_field(schema: Any, field: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        read(with_property(schema))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(with_property({"type": "objekt"}), id="no such type"),
        pytest.param(with_property({"minLength": -1}), id="negative length"),
        pytest.param(with_property({"enum": "a"}), id="enum of no list"),
        pytest.param({"type": "array"}, id="not an object"),
        pytest.param({}, id="empty"),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused(document: Any) -> None:
    with pytest.raises(BadPolicy):
        read(document)


def test_a_schema_of_too_many_parts_is_refused() -> None:
    with pytest.raises(BadPolicy, match="more than"):
        read({"type": "object", "properties": {f"p{n}": {} for n in range(MAX_SUBSCHEMAS)}})


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: Any = {}
    for _ in range(40):
        schema = {"not": schema}
    with pytest.raises(BadPolicy):
        read(with_property(schema))


def test_checking_a_value_that_would_take_too_long_is_refused_at_once() -> None:
    wide = read(with_property({"items": {"allOf": [{"type": "integer"}] * 200}}))
    with pytest.raises(LimitExceeded):
        wide.check({"x": list(range(100_000))}, field="inputs")


def test_a_value_that_does_not_fit_is_refused_with_its_place() -> None:
    schema = read(with_property({"type": "array", "items": {"type": "integer"}}))
    schema.check({"x": [1, 2]}, field="inputs")
    with pytest.raises(BadRequest) as caught:
        schema.check({"x": [1, "two"]}, field="inputs")
    assert caught.value.field == "inputs.x.1"


def test_a_message_repeats_only_a_little_of_a_hostile_value() -> None:
    with pytest.raises(BadRequest) as caught:
        read(with_property({"type": "integer"})).check({"x": "\x1b[2J" + "a" * 100_000}, field="inputs")
    assert len(caught.value.message) < 300
    assert "\x1b" not in caught.value.message
