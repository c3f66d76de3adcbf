"""Records in a SQLite file: one thread writes, another reads, and many writes share one fsync.

The writer takes everything that is waiting, runs it in one transaction and commits once; while that commit
is on its way to the disk, the next batch gathers. So a lone write waits for nothing, and a crowd pays for
few commits. Each write has a savepoint of its own: one that fails leaves the others as they are.

This is the standard library's sqlite3 in threads of our own. aiosqlite would be one thread per connection as
well, but with a hop to it and back for every statement; here a whole transaction is one hop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from belljar.audit.ledger import Dialect, Ledger, LedgerStore
from belljar.audit.receipts import Signer
from belljar.audit.statements import Operation, T
from belljar.errors import StoreUnavailable

__all__ = ["SqliteStore"]

_DIALECT = Dialect(
    types={
        "text": "TEXT",
        "integer": "INTEGER",
        "boolean": "INTEGER",
        "time": "TEXT",
        "json": "TEXT",
        "bytes": "BLOB",
    },
    text_times=True,
    # BEGIN IMMEDIATE: there is one writer at a time, of all processes.
)
_BATCH = 256
"""Longest row of writes that share a commit, so that the first of them does not wait for ever."""

_REASONS = {
    sqlite3.SQLITE_FULL: "has no room; free some space on its disk",
    sqlite3.SQLITE_READONLY: "is read-only; make it and its folder writable",
    sqlite3.SQLITE_BUSY: "is locked by another process for too long",
    sqlite3.SQLITE_LOCKED: "is locked by another process for too long",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; see that it and its folder are there and writable",
    sqlite3.SQLITE_NOTADB: "is no SQLite database; restore it from a back-up",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a back-up",
    sqlite3.SQLITE_IOERR: "cannot be read or written; see that its disk is well and has room",
}
_PASSING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""After these a connection is as good as before."""
_OF_ONE_WRITE = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, None)
"""These say something of the row, not of the database. None: Python found it before SQLite did."""


class _Write(NamedTuple):
    operation: Operation[Any]
    done: asyncio.Future[Any]


class SqliteStore(LedgerStore):
    """Belongs to the event loop that opened it.

    A caller that is cancelled while it waits for a write does not know whether it took place.
    """

    def __init__(self, path: Path, signer: Signer | None, busy_timeout_s: float) -> None:
        super().__init__(Ledger(_DIALECT, signer))
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._written = _Connection(path, busy_timeout_s)
        self._readable = _Connection(path, busy_timeout_s)
        # A daemon, so that a program that forgot to close the store can end; what it was told is on disk.
        self._writer = threading.Thread(target=self._write_all, name="audit-writer", daemon=True)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="audit-reader")
        self._closed = False

    @classmethod
    async def open(cls, path: Path, signer: Signer | None, *, busy_timeout_s: float = 5.0) -> Self:
        """Without a signer, it can only be read.

        Raises:
            StoreUnavailable: it cannot be opened, is newer than this belljar, or belongs to another key.
        """
        store = cls(path, signer, busy_timeout_s)
        await asyncio.to_thread(_prepare, path, busy_timeout_s, store._ledger)
        store._writer.start()
        return store

    async def close(self) -> None:
        """What is waiting is written first."""
        if self._closed:
            return
        self._closed = True
        self._waiting.put(None)
        await asyncio.to_thread(self._writer.join)
        await self._loop.run_in_executor(self._reader, self._readable.close)
        self._reader.shutdown()

    async def _write(self, operation: Operation[T]) -> T:
        self._check_open()
        done: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put(_Write(operation, done))
        return await done

    async def _read(self, operation: Operation[T]) -> T:
        self._check_open()
        return await self._loop.run_in_executor(self._reader, self._answer, operation)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the audit database is closed")

    # In the reader's thread

    def _answer(self, operation: Operation[T]) -> T:
        with self._readable.used() as connection:
            return _drive(connection, operation)

    # In the writer's thread

    def _write_all(self) -> None:
        while batch := self._take():
            outcomes = self._commit(batch)
            # A loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_deliver, batch, outcomes)
        self._written.close()

    def _take(self) -> list[_Write]:
        """All that is waiting, but for what comes after the end; blocks while there is nothing."""
        batch: list[_Write] = []
        while len(batch) < _BATCH:
            try:
                write = self._waiting.get(block=not batch)
            except queue.Empty:
                break
            if write is None:
                if batch:
                    self._waiting.put(None)
                break
            batch.append(write)
        return batch

    def _commit(self, batch: Sequence[_Write], *, once_more: bool = True) -> list[Any]:
        """One outcome for each: what it returns, or the exception it raises."""
        try:
            with self._written.used() as connection, _transaction(connection):
                return [self._attempt(connection, write.operation) for write in batch]
        except StoreUnavailable as error:
            code = _code(error.__cause__)
            if code == sqlite3.SQLITE_FULL and len(batch) > 1:
                # A large one may have taken the room of the small ones.
                return [outcome for write in batch for outcome in self._commit([write])]
            if once_more and code not in (None, *_PASSING):
                # Connections of one process share what they know of the log. If it could not be written when
                # the reader came, it cannot until the reader has gone.
                self._reader.submit(self._readable.close).result()
                return self._commit(batch, once_more=False)
            return [_again(error) for _ in batch]
        except Exception as error:  # the thread has to go on, and nobody may wait for ever
            logging.getLogger(__name__).exception("a write to the audit database failed in a way of its own")
            return [error for _ in batch]

    def _attempt(self, connection: sqlite3.Connection, operation: Operation[Any]) -> Any:
        connection.execute("SAVEPOINT attempt")
        try:
            outcome = _drive(connection, operation)
        except Exception as error:
            if _code(error) not in _OF_ONE_WRITE:
                raise
            connection.execute("ROLLBACK TO attempt")
            outcome = _unavailable(self._path, error) if isinstance(error, sqlite3.Error) else error
        connection.execute("RELEASE attempt")
        return outcome


class _Connection:
    """One thread's connection: made when it is first needed, made anew after it broke."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    @contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """
        Raises:
            StoreUnavailable: in place of whatever SQLite says.
        """
        try:
            self._check_file()
            if self._connection is None:
                self._connection = _connect(self._path, self._busy_timeout_s)
            yield self._connection
        except sqlite3.Error as error:
            if _code(error) not in _PASSING:
                self.close()
            raise _unavailable(self._path, error) from error

    def _check_file(self) -> None:
        """SQLite would go on writing into a file that was removed; what it writes would be gone."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise StoreUnavailable(f"the audit database {self._path.name} is gone; put it back") from error
        file = (found.st_dev, found.st_ino)
        if self._file not in (None, file):
            # Not opened anew by itself: closing the old one would tear the new one's log away.
            message = f"the audit database {self._path.name} was replaced while in use; restart the service"
            raise StoreUnavailable(message)
        self._file = file

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def _connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    # mode=rw: a database that is gone is not silently begun anew.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=busy_timeout_s, isolation_level=None
    )
    try:
        _log_ahead(connection, busy_timeout_s)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _log_ahead(connection: sqlite3.Connection, patience_s: float) -> None:
    """Several may begin a new database at once. SQLite does not wait for this lock by itself: each holds what
    the others need, and it says "busy" at once."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _prepare(path: Path, busy_timeout_s: float, ledger: Ledger) -> None:
    try:
        # Others may not read it. Never opened by us when it exists: closing that descriptor would let go of
        # the locks that another connection of this process holds (fcntl(2)).
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        pass
    except OSError as error:
        message = f"the audit database {path.name} cannot be made: {error.strerror}"
        raise StoreUnavailable(message) from error
    try:
        with closing(_connect(path, busy_timeout_s)) as connection, _transaction(connection):
            _drive(connection, ledger.prepare)
    except sqlite3.Error as error:
        raise _unavailable(path, error) from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _drive(connection: sqlite3.Connection, operation: Operation[T]) -> T:
    steps = operation()
    rows: Any = None
    try:
        while True:
            sql, values = steps.send(rows)
            rows = connection.execute(_numbered(sql), values).fetchall()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _numbered(sql: str) -> str:
    """SQLite's word for the first parameter is ?1."""
    return sql.replace("$", "?")


def _deliver(batch: Sequence[_Write], outcomes: Sequence[Any]) -> None:
    for write, outcome in zip(batch, outcomes, strict=True):
        if write.done.done():
            continue
        if isinstance(outcome, Exception):
            write.done.set_exception(outcome)
        else:
            write.done.set_result(outcome)


def _code(error: BaseException | None) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _unavailable(path: Path, error: sqlite3.Error) -> StoreUnavailable:
    reason = _REASONS.get(_code(error) or 0, f"refused: {error}")
    return StoreUnavailable(f"the audit database {path.name} {reason}")


def _again(error: StoreUnavailable) -> StoreUnavailable:
    """One of its own for each who waits: an exception that is raised twice mixes up its traces."""
    mine = StoreUnavailable(error.message)
    mine.__cause__ = error.__cause__
    return mine
