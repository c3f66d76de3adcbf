"""The databases that the tests run on, real ones, and records to put into them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]

from belljar.audit.ledger import LedgerStore
from belljar.audit.postgres import PostgresStore
from belljar.audit.receipts import Signer
from belljar.audit.records import ExecRecord, Status
from belljar.audit.sqlite import SqliteStore
from belljar.models import Verdict

NOON = datetime(2025, 2, 7, 12, tzinfo=UTC)


class Database(Protocol):
    async def open(self, signer: Signer | None) -> LedgerStore: ...

    async def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """As somebody would who has the database but not the service. Foreign keys do not stop them."""


@dataclass(frozen=True)
class SqliteDatabase:
    path: Path

    async def open(self, signer: Signer | None) -> SqliteStore:
        return await SqliteStore.open(self.path, signer)

    async def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql.replace("$", "?"), values).fetchall()


@dataclass(frozen=True)
class PostgresDatabase:
    url: str

    async def open(self, signer: Signer | None) -> PostgresStore:
        return await PostgresStore.open(self.url, signer)

    async def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("SET session_replication_role = replica")
            return [tuple(row) for row in await connection.fetch(sql, *values)]
        finally:
            await connection.close()


class PostgresServer:
    """A server of our own, in a folder of its own; nothing else on this machine can reach it."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        # Short, because it holds a socket; and not below pytest's folder, which is closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="belljar-pg-"))
        self._user = None
        if os.getuid() == 0:  # PostgreSQL does not run as root
            self._user = "nobody"
            shutil.chown(self._folder, self._user)
        self._data = self._folder / "data"
        options = ["--no-sync", "--auth=trust", "--username=belljar", "--encoding=UTF8"]
        if self._run("initdb", *options, str(self._data)):
            raise RuntimeError("initdb failed; what it said is above")
        self.start()

    def url(self, schema: str) -> str:
        return f"postgresql://belljar@/postgres?host={self._folder}&search_path={schema}"

    def start(self) -> None:
        # A server ends with the tests, also when these are killed. No fsync: no test cuts its power.
        with_us = ["setpriv", "--pdeathsig", "QUIT"]
        options = ["-c", "fsync=off", "-c", "listen_addresses=", "-k", str(self._folder)]
        self._server = subprocess.Popen(
            [*with_us, self._programs / "postgres", "-D", self._data, *options],
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self._folder,
        )
        deadline = time.monotonic() + 50
        while self._run("pg_isready", "--host", str(self._folder)):
            if time.monotonic() > deadline:
                raise TimeoutError("the PostgreSQL server does not come up")
            time.sleep(0.05)

    def stop(self) -> None:
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(timeout=30)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def _run(self, program: str, *arguments: str) -> int:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, user=self._user, cwd=self._folder, check=False
        )
        return done.returncode


def postgres_programs() -> Path | None:
    """Where Debian puts them, newest first, or where the path leads."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def queued(**changes: Any) -> ExecRecord:
    """A record as it is accepted, with something in every column that the request fills."""
    record = ExecRecord(
        exec_id=f"exec_{secrets.token_hex(8)}",
        epoch="epoch-1",
        request_id=f"req-{secrets.token_hex(8)}",
        request_digest="d" * 64,
        project_id="shop",
        status=Status.QUEUED,
        accepted_at=NOON,
        token_id="tok-1",
        role="analyst",
        tool="code_run",
        skill_id="tables",
        task_id="task-7",
        conversation_id="conv-1",
        session_id="sess_abc123",
        agent_id="agent_456",
        org_id="org_789",
        language="python",
        image="python:3.12",
        cmd="python3",
        args=("main.py", "--fast"),
        cwd="reports",
        env_keys=("API_KEY", "LANG"),
        code_hash=f"sha256:{'c' * 64}",
        inputs={"input.txt": "1" * 64},
        policy_snapshot={"memory_mb": {"value": 512, "layer": "system"}},
        grant_digest="e" * 64,
        risk={"tier": "low", "reasons": ["opens a file"]},
    )
    return replace(record, **changes)


def refused(**changes: Any) -> ExecRecord:
    return queued(
        **{
            "status": Status.REFUSED,
            "ended_at": NOON,
            "error_code": "POLICY_ESCALATION",
            "error_reason": "memory_mb: asked for 4096",
            **changes,
        }
    )


def ended(record: ExecRecord, **changes: Any) -> ExecRecord:
    """With something in every column that an outcome fills."""
    outcome = replace(
        record,
        status=Status.FINISHED,
        engine="jail",
        posture="f" * 64,
        started_at=record.started_at or NOON + timedelta(milliseconds=3),
        ended_at=NOON + timedelta(milliseconds=15, microseconds=7),
        duration_ms=12,
        verdict=Verdict.EXITED,
        exit_code=3,
        signal=9,
        error_code="ENGINE_UNAVAILABLE",
        error_reason="the jar was lost",
        stdout_bytes=1_000_000,
        stderr_bytes=5,
        stdout_truncated=True,
        stderr_truncated=True,
        stdout_sha256="2" * 64,
        stderr_sha256="3" * 64,
        usage={"wall_s": 0.012, "cpu_s": 0.5, "memory_peak_mb": 128.5, "held_by": {"memory": "cgroup"}},
        artifacts_path="projects/shop/artifacts/1",
        artifacts=({"path": "out.csv", "size": 4, "sha256": "4" * 64, "mime": "text/csv"},),
        skipped=({"path": "link", "reason": "symlink"},),
        files_read=("input.txt",),
        files_written=("out.csv",),
        network_bytes_sent=10,
        network_bytes_recv=20,
    )
    return replace(outcome, **changes)


async def run_once(store: LedgerStore, **changes: Any) -> ExecRecord:
    """A record through its whole life."""
    record = await store.accept(queued(**changes))
    await store.start(record.exec_id, NOON, "jail")
    return await store.finish(ended(record))
