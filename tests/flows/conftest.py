"""A service in this process with a real jail, for all tests of a module; and one event loop for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from belljar import alocal
from belljar.client import AsyncClient
from belljar.config import Config
from belljar.settings import WeakerLimits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(jail: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncClient]:
    config = Config(data_dir=tmp_path_factory.mktemp("data"), jail_accept_weaker_limits=WeakerLimits.ALWAYS)
    async with alocal(config) as client:
        yield client
