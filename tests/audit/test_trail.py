"""The trail: one line per event, whatever is in it, and never a run that fails for it."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.databases import SqliteDatabase, ended, queued, refused, run_once

from belljar.audit.receipts import FaultKind, Signer
from belljar.audit.records import ExecRecord
from belljar.audit.trail import Trail, event, line, verify_trail
from belljar.errors import BadRequest
from belljar.models import Verdict


def test_an_event_has_the_fields_of_the_design_in_their_order() -> None:
    record = replace(ended(queued(exec_id="exec_1")), exit_code=0, error_code=None, error_reason=None)
    assert list(event(record).items()) == [
        ("timestamp", "2025-02-07T12:00:00.015007Z"),
        ("event_type", "sandbox_execution"),
        ("session_id", "sess_abc123"),
        ("agent_id", "agent_456"),
        ("org_id", "org_789"),
        ("sandbox_id", "exec_1"),
        ("tool", "code_run"),
        ("language", "python"),
        ("code_hash", f"sha256:{'c' * 64}"),
        ("execution_time_ms", 12),
        ("exit_code", 0),
        ("memory_used_mb", 128.5),
        ("cpu_time_ms", 500),
        ("network_bytes_sent", 10),
        ("network_bytes_recv", 20),
        ("files_read", ("input.txt",)),
        ("files_written", ("out.csv",)),
        ("result", "success"),
        ("error", None),
    ]


@pytest.mark.parametrize(
    ("record", "result", "error"),
    [
        pytest.param(ended(queued(), error_reason=None), "failure", "ENGINE_UNAVAILABLE", id="exited-3"),
        pytest.param(ended(queued(), verdict=Verdict.TIMEOUT), "timeout", "the jar was lost", id="timeout"),
        pytest.param(ended(queued(), verdict="oom"), "oom", "the jar was lost", id="oom"),
        pytest.param(ended(queued(), verdict=None), "error", "the jar was lost", id="no-verdict"),
        pytest.param(refused(), "refused", "memory_mb: asked for 4096", id="refused"),
    ],
)
def test_an_event_says_how_it_ended(record: ExecRecord, result: str, error: str) -> None:
    said = event(record)
    assert (said["result"], said["error"]) == (result, error)


hostile = st.text(st.characters(exclude_categories=()) | st.sampled_from('\n\r\0\x1b\x85\u2028"\\{}\ud800'))


@given(word=hostile)
def test_nothing_that_a_program_chose_can_forge_a_line(word: str) -> None:
    record = ended(queued(tool=word, cmd=word), files_written=(word,), error_reason=word)
    written = line(record)
    assert written.isascii()
    assert written.splitlines() == [written[:-1]]
    assert not [sign for sign in written[:-1] if sign < 0x20]
    assert json.loads(written) == json.loads(json.dumps(event(record)))


def test_a_line_is_added_for_every_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    records = [ended(queued()) for _ in range(3)]
    for record in records:
        Trail(path).append(record)
    assert path.read_bytes() == b"".join(map(line, records))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trails = [Trail(path) for _ in range(4)]
    records = [ended(queued(), files_written=("x" * 50_000,)) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: trails[n % 4].append(records[n]), range(40)))
    found = [json.loads(text)["sandbox_id"] for text in path.read_bytes().splitlines() if text]
    assert sorted(found) == sorted(record.exec_id for record in records)


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trail = Trail(path)
    first, second = ended(queued()), ended(queued())
    trail.append(first)
    path.rename(tmp_path / "audit.jsonl.1")
    trail.append(second)
    assert path.read_bytes() == line(second)


def test_a_line_that_was_broken_off_stays_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"timestamp":"20')
    record = ended(queued())
    Trail(path).append(record)
    assert path.read_bytes() == b'{"timestamp":"20\n' + line(record)


def test_a_trail_that_cannot_be_written_is_told_once_and_again_when_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trail = Trail(tmp_path / "folder" / "audit.jsonl")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            trail.append(ended(queued()))
        assert len(caplog.records) == 1
        (tmp_path / "folder").mkdir()
        trail.append(ended(queued()))
        trail.append(ended(queued()))
    assert len(caplog.records) == 2
    assert "3 lines are lost" in caplog.messages[1]


def test_a_disk_that_fills_up_in_a_line_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trail = Trail(path)
    records = [ended(queued()) for _ in range(3)]
    trail.append(records[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        trail.append(records[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    trail.append(records[2])
    whole = path.read_bytes().splitlines(keepends=True)
    assert (whole[0], whole[2]) == (line(records[0]), line(records[2]))
    assert len(whole) == 3


@pytest.mark.parametrize(
    "usage",
    [pytest.param({"cpu_s": "much"}, id="no-number"), pytest.param({"cpu_s": float("nan")}, id="nan")],
)
def test_a_record_that_makes_no_event_does_no_harm(tmp_path: Path, usage: dict[str, Any]) -> None:
    Trail(tmp_path / "audit.jsonl").append(ended(queued(), usage=usage))
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_link_in_place_of_the_trail_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    os.symlink(target, tmp_path / "audit.jsonl")
    Trail(tmp_path / "audit.jsonl").append(ended(queued()))
    assert target.read_bytes() == b""


# Against the records


async def test_a_line_that_is_not_what_the_record_says_is_named(
    sqlite: SqliteDatabase, signer: Signer, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    trail = Trail(path)
    async with await sqlite.open(signer) as store:
        records = [await run_once(store) for _ in range(3)]
        for record in (*records, await store.accept(refused())):
            trail.append(record)
        assert await verify_trail(path, store) == []
        trail.append(ended(queued(exec_id="exec_forged")))
        with path.open("ab") as file:
            file.write(b"\n[]\n" + b"[" * 100_000 + b'\n{"sandbox_id": 1}\n')
        path.write_bytes(path.read_bytes().replace(b'"exit_code":3', b'"exit_code":0', 2))
        faults = await verify_trail(path, store)
        assert [(fault.kind, fault.number, fault.exec_id) for fault in faults] == [
            (FaultKind.LINE, 1, records[0].exec_id),
            (FaultKind.LINE, 2, records[1].exec_id),
            (FaultKind.LINE, 5, "exec_forged"),
            (FaultKind.LINE, 7, None),
            (FaultKind.LINE, 8, None),
            (FaultKind.LINE, 9, None),
        ]
        assert len(await verify_trail(path, store, limit=2)) == 2
        with pytest.raises(BadRequest):
            await verify_trail(tmp_path / "none", store)
