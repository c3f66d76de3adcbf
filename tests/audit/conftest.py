"""Every test of a store runs on SQLite and on a PostgreSQL server that is started for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.audit.databases import (
    Database,
    PostgresDatabase,
    PostgresServer,
    SqliteDatabase,
    postgres_programs,
)

from belljar.audit.ledger import LedgerStore
from belljar.audit.receipts import Signer


@pytest.fixture(scope="session")
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server to start; on Debian and Ubuntu: apt install postgresql")
    server = PostgresServer(programs)
    yield server
    server.remove()


@pytest.fixture
async def postgres(postgres_server: PostgresServer, tmp_path: Path) -> PostgresDatabase:
    """A schema of its own in the one server."""
    schema = f"t_{abs(hash(tmp_path)):x}"
    connection = await asyncpg.connect(postgres_server.url("public"))
    try:
        await connection.execute(f"CREATE SCHEMA {schema}")
    finally:
        await connection.close()
    return PostgresDatabase(postgres_server.url(schema))


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteDatabase:
    return SqliteDatabase(tmp_path / "audit.db")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def store(database: Database, signer: Signer) -> AsyncIterator[LedgerStore]:
    async with await database.open(signer) as store:
        yield store
