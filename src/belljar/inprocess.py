"""The service in this process, for who wants to run something and has no server.

    with belljar.local() as client:
        client.run("print(6 * 7)").stdout

The client's requests go to the HTTP door without a socket. So there is still one way in: token, policy,
record and receipt are where they are for everybody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Unpack

from belljar.client import AsyncClient, Client, Result
from belljar.client.apps import AppTransport
from belljar.client.wire import RunOptions
from belljar.config import Config, load_here

__all__ = ["alocal", "arun", "for_one_run", "local", "run"]


@asynccontextmanager
async def alocal(config: Config | None = None) -> AsyncIterator[AsyncClient]:
    """A client of a service that lives as long as the block. Without a configuration, that of this place."""
    from belljar.api.app import create_app_for
    from belljar.service import Service

    async with Service.open(config or load_here(), person=True) as service:
        transport = AppTransport(create_app_for(service))
        token = service.tokens.operator_token()
        async with AsyncClient("http://localhost", token, transport=transport) as client:
            yield client


@contextmanager
def local(config: Config | None = None) -> Iterator[Client]:
    """`alocal` for code that blocks."""
    with Client.over(lambda: alocal(config)) as client:
        yield client


def for_one_run(config: Config) -> Config:
    """A service that ends with its first run makes no jars ahead."""
    return replace(config, pool_min_idle=0, pool_max_idle=0)


def run(code: str | None = None, language: str = "python", **options: Unpack[RunOptions]) -> Result:
    """Run one program and wait for its end. For several, `local` opens the service once for all of them."""
    with local(for_one_run(load_here())) as client:
        return client.run(code, language, **options)


async def arun(code: str | None = None, language: str = "python", **options: Unpack[RunOptions]) -> Result:
    """`run` for code that does not block."""
    async with alocal(for_one_run(load_here())) as client:
        return await client.run(code, language, **options)
