"""`belljar doctor` on machines that are well, and on broken ones: an answer with what to do, never a traceback."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import BELLJAR, Belljar, environment

from belljar import run
from belljar.audit.migrations import MIGRATIONS

SERVICE = [
    "versions",
    "settings",
    "policy",
    "data directory",
    "secrets",
    "disk",
    "database",
    "clock",
    "server",
]


def failing(found: Any) -> dict[str, str]:
    """Name to what to do, of each required check that fails."""
    return {
        check["name"]: check["fix"] for check in found["service"] if not check["ok"] and check["required"]
    }


@pytest.fixture
def data_dir(belljar: Belljar, jail: None, tmp_path: Path) -> Path:
    """The data directory after a run."""
    assert run("print(1)").exit_code == 0
    return tmp_path / "data"


def test_a_machine_that_is_well_is_ready(belljar: Belljar, data_dir: Path) -> None:
    ran = belljar("doctor", "--json")
    assert (ran.status, ran.json["ready"], failing(ran.json)) == (0, True, {})
    assert [check["name"] for check in ran.json["service"]] == SERVICE
    assert [probe["engine"] for probe in ran.json["engines"]] == ["jail", "docker", "gvisor"]


def test_a_server_without_cgroups_is_told_to_refuse(belljar: Belljar, jail: None) -> None:
    def server(**settings: str) -> tuple[bool, str]:
        found = belljar("doctor", "--json", BELLJAR_JAIL_CGROUP_PARENT="/none", **settings).json["service"]
        [check] = [check for check in found if check["name"] == "server"]
        return check["ok"], check["detail"]

    assert server() == (False, "engine jail: without a cgroup it refuses runs")
    always = server(BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS="always")
    assert always == (True, "engine jail, with weaker limits")


def test_nothing_is_made_where_nothing_has_run(belljar: Belljar, jail: None, tmp_path: Path) -> None:
    ran = belljar("doctor")
    assert ran.status == 0
    assert f"{tmp_path / 'data'} is made by the first run" in ran.out
    assert not (tmp_path / "data").exists()


def test_every_problem_has_a_fix(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("doctor", BELLJAR_DATA_DIR="/proc/none", BELLJAR_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    problems = sum(line.startswith(("  FAIL", "  weak")) for line in ran.out.splitlines())
    fixes = [line for line in ran.out.splitlines() if line.startswith("        FIX: ") and line[13:].strip()]
    assert ran.status == 1
    assert len(fixes) == problems >= 3


def test_where_settings_came_from_is_told(belljar: Belljar) -> None:
    assert belljar("doctor", "--json", BELLJAR_MEMORY_MB="100").json["settings"] == {
        "sandbox.data_dir": "environment BELLJAR_DATA_DIR",
        "sandbox.memory_mb": "environment BELLJAR_MEMORY_MB",
    }


@pytest.mark.parametrize(
    ("settings", "failed", "fix"),
    [
        pytest.param({"BELLJAR_MEMORY": "1"}, "settings", "did you mean", id="unknown-setting"),
        pytest.param({"BELLJAR_MEMORY_MB": "much"}, "settings", "mend what it says", id="bad-value"),
        pytest.param({"BELLJAR_POLICY": "/none.yaml"}, "policy", "", id="no-policy"),
        pytest.param({"BELLJAR_NETWORK_SECRETS": "/none.yaml"}, "policy", "", id="no-secrets"),
        pytest.param({"BELLJAR_ENABLED": "false"}, "policy", "set it to true", id="switched-off"),
        pytest.param(
            {"BELLJAR_DATA_DIR": "/proc/none"}, "data directory", "sandbox.data_dir", id="no-folder"
        ),
        pytest.param({"BELLJAR_DATA_DIR": "/dev/null"}, "data directory", "sandbox.data_dir", id="a-file"),
        pytest.param(
            {"BELLJAR_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}, "database", "", id="no-postgres"
        ),
    ],
)
def test_a_broken_setting_is_a_problem_like_any_other(
    belljar: Belljar, settings: dict[str, str], failed: str, fix: str
) -> None:
    ran = belljar("doctor", "--json", **settings)
    assert (ran.status, ran.err) == (1, "")
    assert list(failing(ran.json)) == [failed]
    assert fix in failing(ran.json)[failed]


def test_engines_are_probed_though_the_settings_are_broken(belljar: Belljar) -> None:
    ran = belljar("doctor", BELLJAR_ENGINE="none")
    assert ran.status == 1
    assert "engine jail: usable" in ran.out


def test_an_engine_that_the_settings_name_has_to_be_usable(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("doctor", BELLJAR_ENGINE="docker", BELLJAR_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert ran.status == 1
    assert "engine docker: cannot be used" in ran.out


def damaged(data: Path) -> None:
    (data / "belljar.db").write_bytes(b"no database" * 1000)


def newer(data: Path) -> None:
    with closing(sqlite3.connect(data / "belljar.db")) as connection:
        connection.execute("INSERT INTO migrations VALUES (?, '2100-01-01')", (len(MIGRATIONS) + 1,))
        connection.commit()


def forged(data: Path) -> None:
    with closing(sqlite3.connect(data / "belljar.db")) as connection:
        connection.execute("UPDATE receipts SET signature = zeroblob(64)")
        connection.commit()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(damaged, "restore it from a back-up", id="damaged"),
        pytest.param(newer, "update belljar", id="of-a-newer-belljar"),
        pytest.param(forged, "restore the key or the database", id="chain-of-another-key"),
        pytest.param(lambda data: (data / "signing.key").unlink(), "restore the key", id="no-key"),
        pytest.param(lambda data: (data / "signing.key").chmod(0o644), "chmod 600 it", id="open-key"),
        pytest.param(lambda data: (data / "signing.key").write_text(""), "", id="empty-key"),
    ],
)
def test_records_that_cannot_be_continued_are_told(
    belljar: Belljar, data_dir: Path, spoil: Callable[[Path], None], says: str
) -> None:
    for file in data_dir.glob("belljar.db-*"):
        file.unlink()
    spoil(data_dir)
    ran = belljar("doctor", "--json")
    assert ran.status == 1
    assert says in failing(ran.json)["database"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_told(belljar: Belljar, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", disk], check=True)
    try:
        found = belljar("doctor", "--json", BELLJAR_DATA_DIR=str(disk)).json
    finally:
        subprocess.run(["umount", disk], check=True)
    assert failing(found) == {"data directory": "free some space"}


def test_secrets_that_others_may_read_are_told(belljar: Belljar, data_dir: Path) -> None:
    (data_dir / "token").chmod(0o644)
    ran = belljar("doctor")
    assert ran.status == 0
    assert f"FIX: chmod go= {data_dir / 'token'}" in ran.out


def test_a_clock_before_the_last_record_is_told(belljar: Belljar, data_dir: Path) -> None:
    later = 4_000_000_000
    os.utime(data_dir / "audit.jsonl", (later, later))
    assert "s before the last record" in belljar("doctor").out


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder that it cannot use as another user")
def test_another_user_without_rights_gets_an_answer(tmp_path: Path) -> None:
    """Nothing of the data directory can be read, written or even seen."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "belljar.db").touch(mode=0o600)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ran = subprocess.run(
        [*nobody, *BELLJAR, "doctor", "--json"],
        env=environment(data, HOME="/"),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "data directory" in failing(json.loads(ran.stdout))
