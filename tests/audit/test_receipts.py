"""Receipts: keys, chains, and everything that can be done to them afterwards."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.audit.databases import NOON, Database, PostgresDatabase, ended, queued, refused, run_once

from belljar.audit.ledger import LedgerStore
from belljar.audit.receipts import (
    GENESIS,
    Fault,
    FaultKind,
    Signer,
    export,
    load_exported,
    load_public_key,
    receipt_body,
    verify_chain,
    verify_receipt,
)
from belljar.audit.records import ExecRecord, Receipt
from belljar.audit.rows import COLUMNS, NAMES, Column, Kind
from belljar.errors import BadConfig, BadRequest, StoreUnavailable
from belljar.models import canonical_json

# Keys


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    first = Signer.load_or_create(path)
    assert Signer.load_or_create(path).public_key == first.public_key
    assert load_public_key(tmp_path / "signing.key.pub") == first.public_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["signing.key", "signing.key.pub"]


def test_those_who_make_a_key_at_once_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        signers = list(pool.map(Signer.load_or_create, [tmp_path / "key"] * 8))
    assert len({signer.public_key.public_bytes_raw() for signer in signers}) == 1
    assert sorted(os.listdir(tmp_path)) == ["key", "key.pub"]


def test_a_public_half_that_is_missing_is_written_again(tmp_path: Path) -> None:
    signer = Signer.load_or_create(tmp_path / "key")
    (tmp_path / "key.pub").unlink()
    Signer.load_or_create(tmp_path / "key")
    assert load_public_key(tmp_path / "key.pub") == signer.public_key


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602], ids=oct)
def test_a_key_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    Signer.load_or_create(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(BadConfig, match="open to others"):
        Signer.load_or_create(tmp_path / "key")


def test_a_key_with_the_public_half_of_another_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Signer.load_or_create(tmp_path / name)
    (tmp_path / "one.pub").replace(tmp_path / "two.pub")
    with pytest.raises(BadConfig, match="not the public half"):
        Signer.load_or_create(tmp_path / "two")


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    other = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (b"", b"no key", other):
        path = tmp_path / "key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(BadConfig):
            Signer.load_or_create(path)
        with pytest.raises(BadConfig):
            load_public_key(path)


def test_a_key_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        Signer.load_or_create(tmp_path / "none" / "key")


# One receipt


def issued(signer: Signer, **changes: Any) -> Receipt:
    return signer.issue(ended(queued(**changes)), GENESIS, 1)


def test_a_receipt_says_what_was_run_and_how_it_ended() -> None:
    record = ended(queued())
    body = json.loads(receipt_body(record, GENESIS, 7))
    stated = {name: body[name] for name in ("version", "number", "previous")}
    assert stated == {"version": 1, "number": 7, "previous": GENESIS}
    for name in ("exec_id", "request_digest", "code_hash", "inputs", "grant_digest", "engine", "posture"):
        assert body[name] == getattr(record, name)
    for name in ("verdict", "exit_code", "usage", "stdout_sha256", "stdout_bytes", "artifacts"):
        assert body[name] == json.loads(canonical_json(getattr(record, name)))
    assert body["ended_at"] == "2025-02-07T12:00:00.015007+00:00"


def test_a_receipt_covers_every_column() -> None:
    body = json.loads(receipt_body(ended(queued()), GENESIS, 1))
    assert {*body, *body["digests"]} - {"version", "number", "previous", "digests"} == {*NAMES} - {
        "receipt_hash"
    }


def test_a_receipt_does_not_tell_what_is_private() -> None:
    body = receipt_body(queued(cmd="s3cret", args=("s3cret",), env_keys=("S3CRET",)), GENESIS, 1)
    assert b"s3cret" not in body.lower()


def test_the_body_is_canonical() -> None:
    body = receipt_body(ended(queued(), usage={"b": 1, "a": 2}), GENESIS, 1)
    assert canonical_json(json.loads(body)) == body


def test_a_receipt_of_ours_has_no_fault(signer: Signer) -> None:
    assert verify_receipt(issued(signer), signer.public_key) == []


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        pytest.param({"signature": bytes(64)}, {FaultKind.SIGNATURE}, id="signature"),
        pytest.param({"signature": b""}, {FaultKind.SIGNATURE}, id="no-signature"),
        pytest.param({"hash": "0" * 64}, {FaultKind.HASH}, id="hash"),
        pytest.param({"number": 2}, {FaultKind.LINK}, id="number"),
        pytest.param({"exec_id": "exec_other"}, {FaultKind.LINK}, id="exec-id"),
        pytest.param(
            {"body": b"{"}, {FaultKind.SIGNATURE, FaultKind.HASH, FaultKind.MALFORMED}, id="no-json"
        ),
        pytest.param(
            {"body": b"[" * 100_000},
            {FaultKind.SIGNATURE, FaultKind.HASH, FaultKind.MALFORMED},
            id="too-deep",
        ),
        pytest.param(
            {"body": b"[]"}, {FaultKind.SIGNATURE, FaultKind.HASH, FaultKind.MALFORMED}, id="no-object"
        ),
    ],
)
def test_what_was_changed_in_a_receipt_is_named(
    signer: Signer, change: dict[str, Any], kinds: set[FaultKind]
) -> None:
    receipt = replace(issued(signer), **change)
    faults = verify_receipt(receipt, signer.public_key)
    assert {fault.kind for fault in faults} == kinds
    assert {(fault.number, fault.exec_id) for fault in faults} == {(receipt.number, receipt.exec_id)}


def test_any_bit_of_a_body_that_is_turned_is_found(signer: Signer) -> None:
    receipt = issued(signer)
    for place in range(0, len(receipt.body), 97):
        body = bytearray(receipt.body)
        body[place] ^= 1
        changed = replace(receipt, body=bytes(body), hash=hashlib.sha256(body).hexdigest())
        found = verify_receipt(changed, signer.public_key)
        assert FaultKind.SIGNATURE in {fault.kind for fault in found}


def test_the_key_of_somebody_else_does_not_verify(signer: Signer) -> None:
    other = Ed25519PrivateKey.generate().public_key()
    assert [fault.kind for fault in verify_receipt(issued(signer), other)] == [FaultKind.SIGNATURE]


# A receipt in a file


def exported(receipt: Receipt, folder: Path) -> Path:
    path = folder / "receipt.json"
    path.write_text(json.dumps(export(receipt)))
    return path


def test_an_exported_receipt_is_verified_without_a_database(signer: Signer, tmp_path: Path) -> None:
    receipt = issued(signer, exec_id="exec_\N{SNOWMAN}\ud800")
    path = exported(receipt, tmp_path)
    assert load_exported(path) == receipt
    assert verify_receipt(load_exported(path), signer.public_key) == []


def test_a_lie_in_an_exported_receipt_is_found(signer: Signer, tmp_path: Path) -> None:
    receipt = issued(signer)
    lie = receipt.body.replace(b'"exit_code":3', b'"exit_code":0')
    assert lie != receipt.body
    path = exported(replace(receipt, body=lie, hash=hashlib.sha256(lie).hexdigest()), tmp_path)
    assert [fault.kind for fault in verify_receipt(load_exported(path), signer.public_key)] == [
        FaultKind.SIGNATURE
    ]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"[" * 100_000, id="too-deep"),
        pytest.param(b"\xff\xfe\x00", id="bytes"),
        pytest.param(b'{"number": 1}', id="incomplete"),
        pytest.param(
            b'{"number": "1", "exec_id": "e", "hash": "h", "body": "", "signature": ""}', id="number-in-words"
        ),
        pytest.param(
            b'{"number": 1, "exec_id": "e", "hash": "h", "body": "!", "signature": ""}', id="no-base64"
        ),
        pytest.param(b" " * (17 << 20), id="huge"),
    ],
)
def test_a_file_that_is_no_receipt_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=r"receipt\.json"):
        load_exported(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        load_exported(tmp_path / "none")


def test_openssl_verifies_a_receipt_as_well(tmp_path: Path) -> None:
    signer = Signer.load_or_create(tmp_path / "key")
    said = export(issued(signer))
    (tmp_path / "body").write_bytes(base64.b64decode(said["body"]))
    (tmp_path / "signature").write_bytes(base64.b64decode(said["signature"]))
    command = "openssl pkeyutl -verify -rawin -pubin -inkey key.pub -in body -sigfile signature"
    try:
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl to ask; on Debian and Ubuntu: apt install openssl")
    assert done.returncode == 0, done.stderr


# The chain


@pytest.fixture
async def chain(store: LedgerStore) -> list[ExecRecord]:
    """Five receipts: the second is of a refusal, the others of runs."""
    records = [await run_once(store)]
    records.append(await store.accept(refused()))
    records += [await run_once(store) for _ in range(3)]
    return records


async def faults_of(store: LedgerStore, signer: Signer) -> list[tuple[FaultKind, int | None, str | None]]:
    return [
        (one.kind, one.number, one.exec_id) for one in (await verify_chain(store, signer.public_key)).faults
    ]


async def test_an_untouched_chain_has_no_fault(
    store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    receipts = [receipt async for receipt in store.receipts()]
    assert [receipt.exec_id for receipt in receipts] == [record.exec_id for record in chain]
    assert (await verify_chain(store, signer.public_key)).faults == []


async def test_an_empty_chain_has_no_fault(store: LedgerStore, signer: Signer) -> None:
    await store.accept(queued())
    assert (await verify_chain(store, signer.public_key)).faults == []


OTHER_VALUES: dict[Kind, Any] = {
    Kind.TEXT: "tampered",
    Kind.INTEGER: 424242,
    Kind.BOOLEAN: False,
    Kind.LIST: '["tampered"]',
    Kind.MAP: '{"tampered":1}',
}


async def test_any_column_that_was_changed_is_named(
    database: Database, store: LedgerStore, signer: Signer
) -> None:
    """One record for each column. That of exec_id has a test of its own below."""
    expected = []
    for number, column in enumerate(COLUMNS[1:], 1):
        record = await run_once(store)
        await database.execute(
            f"UPDATE sandbox_execs SET {column.name} = $1 WHERE exec_id = $2",
            other_value(column, database),
            record.exec_id,
        )
        what = f"{column.name} of the record is not what it was"
        expected.append(Fault(FaultKind.RECORD, number, record.exec_id, what))
    assert (await verify_chain(store, signer.public_key)).faults == expected


def other_value(column: Column, database: Database) -> Any:
    if column.name == "status":
        return "refused"
    if column.kind is Kind.TIME:
        moment = NOON + timedelta(days=1)
        return moment if isinstance(database, PostgresDatabase) else moment.isoformat()
    return OTHER_VALUES[column.kind]


async def test_a_record_that_was_set_back_is_named(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    await database.execute("UPDATE sandbox_execs SET status = 'queued' WHERE exec_id = $1", chain[1].exec_id)
    assert await faults_of(store, signer) == [(FaultKind.RECORD, 2, chain[1].exec_id)]


async def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_checked(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    await database.execute("UPDATE sandbox_execs SET status = '?' WHERE exec_id = $1", chain[1].exec_id)
    await database.execute("UPDATE sandbox_execs SET exit_code = 0 WHERE exec_id = $1", chain[3].exec_id)
    assert await faults_of(store, signer) == [
        (FaultKind.RECORD, 2, chain[1].exec_id),
        (FaultKind.RECORD, 4, chain[3].exec_id),
    ]


async def test_a_record_that_was_removed_is_named(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    await database.execute("DELETE FROM sandbox_execs WHERE exec_id = $1", chain[2].exec_id)
    faults = (await verify_chain(store, signer.public_key)).faults
    assert faults == [Fault(FaultKind.RECORD, 3, chain[2].exec_id, "the record is gone")]


async def test_a_record_that_was_renamed_is_named_twice(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    await database.execute("UPDATE sandbox_execs SET exec_id = 'x' WHERE exec_id = $1", chain[2].exec_id)
    assert await faults_of(store, signer) == [
        (FaultKind.RECORD, 3, chain[2].exec_id),
        (FaultKind.UNRECEIPTED, None, "x"),
    ]


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        pytest.param("UPDATE receipts SET signature = body WHERE number = 3", ["signature"], id="signature"),
        pytest.param("UPDATE receipts SET hash = 'x' WHERE number = 3", ["hash", "record"], id="hash"),
        pytest.param(
            "UPDATE receipts SET body = signature WHERE number = 3",
            ["signature", "hash", "malformed", "link", "link"],
            id="body",
        ),
        pytest.param(
            "UPDATE receipts SET exec_id = 'x' WHERE number = 3",
            ["link", "record", "unreceipted"],
            id="exec-id",
        ),
        pytest.param("UPDATE receipts SET number = 9 WHERE number = 5", ["link", "missing"], id="number"),
        pytest.param("DELETE FROM receipts WHERE number = 1", ["missing", "unreceipted"], id="first-removed"),
        pytest.param("DELETE FROM receipts WHERE number = 3", ["missing", "unreceipted"], id="removed"),
        pytest.param("DELETE FROM receipts WHERE number = 5", ["unreceipted"], id="last-removed"),
        pytest.param("DELETE FROM receipts", ["unreceipted"] * 5, id="all-removed"),
    ],
)
async def test_what_was_done_to_the_receipts_is_named(
    database: Database,
    store: LedgerStore,
    signer: Signer,
    chain: list[ExecRecord],
    statement: str,
    kinds: list[str],
) -> None:
    await database.execute(statement)
    assert [fault.kind.value for fault in (await verify_chain(store, signer.public_key)).faults] == kinds


async def test_a_receipt_that_was_signed_again_breaks_the_link(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    """Even by the right key: the next one says what was there before."""
    forged = signer.issue(replace(chain[2], exit_code=0), str(chain[1].receipt_hash), 3)
    await database.execute(
        "UPDATE receipts SET body = $1, hash = $2, signature = $3 WHERE number = 3",
        forged.body,
        forged.hash,
        forged.signature,
    )
    await database.execute(
        "UPDATE sandbox_execs SET exit_code = 0, receipt_hash = $1 WHERE exec_id = $2",
        forged.hash,
        chain[2].exec_id,
    )
    assert await faults_of(store, signer) == [(FaultKind.LINK, 4, chain[3].exec_id)]


async def test_receipts_that_changed_places_are_named(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    for old, new in ((3, 99), (4, 3), (99, 4)):
        await database.execute(f"UPDATE receipts SET number = {new} WHERE number = {old}")
    assert {fault[1] for fault in await faults_of(store, signer)} == {3, 4, 5}


async def test_an_end_that_was_cut_off_is_found_by_an_exported_receipt(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    anchor = await store.receipt_of(chain[4].exec_id)
    assert (await verify_chain(store, signer.public_key, anchor=anchor)).faults == []
    await database.execute("DELETE FROM receipts WHERE number > 3")
    await database.execute(
        "DELETE FROM sandbox_execs WHERE exec_id IN ($1, $2)", chain[3].exec_id, chain[4].exec_id
    )
    assert (await verify_chain(store, signer.public_key)).faults == []  # the chain alone cannot tell
    (fault,) = (await verify_chain(store, signer.public_key, anchor=anchor)).faults
    assert (fault.kind, fault.number) == (FaultKind.MISSING, 5)


async def test_an_end_that_was_cut_off_and_grown_again_is_found_too(
    database: Database, store: LedgerStore, signer: Signer, chain: list[ExecRecord]
) -> None:
    anchor = await store.receipt_of(chain[4].exec_id)
    await database.execute("DELETE FROM receipts WHERE number = 5")
    await database.execute("DELETE FROM sandbox_execs WHERE exec_id = $1", chain[4].exec_id)
    other = await run_once(store)
    (fault,) = (await verify_chain(store, signer.public_key, anchor=anchor)).faults
    assert (fault.kind, fault.number, fault.exec_id) == (FaultKind.LINK, 5, other.exec_id)


async def test_with_a_wrong_key_the_faults_are_counted_out(
    store: LedgerStore, chain: list[ExecRecord]
) -> None:
    wrong = Ed25519PrivateKey.generate().public_key()
    assert len((await verify_chain(store, wrong)).faults) == 5
    assert len((await verify_chain(store, wrong, limit=3)).faults) == 3


# Artifacts

ARTIFACTS = {"out.csv": b"a,b\n", "plot/\N{SNOWMAN}.svg": b"<svg/>"}


@pytest.fixture
async def folder(store: LedgerStore, tmp_path: Path) -> Path:
    """Where a run left two files."""
    folder = tmp_path / "left"
    manifest = []
    for path, content in ARTIFACTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        manifest.append({"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    record = await store.accept(queued())
    await store.finish(ended(record, artifacts=tuple(manifest)))
    return folder


async def artifact_faults(store: LedgerStore, signer: Signer, folder: Path) -> list[str]:
    def left_behind(record: ExecRecord) -> dict[str, str] | None:
        if not folder.exists():
            return None
        files = [folder / one["path"] for one in record.artifacts]
        return {
            str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if file.exists()
        }

    faults = (await verify_chain(store, signer.public_key, left_behind=left_behind)).faults
    assert {fault.kind for fault in faults} <= {FaultKind.ARTIFACT}
    return [fault.what for fault in faults]


async def test_artifacts_that_are_as_they_were_left_have_no_fault(
    store: LedgerStore, signer: Signer, folder: Path
) -> None:
    assert await artifact_faults(store, signer, folder) == []


async def test_an_artifact_that_was_changed_or_removed_is_named(
    store: LedgerStore, signer: Signer, folder: Path
) -> None:
    (folder / "out.csv").write_bytes(b"a,c\n")
    (folder / "plot/\N{SNOWMAN}.svg").unlink()
    assert await artifact_faults(store, signer, folder) == [
        "'out.csv' is another file than the run left",
        "'plot/\N{SNOWMAN}.svg' is missing",
    ]


async def test_artifacts_that_retention_took_are_no_fault(
    store: LedgerStore, signer: Signer, folder: Path
) -> None:
    shutil.rmtree(folder)
    assert await artifact_faults(store, signer, folder) == []
