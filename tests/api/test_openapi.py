"""The document tells of every route as it is, and nothing that it allows makes the service fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from pydantic import ValidationError
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.api.served import TOKEN

from belljar.api.app import ROUTES
from belljar.api.openapi import OPERATIONS, document

if TYPE_CHECKING:
    import httpx2

DOCUMENT: Any = document()


def test_every_route_is_told_and_no_other() -> None:
    routes = {(entry.method, re.sub(r":\w+}", "}", entry.path)) for entry in ROUTES}
    assert routes == set(OPERATIONS)


def test_every_reference_leads_somewhere() -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT)))
    assert names <= set(DOCUMENT["components"]["schemas"])


async def test_the_document_is_served(shared: httpx2.AsyncClient) -> None:
    answer = await shared.get("/openapi.json")
    assert answer.json()["openapi"] == "3.1.0"
    assert set(answer.json()["paths"]) == set(DOCUMENT["paths"])


def test_only_health_is_open() -> None:
    free = [path for path, item in DOCUMENT["paths"].items() for one in item.values() if one.get("security") == []]
    assert free == ["/health"]
