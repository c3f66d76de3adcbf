"""Records in PostgreSQL, shared by as many services as there are; all of them keep one chain.

A transaction that adds a receipt first takes a lock that lasts until its commit, so receipts are written one
after the other, by whichever process. There is no group commit of our own: the server lets concurrent
commits share a flush of its log already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import asyncpg  # type: ignore[import-untyped]

from belljar.audit.ledger import Dialect, Ledger, LedgerStore
from belljar.audit.receipts import Signer
from belljar.audit.statements import Operation, T
from belljar.errors import BadConfig, StoreUnavailable

__all__ = ["PostgresStore"]

_CHAIN_LOCK = 0x62656C6C6A6172  # "belljar"; any number, but the same one in every process

_DIALECT = Dialect(
    types={
        # By bytes: SQLite sorts like that as well, and an index needs no locale.
        "text": 'TEXT COLLATE "C"',
        "integer": "BIGINT",
        "boolean": "BOOLEAN",
        "time": "TIMESTAMPTZ",
        # Not jsonb, which keeps another text than it was given, and no \\u0000.
        "json": "JSON",
        "bytes": "BYTEA",
    },
    text_times=False,
    lock_row="FOR UPDATE",
    lock_chain=f"SELECT pg_advisory_xact_lock({_CHAIN_LOCK})",
)
_CONNECTIONS = 8
_CONNECT_S = 5.0
_ANSWER_S = 15.0
"""For one statement, waiting for locks included."""

_REASONS = {
    "08": "lost its connection",
    "25": "is read-only",
    "28": "refused our name or password",
    "3D": "does not exist on its server",
    "42": "lacks a table or a right that we need",
    "53": "has no room, memory or connection left",
    "57": "is not ready to answer",
    "58": "cannot read or write its files",
    "XX": "is damaged",
}
"""By class of SQLSTATE. The server's own words may quote a row, so they are not repeated."""


class PostgresStore(LedgerStore):
    """A caller that is cancelled while it waits for a write does not know whether it took place."""

    def __init__(self, pool: Any, signer: Signer | None) -> None:
        super().__init__(Ledger(_DIALECT, signer))
        self._pool = pool

    @classmethod
    async def open(cls, url: str, signer: Signer | None) -> Self:
        """Without a signer, it can only be read.

        Raises:
            BadConfig: that is no URL of a PostgreSQL database.
            StoreUnavailable: it cannot be reached, is newer than this belljar, or belongs to another key.
        """
        try:
            async with _translated():
                pool = await asyncpg.create_pool(
                    url,
                    min_size=1,
                    max_size=_CONNECTIONS,
                    timeout=_CONNECT_S,
                    command_timeout=_ANSWER_S,
                    # Whatever the server's default: a write that returned is on its disk.
                    server_settings={"synchronous_commit": "on"},
                )
        except (ValueError, asyncpg.ClientConfigurationError):
            # Its text may hold the password.
            raise BadConfig("database_url is no URL of a PostgreSQL database") from None
        store = cls(pool, signer)
        try:
            await store._write(store._ledger.prepare)
        except BaseException:
            pool.terminate()
            raise
        return store

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def _write(self, operation: Operation[T]) -> T:
        async with self._connection() as connection, connection.transaction():
            return await _drive(connection, operation)

    async def _read(self, operation: Operation[T]) -> T:
        async with self._connection() as connection:
            return await _drive(connection, operation)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with _translated(), self._pool.acquire(timeout=_ANSWER_S) as connection:
            yield connection


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except asyncpg.PostgresError as error:
        reason = _REASONS.get((error.sqlstate or "")[:2], f"refused ({error.sqlstate})")
        raise StoreUnavailable(f"the audit database {reason}") from error
    except asyncpg.ClientConfigurationError:
        raise
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise StoreUnavailable("the audit database cannot be reached; see that its server is up") from error


async def _drive(connection: Any, operation: Operation[T]) -> T:
    steps = operation()
    rows: Any = None
    try:
        while True:
            sql, values = steps.send(rows)
            rows = await connection.fetch(sql, *values)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
