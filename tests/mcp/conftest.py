"""A service with a real jail on a port of its own, and one event loop for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import serving
from tests.mcp.hosts import MODES

from belljar.engines.jail.engine import JailEngine
from belljar.service import Service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


class Served(NamedTuple):
    service: Service
    port: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(jail: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    async with opened(folder, JailEngine()) as service, serving(service) as port:
        yield Served(service, port)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)
