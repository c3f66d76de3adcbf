"""What is done to the tables, said once for both databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from belljar.audit import matters, network
from belljar.audit.migrations import MIGRATIONS
from belljar.audit.receipts import GENESIS, Signer, verify_receipt
from belljar.audit.records import (
    NEXT,
    NOTHING_ASKED,
    ExecRecord,
    Filter,
    Matter,
    NetworkAccount,
    NetworkDecision,
    Page,
    Receipt,
    Status,
)
from belljar.audit.rows import NAMES, OUTCOME, Codec, Column, Kind, cursor_after, place_of, plain_text, text
from belljar.audit.statements import Operation, Statement, Steps, T
from belljar.errors import BadRequest, Conflict, NotFound, StoreUnavailable

MAX_PAGE = 1000
_RECEIPTS_AT_A_TIME = 64


@dataclass(frozen=True, slots=True)
class Dialect:
    types: Mapping[str, str]
    """What the database calls the types of the migrations."""
    text_times: bool
    lock_row: str = ""
    """Ends a SELECT whose row nobody else may change until the commit."""
    lock_chain: str | None = None
    """Keeps the end of the chain to this transaction until the commit; None: every transaction has it."""


class Ledger:
    def __init__(self, dialect: Dialect, signer: Signer | None) -> None:
        self._dialect = dialect
        self._signer = signer
        self._codec = Codec(text_times=dialect.text_times)

    # Writes

    def accept(self, record: ExecRecord) -> Operation[ExecRecord]:
        if record.status not in (Status.QUEUED, Status.PENDING, Status.REFUSED):
            raise BadRequest(f"a record cannot begin as {record.status}", field="status")
        record = replace(record, receipt_hash=None)
        return partial(self._accept, record, self._codec.encode(record))

    def _accept(self, record: ExecRecord, row: list[Any]) -> Steps[ExecRecord]:
        if not (yield Statement(_INSERT, row)):
            return (yield from self._known(record))
        if record.status is Status.REFUSED:
            stored = self._codec.decode(row)
            receipt = yield from self._issue(stored)
            yield Statement(_SET_HASH, (row[0], receipt.hash))
            return replace(stored, receipt_hash=receipt.hash)
        return record

    def _known(self, record: ExecRecord) -> Steps[ExecRecord]:
        known = yield from self.find_request(record.project_id, record.request_id)()
        if known is None:
            raise Conflict(f"the exec_id {record.exec_id} belongs to another run", field="exec_id")
        if known.request_digest != record.request_digest:
            message = f"the request_id {record.request_id!r} belongs to another request; use a new one"
            raise Conflict(message, field="request_id")
        return known

    def release(self, record: ExecRecord) -> Operation[None]:
        return partial(self._release, record.exec_id, self._codec.value(_APPROVAL, record.approval))

    def _release(self, exec_id: str, approval: Any) -> Steps[None]:
        if not (yield Statement(_RELEASE, (text(exec_id), approval))):
            raise _no_such_move((yield from self._existing(exec_id)), Status.QUEUED)

    def start(self, exec_id: str, started_at: datetime, engine: str) -> Operation[None]:
        values = [self._codec.value(_STARTED_AT, started_at), self._codec.value(_ENGINE, engine)]
        return partial(self._start, exec_id, values)

    def _start(self, exec_id: str, values: list[Any]) -> Steps[None]:
        if (yield Statement(_START, (text(exec_id), *values))):
            return
        record = yield from self._existing(exec_id)
        again = self._codec.encode(record, (_STARTED_AT, _ENGINE)) == values  # its answer was lost
        if record.status is not Status.RUNNING or not again:
            raise _no_such_move(record, Status.RUNNING)

    def finish(self, record: ExecRecord, account: NetworkAccount) -> Operation[ExecRecord]:
        status = Status.REFUSED if record.status is Status.REFUSED else Status.FINISHED
        final = replace(record, status=status, network_decisions=network.summary(account), receipt_hash=None)
        outcome = self._codec.encode(final, OUTCOME)
        return partial(self._finish, record.exec_id, status, outcome, account.decisions)

    def _finish(
        self, exec_id: str, status: Status, outcome: list[Any], decisions: Sequence[NetworkDecision]
    ) -> Steps[ExecRecord]:
        found = yield Statement(f"{_SELECT} WHERE exec_id = $1 {self._dialect.lock_row}", (text(exec_id),))
        if not found:
            raise _unknown(exec_id)
        row = dict(zip(NAMES, found[0], strict=True))
        if row["status"] not in _before(status):
            stored = self._codec.decode(found[0])
            if stored.status is status:
                return stored
            raise _no_such_move(stored, status)
        for column, value in zip(OUTCOME, outcome, strict=True):
            # What `release` and `start` wrote stays, if the outcome does not say it.
            if value not in (None, "", "{}") or column.name not in _STARTED:
                row[column.name] = value
        yield from network.insert(self._codec, decisions)
        # From the row, not from what was handed in: it has to come out the same when it is verified.
        record = self._codec.decode(list(row.values()))
        receipt = yield from self._issue(record)
        row["receipt_hash"] = receipt.hash
        if not (yield Statement(_FINISH, (row["exec_id"], *(row[column.name] for column in OUTCOME)))):
            raise _no_such_move(record, status)
        return replace(record, receipt_hash=receipt.hash)

    def _issue(self, record: ExecRecord) -> Steps[Receipt]:
        if self._signer is None:
            raise StoreUnavailable("the store was opened without a signing key; it can only be read")
        if self._dialect.lock_chain:
            yield Statement(self._dialect.lock_chain)
        last = yield Statement(_LAST_LINK)
        number, previous = (last[0][0] + 1, last[0][1]) if last else (1, GENESIS)
        receipt = self._signer.issue(record, previous, number)
        values = (number, text(record.exec_id), receipt.body, receipt.hash, receipt.signature)
        yield Statement(_INSERT_RECEIPT, values)
        return receipt

    # Reads

    def get(self, exec_id: str) -> Operation[ExecRecord | None]:
        return partial(self._one, "exec_id = $1", (text(exec_id),))

    def find_request(self, project_id: str, request_id: str) -> Operation[ExecRecord | None]:
        return partial(self._one, "project_id = $1 AND request_id = $2", (text(project_id), text(request_id)))

    def _one(self, where: str, values: Sequence[Any]) -> Steps[ExecRecord | None]:
        found = yield Statement(f"{_SELECT} WHERE {where}", values)
        return self._codec.decode(found[0]) if found else None

    def _existing(self, exec_id: str) -> Steps[ExecRecord]:
        record = yield from self.get(exec_id)()
        if record is None:
            raise _unknown(exec_id)
        return record

    def page(self, wanted: Filter, limit: int, cursor: str | None) -> Operation[Page]:
        if not 1 <= limit <= MAX_PAGE:
            raise BadRequest(f"a page has 1 to {MAX_PAGE} records, not {limit}", field="limit")
        values: list[Any] = []
        conditions: list[str] = []

        def parameter(value: Any) -> str:
            values.append(value)
            return f"${len(values)}"

        for name in ("project_id", "task_id", "status", "skill_id"):
            if (value := getattr(wanted, name)) is not None:
                conditions.append(f"{name} = {parameter(text(value))}")
        if wanted.projects is not None:
            projects = ", ".join(parameter(text(project)) for project in sorted(wanted.projects))
            conditions.append(f"project_id IN ({projects})" if projects else "1 = 0")
        if wanted.since is not None:
            conditions.append(f"accepted_at >= {parameter(self._codec.value(_SINCE, wanted.since))}")
        if cursor is not None:
            moment, exec_id = place_of(cursor)
            place = f"{parameter(self._codec.time(moment))}, {parameter(exec_id)}"
            conditions.append(f"(accepted_at, exec_id) < ({place})")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        order = f"ORDER BY accepted_at DESC, exec_id DESC LIMIT {limit + 1}"
        return partial(self._page, Statement(f"{_SELECT} {where} {order}", values), limit)

    def _page(self, statement: Statement, limit: int) -> Steps[Page]:
        found = yield statement
        records = tuple(self._codec.decode(row) for row in found[:limit])
        return Page(records, cursor_after(records[-1]) if len(found) > limit else None)

    def unfinished(self) -> Steps[Sequence[ExecRecord]]:
        found = yield Statement(f"{_SELECT} WHERE status IN ({_words(_OPEN)}) ORDER BY accepted_at, exec_id")
        return [self._codec.decode(row) for row in found]

    def receipts(self, after: int) -> Steps[list[Receipt]]:
        found = yield Statement(_RECEIPTS, (after,))
        return [_receipt(row) for row in found]

    def receipt_of(self, exec_id: str) -> Steps[Receipt | None]:
        found = yield Statement(_RECEIPT_OF, (text(exec_id),))
        return _receipt(found[0]) if found else None

    def unreceipted(self, limit: int) -> Steps[Sequence[str]]:
        found = yield Statement(f"{_UNRECEIPTED} LIMIT {int(limit)}")
        return [plain_text(row[0]) for row in found]

    def network_decisions(self, exec_id: str) -> Steps[Sequence[NetworkDecision]]:
        return network.list_of(exec_id)

    # Matters

    def open_matter(self, matter: Matter) -> Steps[Matter]:
        return matters.open_one(self._codec, matter)

    def move_matter(self, matter: Matter, expected: str) -> Steps[Matter]:
        return matters.move(self._codec, matter, expected)

    def matter(self, kind: str, id: str) -> Steps[Matter | None]:
        return matters.find(kind, id)

    def matters(
        self, kind: str, states: Sequence[str], projects: frozenset[str] | None, limit: int
    ) -> Steps[Sequence[Matter]]:
        return matters.list_of(kind, states, projects, limit)

    # At the start

    def prepare(self) -> Steps[None]:
        """Bring the tables up to date, and see that the chain is this key's to continue."""
        if self._dialect.lock_chain:
            yield Statement(self._dialect.lock_chain)
        yield Statement(self._typed(_CREATE_MIGRATIONS))
        version = (yield Statement("SELECT coalesce(max(version), 0) FROM migrations"))[0][0]
        if version > len(MIGRATIONS):
            message = f"the audit database is of version {version}, and this belljar knows {len(MIGRATIONS)}"
            raise StoreUnavailable(f"{message}; update belljar")
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements:
                yield Statement(self._typed(statement))
            applied = (number, self._codec.time(datetime.now(UTC)))
            yield Statement("INSERT INTO migrations (version, applied_at) VALUES ($1, $2)", applied)
        last = yield Statement(_LAST_RECEIPT)
        if last and self._signer and verify_receipt(_receipt(last[0]), self._signer.public_key):
            raise StoreUnavailable(
                "the last receipt in the audit database is damaged or was signed with another key; "
                "restore the key or the database that belong together"
            )

    def _typed(self, statement: str) -> str:
        return statement.format_map(self._dialect.types)


class LedgerStore(ABC):
    """An `AuditStore`, but for how an operation reaches the database."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @abstractmethod
    async def _write(self, operation: Operation[T]) -> T:
        """In one transaction, durable on return."""

    @abstractmethod
    async def _read(self, operation: Operation[T]) -> T: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def accept(self, record: ExecRecord) -> ExecRecord:
        return await self._write(self._ledger.accept(record))

    async def release(self, record: ExecRecord) -> None:
        await self._write(self._ledger.release(record))

    async def start(self, exec_id: str, started_at: datetime, engine: str) -> None:
        await self._write(self._ledger.start(exec_id, started_at, engine))

    async def finish(self, record: ExecRecord, account: NetworkAccount = NOTHING_ASKED) -> ExecRecord:
        return await self._write(self._ledger.finish(record, account))

    async def get(self, exec_id: str) -> ExecRecord | None:
        return await self._read(self._ledger.get(exec_id))

    async def find_request(self, project_id: str, request_id: str) -> ExecRecord | None:
        return await self._read(self._ledger.find_request(project_id, request_id))

    async def page(self, wanted: Filter, *, limit: int, cursor: str | None = None) -> Page:
        return await self._read(self._ledger.page(wanted, limit, cursor))

    async def unfinished(self) -> Sequence[ExecRecord]:
        return await self._read(self._ledger.unfinished)

    async def receipts(self, after: int = 0) -> AsyncIterator[Receipt]:
        # Some at a time, so that nobody waits behind a walk over the whole chain.
        while some := await self._read(partial(self._ledger.receipts, after)):
            for receipt in some:
                yield receipt
            after = some[-1].number

    async def receipt_of(self, exec_id: str) -> Receipt | None:
        return await self._read(partial(self._ledger.receipt_of, exec_id))

    async def unreceipted(self, limit: int) -> Sequence[str]:
        return await self._read(partial(self._ledger.unreceipted, limit))

    async def network_decisions(self, exec_id: str) -> Sequence[NetworkDecision]:
        return await self._read(partial(self._ledger.network_decisions, exec_id))

    async def open_matter(self, matter: Matter) -> Matter:
        return await self._write(partial(self._ledger.open_matter, matter))

    async def move_matter(self, matter: Matter, expected: str) -> Matter:
        return await self._write(partial(self._ledger.move_matter, matter, expected))

    async def matter(self, kind: str, id: str) -> Matter | None:
        return await self._read(partial(self._ledger.matter, kind, id))

    async def matters(
        self, kind: str, *states: str, projects: frozenset[str] | None = None, limit: int = MAX_PAGE
    ) -> Sequence[Matter]:
        return await self._read(partial(self._ledger.matters, kind, states, projects, limit))


def _receipt(row: Sequence[Any]) -> Receipt:
    number, exec_id, body, digest, signature = row
    return Receipt(number, plain_text(exec_id), _bytes(body), digest, _bytes(signature))


def _bytes(stored: bytes | str) -> bytes:
    """SQLite gives text where somebody else wrote text."""
    return stored.encode() if isinstance(stored, str) else bytes(stored)


def _unknown(exec_id: str) -> NotFound:
    return NotFound(f"there is no run {exec_id}", field="exec_id")


def _no_such_move(record: ExecRecord, status: Status) -> Conflict:
    return Conflict(f"the run {record.exec_id} is {record.status}; it cannot become {status}", field="status")


def _before(status: Status) -> list[Status]:
    return [source for source, targets in NEXT.items() if status in targets]


def _words(statuses: Sequence[Status]) -> str:
    return ", ".join(f"'{status}'" for status in statuses)


_OPEN = [status for status, targets in NEXT.items() if targets]
_FINAL = [status for status, targets in NEXT.items() if not targets]
_BEFORE_FINISHED = _before(Status.FINISHED)
_STARTED = ("engine", "posture", "approval", "started_at")
_STARTED_AT, _ENGINE = (Column("started_at", Kind.TIME), Column("engine", Kind.TEXT))
_APPROVAL = Column("approval", Kind.MAP)
_SINCE = Column("since", Kind.TIME)

_CREATE_MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS migrations (version {integer} PRIMARY KEY, applied_at {time} NOT NULL)"
)
_SELECT = f"SELECT {', '.join(NAMES)} FROM sandbox_execs"
_INSERT = (
    f"INSERT INTO sandbox_execs ({', '.join(NAMES)}) "
    f"VALUES ({', '.join(f'${n}' for n in range(1, len(NAMES) + 1))}) "
    "ON CONFLICT DO NOTHING RETURNING exec_id"
)
_RELEASE = (
    f"UPDATE sandbox_execs SET status = '{Status.QUEUED}', approval = $2 "
    f"WHERE exec_id = $1 AND status = '{Status.PENDING}' RETURNING exec_id"
)
_START = (
    f"UPDATE sandbox_execs SET status = '{Status.RUNNING}', started_at = $2, engine = $3 "
    f"WHERE exec_id = $1 AND status IN ({_words(_before(Status.RUNNING))}) RETURNING exec_id"
)
_FINISH = (
    f"UPDATE sandbox_execs SET {', '.join(f'{one.name} = ${n}' for n, one in enumerate(OUTCOME, 2))} "
    f"WHERE exec_id = $1 AND status IN ({_words(_BEFORE_FINISHED)}) RETURNING exec_id"
)
_SET_HASH = "UPDATE sandbox_execs SET receipt_hash = $2 WHERE exec_id = $1"
_LAST_LINK = "SELECT number, hash FROM receipts ORDER BY number DESC LIMIT 1"
_SELECT_RECEIPTS = "SELECT number, exec_id, body, hash, signature FROM receipts"
_LAST_RECEIPT = f"{_SELECT_RECEIPTS} ORDER BY number DESC LIMIT 1"
_INSERT_RECEIPT = "INSERT INTO receipts (number, exec_id, body, hash, signature) VALUES ($1, $2, $3, $4, $5)"
_RECEIPTS = f"{_SELECT_RECEIPTS} WHERE number > $1 ORDER BY number LIMIT {_RECEIPTS_AT_A_TIME}"
_RECEIPT_OF = f"{_SELECT_RECEIPTS} WHERE exec_id = $1"
_UNRECEIPTED = (
    f"SELECT exec_id FROM sandbox_execs e WHERE status IN ({_words(_FINAL)}) "
    "AND NOT EXISTS (SELECT 1 FROM receipts r WHERE r.exec_id = e.exec_id)"
)
