"""The document tells of every route as it is, and nothing that it allows makes the service fail."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from tests.api.conftest import opened
from tests.api.served import TOKEN, serving

from belljar.api.app import ROUTES
from belljar.api.errors import STATUS
from belljar.api.openapi import OPERATIONS, document
from belljar.api.runs import RunBody

if TYPE_CHECKING:
    import httpx2

DOCUMENT: Any = document()
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service in a thread of its own, because those who ask are not asynchronous."""
    port: Future[int] = Future()
    stop: Future[asyncio.Event] = Future()

    async def serve() -> None:
        async with opened(tmp_path_factory.mktemp("fuzzed")) as service, serving(service) as found:
            event = asyncio.Event()
            stop.set_result(event)
            port.set_result(found)
            loops.set_result(asyncio.get_running_loop())
            await event.wait()

    loops: Future[asyncio.AbstractEventLoop] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    yield f"http://127.0.0.1:{port.result(60)}"
    loops.result().call_soon_threadsafe(stop.result().set)
    thread.join()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_makes_the_service_fail(method: str, path: str, address: str) -> None:
    operation = schema[path][method]
    asked = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if operation.body or operation.query:
        asked |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    examples = 30 if operation.body else 10 if operation.query or operation.path_parameters else 1

    @hypothesis.settings(max_examples=examples, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(case=asked)
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=address, session=session, checks=CHECKS, timeout=30)

    with requests.Session() as session:
        session.headers["authorization"] = f"Bearer {TOKEN}"
        check()


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
    operations = [(path, one) for path, item in DOCUMENT["paths"].items() for one in item.values()]
    assert [path for path, one in operations if one.get("security") == []] == ["/health"]


def test_every_route_and_status_is_in_the_manual() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text()
    routes = {f"{method} {path}" for method, path in OPERATIONS}
    assert set(re.findall(r"^\| `([A-Z]+ /\S+)` \|", page, re.MULTILINE)) == routes
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", page, re.MULTILINE)
    told = {code: int(status) for status, codes in rows for code in re.findall(r"`([A-Z_]+)`", codes)}
    assert told == dict(STATUS)


def test_every_field_of_a_body_is_in_the_manual() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text()
    assert [name for name in RunBody.model_fields if f"`{name}`" not in page] == []
