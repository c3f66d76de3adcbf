from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import belljar as public
from belljar.audit.receipts import Signer
from belljar.config import load_here

if TYPE_CHECKING:
    from tests.cli.commands import Belljar


@pytest.fixture
def runs(belljar: Belljar, jail: None, tmp_path: Path) -> list[str]:
    """The ids of three runs in the data directory of the commands; each left a file."""
    with public.local(load_here()) as client:
        return [client.run(f"open('a.txt', 'w').write('{n}')").id for n in range(3)]


@pytest.fixture
def exported(runs: list[str], tmp_path: Path) -> Path:
    """The last run's receipt in a file."""
    with public.local(load_here()) as client:
        receipt = client.receipt(runs[-1])
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(receipt))
    return path


def database(tmp_path: Path) -> sqlite3.Connection:
    return sqlite3.connect(tmp_path / "data/belljar.db", isolation_level=None)


def test_a_good_chain_is_ok(belljar: Belljar, runs: list[str], exported: Path, tmp_path: Path) -> None:
    assert belljar("verify") == (0, "3 receipts: ok\n", "")
    assert belljar("verify", runs[0]) == (0, "1 receipt: ok\n", "")
    assert belljar("verify", str(exported)) == (0, "1 receipt: ok\n", "")
    assert belljar("verify", "--all", str(exported)) == (0, "3 receipts: ok\n", "")
    assert belljar("verify", "--json").json == {"ok": True, "receipts": 3, "faults": [], "notes": []}


def test_every_tampering_is_found_and_named(
    belljar: Belljar, runs: list[str], exported: Path, tmp_path: Path
) -> None:
    with database(tmp_path) as rows:
        rows.execute("UPDATE sandbox_execs SET exit_code = 7 WHERE exec_id = ?", (runs[0],))
    ran = belljar("verify")
    assert ran.status == 1
    assert f"{runs[0]}: exit_code of the record is not what it was\n" in ran.out
    assert belljar("verify", runs[0]).status == 1
    assert belljar("verify", runs[1]).status == 0

    [file] = (tmp_path / "data/workspace").glob(f"**/{runs[1]}/files/a.txt")
    file.write_text("x")
    assert "artifact:" in belljar("verify", runs[1]).out

    trail = tmp_path / "data/audit.jsonl"
    trail.write_text(trail.read_text().replace('"result":"success"', '"result":"failure"'))
    assert belljar("verify", runs[2]).out.startswith("line: ")

    with database(tmp_path) as rows:
        rows.execute("DELETE FROM receipts WHERE exec_id = ?", (runs[2],))
    kinds = {fault["kind"] for fault in belljar("verify", "--all", str(exported), "--json").json["faults"]}
    assert {"record", "artifact", "line", "missing", "unreceipted"} <= kinds


def test_a_changed_export_is_found(belljar: Belljar, exported: Path) -> None:
    receipt = json.loads(exported.read_text())
    exported.write_text(json.dumps(receipt | {"exec_id": "ex-0"}))
    ran = belljar("verify", str(exported))
    assert ran.status == 1
    assert ran.out.endswith("1 receipt: 1 faults\n")


def test_another_key_did_not_sign_it(belljar: Belljar, exported: Path, tmp_path: Path) -> None:
    from belljar.audit.receipts import Signer

    Signer.load_or_create(tmp_path / "other")
    ran = belljar("verify", str(exported), "--key", str(tmp_path / "other.pub"))
    assert ran.status == 1
    assert ran.out.startswith("signature: ")


def test_what_is_not_there_is_one_line(belljar: Belljar, runs: list[str]) -> None:
    for what in ("ex-00", "/no/file", "/"):
        ran = belljar("verify", what)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), what


def test_nothing_to_verify_is_one_line_and_makes_nothing(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("verify")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param([], "there are no receipts in", id="none-yet"),
        pytest.param(["ex-nope"], "neither the id of a run", id="no-id"),
        pytest.param(["."], "neither the id of a run", id="folder"),
    ],
)
def test_what_cannot_be_checked_is_said(belljar: Belljar, tmp_path: Path, what: list[str], said: str) -> None:
    if what:
        (tmp_path / "data").mkdir()
        Signer.load_or_create(tmp_path / "data/signing.key")
    ran = belljar("verify", *what)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert said in ran.err
