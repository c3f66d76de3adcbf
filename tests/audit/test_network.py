"""Rows of what was decided of a run's way out: kept with its outcome, and covered by its receipt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.audit.databases import NOON, Database, PostgresDatabase, ended, queued

from belljar.audit.ledger import LedgerStore
from belljar.audit.network import MOST_ROWS
from belljar.audit.receipts import Fault, FaultKind, Signer, verify_chain
from belljar.audit.records import ExecRecord, NetworkAccount, NetworkDecision
from belljar.audit.rows import Kind, columns_of


def decisions(record: ExecRecord, count: int = 3) -> tuple[NetworkDecision, ...]:
    return tuple(
        NetworkDecision(
            exec_id=record.exec_id,
            project_id=record.project_id,
            number=number,
            at=NOON + timedelta(microseconds=number),
            host="api.example.com",
            port=443,
            address="203.0.113.7",
            allowed=True,
            rule="settings: allowed_domains *.example.com",
            secret="token",
            sent=None if number == 2 else 100,
            received=1 << 40,
        )
        for number in range(1, count + 1)
    )


async def finished(store: LedgerStore, count: int = 3, *, total: int | None = None) -> ExecRecord:
    record = await store.accept(queued())
    total = count if total is None else total
    return await store.finish(
        ended(record), NetworkAccount(decisions=decisions(record, count), total=total, refused=0)
    )


@pytest.mark.parametrize("count", [1, 50, MOST_ROWS])
async def test_rows_come_back_as_they_were_written(store: LedgerStore, signer: Signer, count: int) -> None:
    record = await finished(store, count)
    assert await store.network_decisions(record.exec_id) == list(decisions(record, count))
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_the_record_says_how_many_there_were_and_how_many_have_a_row(store: LedgerStore) -> None:
    record = await finished(store, 2, total=5000)
    said = dict(record.network_decisions)
    assert len(said.pop("sha256")) == 64
    assert said == {"total": 5000, "refused": 0, "rows": 2}
    assert await store.get(record.exec_id) == record


async def test_a_run_that_asked_for_nothing_has_no_rows(store: LedgerStore) -> None:
    record = await store.finish(ended(await store.accept(queued())))
    assert record.network_decisions == {}
    assert await store.network_decisions(record.exec_id) == []


async def test_a_second_end_adds_no_rows(store: LedgerStore, signer: Signer) -> None:
    record = await finished(store, 2)
    again = NetworkAccount(decisions=decisions(record, 5), total=5)
    assert await store.finish(ended(record), again) == record
    assert len(await store.network_decisions(record.exec_id)) == 2
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_rows_that_cannot_be_written_leave_no_outcome(store: LedgerStore) -> None:
    record = await store.accept(queued())
    twice = decisions(record, 1) * 2
    with pytest.raises(Exception, match="audit database"):
        await store.finish(ended(record), NetworkAccount(decisions=twice, total=2))
    assert await store.get(record.exec_id) == record
    assert await store.network_decisions(record.exec_id) == []


OTHER_VALUES: dict[Kind, Any] = {Kind.TEXT: "tampered", Kind.INTEGER: 424242, Kind.BOOLEAN: False}


async def test_any_column_of_a_row_that_was_changed_is_found(
    database: Database, store: LedgerStore, signer: Signer
) -> None:
    expected = []
    for number, column in enumerate(columns_of(NetworkDecision), 1):
        record = await finished(store)
        moment = NOON + timedelta(days=1)
        later = moment if isinstance(database, PostgresDatabase) else moment.isoformat()
        await database.execute(
            f"UPDATE network_decisions SET {column.name} = $1 WHERE exec_id = $2 AND number = 2",
            later if column.kind is Kind.TIME else OTHER_VALUES[column.kind],
            record.exec_id,
        )
        expected.append(changed(record, number))
    assert (await verify_chain(store, signer.public_key)).faults == expected


def changed(record: ExecRecord, number: int) -> Fault:
    what = "its network decisions are not what they were"
    return Fault(FaultKind.RECORD, number, record.exec_id, what)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param("DELETE FROM network_decisions WHERE number = 2", id="a-row-is-gone"),
        pytest.param("DELETE FROM network_decisions", id="all-are-gone"),
        pytest.param(
            "INSERT INTO network_decisions SELECT exec_id, project_id, 4, at, host, port, address, allowed, "
            "rule, secret, sent, received FROM network_decisions WHERE number = 3",
            id="one-too-many",
        ),
    ],
)
async def test_rows_that_were_added_or_taken_away_are_found(
    database: Database, store: LedgerStore, signer: Signer, harm: str
) -> None:
    record = await finished(store)
    await database.execute(harm)
    assert (await verify_chain(store, signer.public_key)).faults == [changed(record, 1)]


async def test_rows_of_a_run_that_had_none_are_found(
    database: Database, store: LedgerStore, signer: Signer
) -> None:
    record = await finished(store)
    other = await store.finish(ended(await store.accept(queued())))
    await database.execute(
        "UPDATE network_decisions SET exec_id = $1 WHERE exec_id = $2", other.exec_id, record.exec_id
    )
    assert (await verify_chain(store, signer.public_key)).faults == [changed(record, 1), changed(other, 2)]


async def test_a_row_that_cannot_be_read_is_found(sqlite: Database, signer: Signer) -> None:
    async with await sqlite.open(signer) as store:
        record = await finished(store)
        await sqlite.execute("UPDATE network_decisions SET port = 'none'")
        assert (await verify_chain(store, signer.public_key)).faults == [changed(record, 1)]
