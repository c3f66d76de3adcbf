"""What is special to the SQLite file: shared commits, and disks that fail."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sqlite3
import stat
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.audit.databases import SqliteDatabase, ended, queued, run_once

from belljar.audit.receipts import Signer, verify_chain
from belljar.audit.records import Filter
from belljar.audit.sqlite import SqliteStore
from belljar.errors import StoreUnavailable

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def store(sqlite: SqliteDatabase, signer: Signer) -> AsyncIterator[SqliteStore]:
    async with await sqlite.open(signer) as store:
        yield store


def commits(database: Path) -> int:
    """How many are in the log since it was last begun anew (www.sqlite.org/fileformat2.html)."""
    log = Path(f"{database}-wal").read_bytes()
    page_size, salt = int.from_bytes(log[8:12]), log[16:24]
    found = 0
    for frame in range(32, len(log), 24 + page_size):
        pages_after_commit = struct.unpack_from(">I", log, frame + 4)[0]
        if log[frame + 8 : frame + 16] == salt and pages_after_commit:
            found += 1
    return found


async def test_writes_one_after_the_other_are_a_commit_each(
    store: SqliteStore, sqlite: SqliteDatabase
) -> None:
    await store.accept(queued())
    before = commits(sqlite.path)
    for _ in range(20):
        await store.accept(queued())
    assert commits(sqlite.path) - before == 20


async def test_writes_at_the_same_time_share_commits(store: SqliteStore, sqlite: SqliteDatabase) -> None:
    await store.accept(queued())
    before = commits(sqlite.path)
    await asyncio.gather(*(store.accept(queued()) for _ in range(200)))
    assert commits(sqlite.path) - before <= 40
    assert len((await store.page(Filter(), limit=1000)).records) == 201


async def test_more_than_one_batch_of_writes_is_written(store: SqliteStore) -> None:
    await asyncio.gather(*(store.accept(queued()) for _ in range(700)))
    assert len((await store.page(Filter(), limit=1000)).records) == 700


WRITER = """
import asyncio, sys
from pathlib import Path
from tests.audit.databases import SqliteDatabase, queued

async def main(path):
    async with await SqliteDatabase(Path(path)).open(None) as store:
        for _ in range(20):
            await store.accept(queued())

asyncio.run(main(sys.argv[1]))
"""


async def test_every_commit_is_synced_to_the_disk(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace to watch the system calls; on Debian and Ubuntu: apt install strace")
    log = tmp_path / "calls"
    strace = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(log)]
    done = await asyncio.create_subprocess_exec(
        *strace, sys.executable, "-c", WRITER, str(sqlite.path), cwd=ROOT
    )
    assert await done.wait() == 0
    assert sum("audit.db-wal" in line for line in log.read_text().splitlines()) >= 20


async def test_the_file_is_closed_to_others(store: SqliteStore, sqlite: SqliteDatabase) -> None:
    await store.accept(queued())
    for path in (sqlite.path, Path(f"{sqlite.path}-wal")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_an_empty_file_becomes_a_database(sqlite: SqliteDatabase, signer: Signer) -> None:
    sqlite.path.touch()
    async with await sqlite.open(signer) as store:
        await run_once(store)


async def test_a_name_with_signs_of_a_url_is_a_name(tmp_path: Path, signer: Signer) -> None:
    path = tmp_path / "a?mode=memory#%20.db"
    async with await SqliteStore.open(path, signer) as store:
        record = await run_once(store)
    async with await SqliteStore.open(path, signer) as store:
        assert await store.get(record.exec_id) == record


async def test_columns_of_json_and_time_can_be_asked_in_sql(
    store: SqliteStore, sqlite: SqliteDatabase
) -> None:
    await run_once(store)
    found = await sqlite.execute(
        "SELECT accepted_at, json_each.value ->> 'layer' FROM sandbox_execs, json_each(policy_snapshot)"
    )
    assert found == [("2025-02-07T12:00:00.000000+00:00", "system")]


# When it cannot be written


async def test_a_write_waits_for_a_lock_that_goes_away_and_readers_do_not(
    sqlite: SqliteDatabase, signer: Signer
) -> None:
    async with await SqliteStore.open(sqlite.path, signer, busy_timeout_s=30) as store:
        record = await store.accept(queued())
        with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(store.accept(queued()))
            await asyncio.sleep(0.05)
            assert await store.get(record.exec_id) == record
            assert not waiting.done()
            other.execute("COMMIT")
            await waiting


async def test_a_lock_that_stays_is_an_error(sqlite: SqliteDatabase, signer: Signer) -> None:
    async with await SqliteStore.open(sqlite.path, signer, busy_timeout_s=0.1) as store:
        with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.accept(queued())
            other.execute("ROLLBACK")
        await run_once(store)


async def test_a_write_that_the_system_refuses_is_an_error_and_it_heals(
    store: SqliteStore, signer: Signer
) -> None:
    first = await run_once(store)
    lost = queued(cmd="x" * 500_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="disk"):
                await store.accept(lost)
        assert await store.get(first.exec_id) == first
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await store.get(lost.exec_id) is None
    assert await store.accept(lost) == lost
    await store.finish(ended(lost))
    assert (await verify_chain(store, signer.public_key)).faults == []


SMALL_DISK = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.audit.databases import SqliteDatabase, queued, run_once
from belljar.audit.receipts import Signer, verify_chain
from belljar.errors import StoreUnavailable

signer = Signer(Ed25519PrivateKey.generate())

def mount(folder, options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)

async def said_by(call):
    try:
        await call
    except StoreUnavailable as error:
        return error.message
    return "done"

async def on_a_full_disk(folder):
    mount(folder, "size=4m")
    filler = Path(folder) / "filler"
    async with await SqliteDatabase(Path(folder) / "audit.db").open(signer) as store:
        first = await run_once(store)
        try:
            with filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)): pass
        except OSError:
            pass
        records = [queued(cmd="x" * 100_000) for _ in range(3)]
        yield [await said_by(store.accept(record)) for record in records]
        yield await store.get(first.exec_id) == first
        filler.unlink()
        yield [await said_by(store.accept(record)) for record in records]
        large = queued(cmd="x" * 4_000_000)
        calls = [store.accept(record) for record in (queued(), large, queued())]
        yield await asyncio.gather(*map(said_by, calls))
        await run_once(store)
        yield len((await verify_chain(store, signer.public_key)).faults)

async def on_a_read_only_disk(folder):
    mount(folder, "size=4m")
    database = SqliteDatabase(Path(folder) / "audit.db")
    async with await database.open(signer) as store:
        first = await run_once(store)
    mount(folder, "remount,ro")
    yield await said_by(database.open(signer))
    mount(folder, "remount,rw")
    # A service that was killed leaves its log behind; then the file can be opened, but not written.
    killed = "import os, sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('DELETE FROM receipts WHERE 0')"
    subprocess.run([sys.executable, "-c", f"{killed}; os._exit(0)", database.path], check=True)
    mount(folder, "remount,ro")
    async with await database.open(signer) as store:
        yield await said_by(store.accept(queued()))
        yield await store.get(first.exec_id) == first
        mount(folder, "remount,rw")
        yield await said_by(run_once(store))
        yield len((await verify_chain(store, signer.public_key)).faults)

async def main(disk, folder):
    print(json.dumps([said async for said in globals()[disk](folder)]))

asyncio.run(main(*sys.argv[1:]))
"""


async def said_on(disk: str, folder: Path) -> list[Any]:
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = await asyncio.create_subprocess_exec(*own_mounts, "true", stderr=asyncio.subprocess.DEVNULL)
    if await probe.wait() != 0:
        pytest.skip("no mounts of our own; sysctl kernel.unprivileged_userns_clone=1, or run as root")
    program = await asyncio.create_subprocess_exec(
        *own_mounts, sys.executable, "-c", SMALL_DISK, disk, folder, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, _ = await program.communicate()
    assert program.returncode == 0
    said: list[Any] = json.loads(output)
    return said


async def test_a_full_disk_is_an_error_and_it_heals(tmp_path: Path) -> None:
    full = "the audit database audit.db has no room; free some space on its disk"
    assert await said_on("on_a_full_disk", tmp_path) == [
        [full] * 3,
        True,  # what is there can be read
        ["done"] * 3,  # once there is room again
        ["done", full, "done"],  # a large one does not take the small ones with it
        0,
    ]


async def test_a_read_only_disk_is_an_error_and_it_heals(tmp_path: Path) -> None:
    assert await said_on("on_a_read_only_disk", tmp_path) == [
        "the audit database audit.db cannot be opened; see that it and its folder are there and writable",
        "the audit database audit.db is read-only; make it and its folder writable",
        True,  # what is there can be read
        "done",
        0,
    ]


async def test_a_file_that_is_no_database_is_left_alone(sqlite: SqliteDatabase, signer: Signer) -> None:
    content = b"not a database " * 1000
    sqlite.path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="no SQLite database"):
        await sqlite.open(signer)
    assert sqlite.path.read_bytes() == content


async def test_a_damaged_page_is_an_error(sqlite: SqliteDatabase, signer: Signer) -> None:
    async with await sqlite.open(signer) as store:
        for _ in range(30):
            await run_once(store)
    with sqlite.path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(sqlite.path.stat().st_size - 4096))
    with pytest.raises(StoreUnavailable, match="damaged"):
        async with await sqlite.open(signer) as store:
            await store.page(Filter(), limit=100)


async def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, signer: Signer) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        await SqliteStore.open(tmp_path / "none" / "audit.db", signer)


async def test_a_file_that_was_taken_away_is_missed_until_it_is_back(
    store: SqliteStore, sqlite: SqliteDatabase
) -> None:
    record = await store.accept(queued())
    away = sqlite.path.with_name("away.db")
    sqlite.path.rename(away)
    for call in (store.accept(queued()), store.get(record.exec_id)):
        with pytest.raises(StoreUnavailable, match="gone"):
            await call
    assert not sqlite.path.exists()
    away.rename(sqlite.path)
    assert await store.get(record.exec_id) == record
    await run_once(store)


async def test_a_file_that_was_replaced_is_not_written(
    store: SqliteStore, sqlite: SqliteDatabase, tmp_path: Path
) -> None:
    await store.accept(queued())
    other = tmp_path / "other.db"
    other.touch()
    other.replace(sqlite.path)
    with pytest.raises(StoreUnavailable, match="replaced"):
        await store.accept(queued())
    assert sqlite.path.read_bytes() == b""
