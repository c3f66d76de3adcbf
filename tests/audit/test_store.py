"""What every store does, on every database."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.audit.databases import (
    NOON,
    Database,
    SqliteDatabase,
    ended,
    queued,
    refused,
    run_once,
)

from belljar.audit.ledger import LedgerStore
from belljar.audit.migrations import MIGRATIONS
from belljar.audit.receipts import Signer, verify_chain
from belljar.audit.records import AuditStore, ExecRecord, Filter, Status
from belljar.errors import BadRequest, BelljarError, Conflict, NotFound, StoreUnavailable
from belljar.models import Verdict

ROOT = Path(__file__).parents[2]


def test_a_store_is_what_the_service_expects(store: LedgerStore) -> None:
    checked: AuditStore = store  # by mypy
    assert checked


# Acceptance


async def test_an_accepted_record_is_found_by_its_id_and_by_its_request(store: LedgerStore) -> None:
    record = await store.accept(queued())
    assert await store.get(record.exec_id) == record
    assert await store.find_request(record.project_id, record.request_id) == record


async def test_nothing_is_found_that_is_not_there(store: LedgerStore) -> None:
    record = await store.accept(queued())
    assert await store.get("exec_none") is None
    assert await store.get("\ud800\0") is None
    assert await store.find_request("another project", record.request_id) is None
    assert await store.receipt_of("exec_none") is None


async def test_the_same_request_again_is_the_first_record(store: LedgerStore) -> None:
    first = await store.accept(queued())
    again = await store.accept(replace(first, exec_id="exec_2", accepted_at=NOON + timedelta(hours=1)))
    assert again == first
    assert await store.get("exec_2") is None


async def test_the_same_request_again_after_the_end_has_the_outcome(store: LedgerStore) -> None:
    done = await run_once(store)
    assert await store.accept(replace(done, exec_id="exec_2", status=Status.QUEUED)) == done


async def test_another_request_under_the_same_id_is_a_conflict(store: LedgerStore) -> None:
    first = await store.accept(queued())
    with pytest.raises(Conflict) as caught:
        await store.accept(replace(first, exec_id="exec_2", request_digest="0" * 64))
    assert caught.value.field == "request_id"
    assert await store.get(first.exec_id) == first


async def test_a_request_id_belongs_to_its_project(store: LedgerStore) -> None:
    first = await store.accept(queued())
    other = await store.accept(replace(first, exec_id="exec_2", project_id="lab", request_digest="0" * 64))
    assert other.exec_id == "exec_2"


async def test_an_exec_id_that_is_taken_is_a_conflict(store: LedgerStore) -> None:
    first = await store.accept(queued())
    with pytest.raises(Conflict) as caught:
        await store.accept(replace(first, request_id="another"))
    assert caught.value.field == "exec_id"


async def test_one_request_sent_fifty_times_at_once_is_one_record(store: LedgerStore) -> None:
    asked = [queued(request_id="one") for _ in range(50)]
    answers = await asyncio.gather(*map(store.accept, asked))
    assert len({answer.exec_id for answer in answers}) == 1
    assert len((await store.page(Filter(), limit=100)).records) == 1


@pytest.mark.parametrize("status", [Status.RUNNING, Status.FINISHED])
async def test_a_record_begins_queued_or_refused(store: LedgerStore, status: Status) -> None:
    with pytest.raises(BadRequest):
        await store.accept(queued(status=status))


async def test_a_refusal_is_written_with_its_receipt(store: LedgerStore, signer: Signer) -> None:
    record = await store.accept(refused())
    receipt = await store.receipt_of(record.exec_id)
    assert receipt is not None
    assert record.receipt_hash == receipt.hash
    assert await store.get(record.exec_id) == record
    assert (await verify_chain(store, signer.public_key)).faults == []


# Moves


async def test_a_run_that_started_is_running(store: LedgerStore) -> None:
    record = await store.accept(queued())
    await store.start(record.exec_id, NOON, "jail")
    expected = replace(record, status=Status.RUNNING, started_at=NOON, engine="jail")
    assert await store.get(record.exec_id) == expected


async def test_a_start_whose_answer_was_lost_may_be_sent_again(store: LedgerStore) -> None:
    record = await store.accept(queued())
    await store.start(record.exec_id, NOON, "jail")
    await store.start(record.exec_id, NOON, "jail")


async def test_a_run_is_started_by_one_only(store: LedgerStore) -> None:
    record = await store.accept(queued())
    starts = [store.start(record.exec_id, NOON + timedelta(seconds=n), "jail") for n in range(10)]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert Counter(type(outcome) for outcome in outcomes) == {type(None): 1, Conflict: 9}


async def test_what_is_over_cannot_be_started(store: LedgerStore) -> None:
    for record in (await run_once(store), await store.accept(refused())):
        with pytest.raises(Conflict):
            await store.start(record.exec_id, NOON + timedelta(days=1), "jail")
        assert await store.get(record.exec_id) == record


async def test_what_was_refused_cannot_finish(store: LedgerStore) -> None:
    record = await store.accept(refused())
    with pytest.raises(Conflict):
        await store.finish(ended(record))
    assert await store.get(record.exec_id) == record


async def test_what_was_never_accepted_cannot_move(store: LedgerStore) -> None:
    with pytest.raises(NotFound):
        await store.start("exec_none", NOON, "jail")
    with pytest.raises(NotFound):
        await store.finish(ended(queued()))
    assert [receipt async for receipt in store.receipts()] == []


async def test_a_run_may_end_before_it_starts(store: LedgerStore) -> None:
    record = await store.accept(queued())
    done = await store.finish(replace(record, verdict=Verdict.CANCELLED, ended_at=NOON))
    assert (done.status, done.verdict, done.started_at) == (Status.FINISHED, Verdict.CANCELLED, None)


# The end


async def test_every_column_of_an_outcome_is_kept(store: LedgerStore) -> None:
    record = await store.accept(queued())
    done = await store.finish(ended(record))
    assert done == replace(ended(record), receipt_hash=done.receipt_hash)
    assert await store.get(record.exec_id) == done


async def test_the_receipt_is_named_in_the_record(store: LedgerStore) -> None:
    done = await run_once(store)
    receipt = await store.receipt_of(done.exec_id)
    assert receipt is not None
    assert (receipt.hash, receipt.number) == (done.receipt_hash, 1)


async def test_an_end_that_does_not_know_the_start_leaves_it(store: LedgerStore) -> None:
    record = await store.accept(queued())
    await store.start(record.exec_id, NOON, "jail")
    done = await store.finish(replace(record, verdict=Verdict.LOST))
    assert (done.started_at, done.engine) == (NOON, "jail")


async def test_the_end_cannot_change_what_was_accepted(store: LedgerStore) -> None:
    record = await store.accept(queued())
    done = await store.finish(ended(replace(record, cmd="rm", policy_snapshot={}, request_digest="0" * 64)))
    assert (done.cmd, done.policy_snapshot, done.request_digest) == (
        record.cmd,
        record.policy_snapshot,
        record.request_digest,
    )
    assert await store.get(record.exec_id) == done


async def test_a_second_end_is_answered_with_the_first(store: LedgerStore) -> None:
    done = await run_once(store)
    assert await store.finish(replace(done, exit_code=99)) == done


async def test_a_run_ends_exactly_once_however_many_end_it(store: LedgerStore) -> None:
    record = await store.accept(queued())
    ends = [store.finish(ended(record, exit_code=code)) for code in range(20)]
    answers = await asyncio.gather(*ends)
    assert len({answer.exit_code for answer in answers}) == 1
    assert len([receipt async for receipt in store.receipts()]) == 1


async def test_concurrent_ends_make_one_chain(store: LedgerStore, signer: Signer) -> None:
    await asyncio.gather(*(run_once(store) for _ in range(40)))
    assert [receipt.number async for receipt in store.receipts()] == list(range(1, 41))
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_two_stores_on_one_database_make_one_chain(database: Database, signer: Signer) -> None:
    async with await database.open(signer) as one, await database.open(signer) as two:
        records = await asyncio.gather(*(run_once(store) for _ in range(15) for store in (one, two)))
        assert len({record.receipt_hash for record in records}) == 30
        assert await two.get(records[0].exec_id) == records[0]
        assert (await verify_chain(one, signer.public_key)).faults == []


async def test_two_stores_agree_who_was_first(database: Database, signer: Signer) -> None:
    async with await database.open(signer) as one, await database.open(signer) as two:
        asked = [store.accept(queued(request_id=f"{n}")) for n in range(20) for store in (one, two)]
        answers = await asyncio.gather(*asked)
        assert len({answer.exec_id for answer in answers}) == 20


async def test_a_write_that_fails_leaves_the_others_alone(store: LedgerStore, signer: Signer) -> None:
    first = await store.accept(queued())
    bad: list[ExecRecord] = [
        queued(cwd=None),  # the database refuses it
        queued(request_id=first.request_id, request_digest="0" * 64),  # we do
        refused(exec_id=first.exec_id),
    ]
    good = [queued() for _ in range(10)]
    outcomes = await asyncio.gather(
        *(store.accept(record) for record in (*good[:5], *bad, *good[5:])), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes[5:8]] == [StoreUnavailable, Conflict, Conflict]
    assert [*outcomes[:5], *outcomes[8:]] == good
    assert len((await store.page(Filter(), limit=100)).records) == 11
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_a_caller_that_goes_away_disturbs_nobody(store: LedgerStore) -> None:
    calls = [asyncio.create_task(store.accept(queued())) for _ in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, ExecRecord) for outcome in outcomes[1::2])
    await run_once(store)


# Reading


async def test_the_unfinished_are_those_without_an_end_oldest_first(store: LedgerStore) -> None:
    await run_once(store)
    await store.accept(refused())
    waiting = await store.accept(queued(accepted_at=NOON + timedelta(seconds=1)))
    running = await store.accept(queued(epoch="epoch-0"))
    await store.start(running.exec_id, NOON, "jail")
    assert [one.exec_id for one in await store.unfinished()] == [running.exec_id, waiting.exec_id]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(Filter(), "abcd", id="all"),
        pytest.param(Filter(project_id="lab"), "cd", id="project"),
        pytest.param(Filter(projects=frozenset({"lab"})), "cd", id="projects"),
        pytest.param(Filter(projects=frozenset({"lab", "shop", "\0"})), "abcd", id="several-projects"),
        pytest.param(Filter(projects=frozenset()), "", id="no-projects"),
        pytest.param(Filter(projects=frozenset({"lab"}), project_id="shop"), "", id="project-of-others"),
        pytest.param(Filter(task_id="task-1"), "bc", id="task"),
        pytest.param(Filter(skill_id="charts"), "d", id="skill"),
        pytest.param(Filter(status=Status.REFUSED), "b", id="status"),
        pytest.param(Filter(since=NOON + timedelta(seconds=2)), "cd", id="since"),
        pytest.param(Filter(project_id="shop", task_id="task-1", status=Status.REFUSED), "b", id="together"),
        pytest.param(Filter(task_id="' OR 1 = 1 --"), "", id="injection"),
    ],
)
async def test_a_page_has_what_the_filter_says_newest_first(
    store: LedgerStore, wanted: Filter, expected: str
) -> None:
    def at(seconds: int) -> datetime:
        return NOON + timedelta(seconds=seconds)

    await store.accept(queued(exec_id="a", accepted_at=at(0)))
    await store.accept(refused(exec_id="b", accepted_at=at(1), task_id="task-1"))
    await store.accept(queued(exec_id="c", accepted_at=at(2), project_id="lab", task_id="task-1"))
    await store.accept(queued(exec_id="d", accepted_at=at(3), project_id="lab", skill_id="charts"))
    page = await store.page(wanted, limit=10)
    assert [record.exec_id for record in page.records] == sorted(expected, reverse=True)
    assert page.cursor is None


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seconds=st.lists(st.integers(0, 4), max_size=25), limit=st.integers(1, 9))
async def test_pages_together_hold_every_record_once(
    store: LedgerStore, seconds: list[int], limit: int
) -> None:
    project = secrets.token_hex(8)  # the examples share one store
    asked = [queued(accepted_at=NOON + timedelta(seconds=n), project_id=project) for n in seconds]
    await asyncio.gather(*map(store.accept, asked))
    found: list[ExecRecord] = []
    cursor = None
    while len(found) <= len(asked):
        page = await store.page(Filter(project_id=project), limit=limit, cursor=cursor)
        found += page.records
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page.records) == limit
        # A newcomer goes before the first page, and disturbs none of the later ones.
        await store.accept(queued(accepted_at=NOON + timedelta(days=1), project_id=project))
    assert found == sorted(asked, key=lambda record: (record.accepted_at, record.exec_id), reverse=True)


@pytest.mark.parametrize("limit", [0, -1, 1001, 2**70])
async def test_a_page_is_of_a_bounded_length(store: LedgerStore, limit: int) -> None:
    with pytest.raises(BadRequest) as caught:
        await store.page(Filter(), limit=limit)
    assert caught.value.field == "limit"


async def test_a_cursor_of_somebody_elses_making_is_refused(store: LedgerStore) -> None:
    with pytest.raises(BadRequest) as caught:
        await store.page(Filter(), limit=10, cursor="bm90IGEgY3Vyc29y")
    assert caught.value.field == "cursor"


async def test_a_since_without_a_zone_is_refused(store: LedgerStore) -> None:
    with pytest.raises(BadRequest) as caught:
        await store.page(Filter(since=datetime(2025, 1, 1)), limit=10)
    assert caught.value.field == "since"


# Values


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("a\0b", id="nul"),
        pytest.param("\udcff\ud800", id="lone-surrogates"),
        pytest.param("\N{SYMBOL FOR ESCAPE}0000", id="our-own-escape"),
        pytest.param("日本語 \N{GRINNING FACE} e\u0301", id="unicode"),
        pytest.param("'; DROP TABLE sandbox_execs; --", id="sql"),
        pytest.param("line\nline\r\u2028\x1b[31m", id="controls"),
        pytest.param("$1 ?1 {text} %s", id="placeholders"),
    ],
)
async def test_hostile_words_come_back_as_they_went_in(store: LedgerStore, signer: Signer, word: str) -> None:
    asked = queued(
        exec_id=f"exec_{word}",
        project_id=word,
        request_id=word,
        task_id=word,
        cmd=word,
        args=(word,),
        inputs={word: word},
        policy_snapshot={word: [word]},
    )
    record = await store.accept(asked)
    done = await store.finish(ended(record, error_reason=word, files_written=(word,)))
    assert done == replace(
        ended(asked, error_reason=word, files_written=(word,)), receipt_hash=done.receipt_hash
    )
    assert await store.get(asked.exec_id) == done
    assert await store.find_request(word, word) == done
    assert (await store.page(Filter(project_id=word, task_id=word), limit=10)).records == (done,)
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_large_values_are_kept_whole(store: LedgerStore, signer: Signer) -> None:
    manifest = tuple({"path": f"{n:0200}", "size": n, "sha256": "0" * 64} for n in range(1000))
    record = await store.accept(queued(cmd="x" * 3_000_000, args=("y" * 3_000_000,), request_id="r" * 1024))
    done = await store.finish(ended(record, artifacts=manifest))
    assert await store.get(record.exec_id) == done
    assert done.artifacts == manifest
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_a_value_that_cannot_be_kept_is_refused_by_name(store: LedgerStore) -> None:
    record = await store.accept(queued())
    with pytest.raises(BadRequest) as caught:
        await store.finish(ended(record, usage={"cpu_s": float("inf")}))
    assert caught.value.field == "usage"
    assert await store.finish(ended(record))


# Durability

CLIENT = """
import asyncio, os, sys
from pathlib import Path
from tests.audit.databases import PostgresDatabase, SqliteDatabase, run_once
from belljar.audit.receipts import Signer

async def main(where, key):
    database = PostgresDatabase(where) if "://" in where else SqliteDatabase(Path(where))
    async with await database.open(Signer.load_or_create(Path(key))) as store:
        async def client():
            while True:
                record = await run_once(store)
                os.write(1, f"{record.exec_id} {record.receipt_hash}\\n".encode())
        await asyncio.gather(*(client() for _ in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_caller_was_told_survives_the_death_of_the_service(
    database: Database, tmp_path: Path
) -> None:
    where = str(database.path) if isinstance(database, SqliteDatabase) else vars(database)["url"]
    key = tmp_path / "key"
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, where, str(key), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert client.stdout is not None
    told = [await client.stdout.readline() for _ in range(60)]
    client.kill()
    told += (await client.stdout.read()).splitlines()
    assert await client.wait() == -signal.SIGKILL
    signer = Signer.load_or_create(key)
    async with await database.open(signer) as store:
        for exec_id, receipt_hash in (line.decode().split() for line in told):
            record = await store.get(exec_id)
            assert record is not None
            assert (record.status, record.receipt_hash) == (Status.FINISHED, receipt_hash)
        assert (await verify_chain(store, signer.public_key)).faults == []
        await run_once(store)


# The database itself


async def test_a_closed_store_says_so(database: Database, signer: Signer) -> None:
    store = await database.open(signer)
    await store.close()
    await store.close()
    for call in (store.accept(queued()), store.get("exec_1")):
        with pytest.raises(StoreUnavailable):
            await call


async def test_closing_writes_what_is_waiting(sqlite: SqliteDatabase, signer: Signer) -> None:
    store = await sqlite.open(signer)
    calls = [asyncio.create_task(store.accept(queued())) for _ in range(10)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*calls)) == 10


async def test_a_database_of_the_first_version_is_brought_up_to_date(
    database: Database, signer: Signer
) -> None:
    async with await database.open(signer) as store:
        record = await run_once(store)
    for index in ("time", "project", "status", "task", "skill"):
        await database.execute(f"DROP INDEX execs_by_{index}")
    for column in ("error_field", "approval", "network_decisions", "packages"):
        await database.execute(f"ALTER TABLE sandbox_execs DROP COLUMN {column}")
    for table in ("matters", "network_decisions"):
        await database.execute(f"DROP TABLE {table}")
    await database.execute("DELETE FROM migrations WHERE version > 1")
    async with await database.open(signer) as store:
        assert await store.get(record.exec_id) == record
        assert (await store.page(Filter(), limit=1)).records == (record,)
    await database.execute("DROP INDEX execs_by_time")
    versions = await database.execute("SELECT version FROM migrations ORDER BY version")
    assert versions == [(n,) for n in range(1, len(MIGRATIONS) + 1)]


async def test_stores_that_open_a_new_database_at_once_make_it_once(
    database: Database, signer: Signer
) -> None:
    stores = await asyncio.gather(*(database.open(signer) for _ in range(4)))
    assert len(await database.execute("SELECT version FROM migrations")) == len(MIGRATIONS)
    for store in stores:
        await store.close()


async def test_a_database_of_a_newer_belljar_is_left_alone(database: Database, signer: Signer) -> None:
    async with await database.open(signer):
        pass
    await database.execute(f"UPDATE migrations SET version = 99 WHERE version = {len(MIGRATIONS)}")
    with pytest.raises(StoreUnavailable, match="update belljar"):
        await database.open(signer)


async def test_a_chain_is_not_continued_with_another_key(database: Database, signer: Signer) -> None:
    async with await database.open(signer) as store:
        await run_once(store)
    with pytest.raises(StoreUnavailable, match="another key"):
        await database.open(Signer(Ed25519PrivateKey.generate()))


async def test_without_a_key_it_can_be_read_and_verified(database: Database, signer: Signer) -> None:
    async with await database.open(signer) as store:
        record = await run_once(store)
    async with await database.open(None) as store:
        assert await store.get(record.exec_id) == record
        assert (await verify_chain(store, signer.public_key)).faults == []
        with pytest.raises(StoreUnavailable, match="only be read"):
            await store.accept(refused())
        assert len((await store.page(Filter(), limit=10)).records) == 1


async def test_a_row_that_cannot_be_read_is_an_error_of_ours(database: Database, store: LedgerStore) -> None:
    record = await run_once(store)
    await database.execute("UPDATE sandbox_execs SET status = 'flying'")
    calls: list[Any] = [
        store.get(record.exec_id),
        store.page(Filter(), limit=10),
        store.finish(record),
        store.accept(queued(request_id=record.request_id)),
    ]
    for call in calls:
        with pytest.raises(BelljarError):
            await call
