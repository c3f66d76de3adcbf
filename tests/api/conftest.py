"""A real service, on the fake engine unless a test asks for the jail, and a client in the same process.

All tests of a module share one event loop, so that those who only ask can share a service too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.served import client_of, config_for, python3

from belljar.engines.base import Engine
from belljar.engines.fake import FakeEngine
from belljar.service import Service
from belljar.settings import Config

if TYPE_CHECKING:
    import httpx2

Opening = Callable[..., AbstractAsyncContextManager[Service]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@asynccontextmanager
async def opened(folder: Path, engine: Engine | None = None, **settings: Any) -> AsyncIterator[Service]:
    async def chosen(config: Config) -> Engine:
        return engine or FakeEngine(programs={"python3": python3})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("belljar.service.engine_for", chosen)
        async with Service.open(config_for(folder, **settings)) as service:
            yield service


@pytest.fixture
def open_service(tmp_path: Path) -> Opening:
    """A service on the fake engine, or on the given one; the data directory is the same each time."""
    return lambda engine=None, **settings: opened(tmp_path, engine, **settings)


@pytest_asyncio.fixture(loop_scope="module")
async def service(open_service: Opening) -> AsyncIterator[Service]:
    async with open_service() as service:
        yield service


@pytest_asyncio.fixture(loop_scope="module")
async def http(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(service) as http:
        yield http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """For tests that do not mind what others have run on it."""
    async with opened(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(shared_service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(shared_service) as http:
        yield http
