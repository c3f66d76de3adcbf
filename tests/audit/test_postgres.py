"""What is special to PostgreSQL: a server that goes away, refuses, or is shared."""

from __future__ import annotations

import asyncio
import secrets
import traceback

import pytest
from tests.audit.databases import PostgresDatabase, PostgresServer, queued, run_once

from belljar.audit.postgres import PostgresStore
from belljar.audit.receipts import Signer, verify_chain
from belljar.audit.records import Filter
from belljar.errors import BadConfig, StoreUnavailable


async def test_a_server_that_is_down_is_an_error_and_it_heals(
    postgres: PostgresDatabase, postgres_server: PostgresServer, signer: Signer
) -> None:
    async with await postgres.open(signer) as store:
        record = await run_once(store)
        postgres_server.stop()
        try:
            for _ in range(2):
                for call in (store.accept(queued()), store.get(record.exec_id)):
                    with pytest.raises(StoreUnavailable):
                        await call
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await postgres.open(signer)
        finally:
            postgres_server.start()
        assert await store.get(record.exec_id) == record
        await run_once(store)
        assert (await verify_chain(store, signer.public_key)).faults == []


async def test_connections_that_are_cut_are_made_anew(postgres: PostgresDatabase, signer: Signer) -> None:
    async with await postgres.open(signer) as store:
        calls = [asyncio.create_task(run_once(store)) for _ in range(30)]
        await asyncio.sleep(0.02)
        await postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes if isinstance(outcome, Exception)} <= {StoreUnavailable}
        await run_once(store)
        assert (await verify_chain(store, signer.public_key)).faults == []


async def test_more_callers_than_connections_take_turns(postgres: PostgresDatabase, signer: Signer) -> None:
    async with await postgres.open(signer) as store:
        await asyncio.gather(*(store.accept(queued()) for _ in range(150)))
        assert len((await store.page(Filter(), limit=1000)).records) == 150


async def test_a_read_only_server_is_an_error(postgres: PostgresDatabase, signer: Signer) -> None:
    async with await postgres.open(signer):
        pass
    with pytest.raises(StoreUnavailable, match="is read-only"):
        await PostgresStore.open(f"{postgres.url}&default_transaction_read_only=on", signer)


async def test_a_database_that_is_not_there_is_named_as_the_reason(
    postgres: PostgresDatabase, signer: Signer
) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await PostgresStore.open(postgres.url.replace("/postgres?", "/nowhere?"), signer)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("mysql://me:s3cret@host/db", id="another-database"),
        pytest.param("postgresql://me:s3cret@host:port/db", id="port-in-words"),
        pytest.param("s3cret", id="no-url"),
    ],
)
async def test_a_bad_url_is_refused_without_repeating_it(url: str, signer: Signer) -> None:
    with pytest.raises(BadConfig) as caught:
        await PostgresStore.open(url, signer)
    assert "s3cret" not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


async def test_a_password_is_not_in_the_error_of_a_server_that_is_not_there(signer: Signer) -> None:
    password = secrets.token_hex(8)
    with pytest.raises(StoreUnavailable) as caught:
        await PostgresStore.open(f"postgresql://me:{password}@127.0.0.1:1/db", signer)
    assert password not in "".join(traceback.format_exception(caught.value, chain=True))


async def test_columns_of_json_and_time_can_be_asked_in_sql(
    postgres: PostgresDatabase, signer: Signer
) -> None:
    async with await postgres.open(signer) as store:
        record = await run_once(store)
    found = await postgres.execute(
        "SELECT accepted_at, policy_snapshot -> 'memory_mb' ->> 'layer' FROM sandbox_execs"
    )
    assert found == [(record.accepted_at, "system")]
