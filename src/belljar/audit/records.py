"""The record of a run, from its acceptance to its outcome, and where records are kept.

A record exists before any resource of its run does. It moves along `NEXT` and never back; the move
that ends it also writes its receipt, in the same transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol


class Status(StrEnum):
    """Where a run is."""

    REFUSED = "refused"  # policy or a person said no, or a package cannot be had; nothing was run
    PENDING = "pending_approval"  # accepted, durable, waiting for a person's yes
    QUEUED = "queued"  # accepted, durable, waiting for its turn
    RUNNING = "running"  # a jar is being made or used
    FINISHED = "finished"  # the outcome is final and the jar is gone


NEXT: Mapping[Status, frozenset[Status]] = {
    Status.REFUSED: frozenset(),
    Status.PENDING: frozenset({Status.QUEUED, Status.REFUSED, Status.FINISHED}),
    Status.QUEUED: frozenset({Status.RUNNING, Status.REFUSED, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRecord:
    """One row of `sandbox_execs`. Names of environment variables only, never values."""

    exec_id: str
    epoch: str
    """The service process that took it."""
    request_id: str
    request_digest: str
    """sha256 of all that was asked; the same request_id with another digest is a conflict."""
    project_id: str
    status: Status
    accepted_at: datetime

    # Who asked, and in which context.
    token_id: str = ""
    role: str | None = None
    tool: str | None = None
    skill_id: str | None = None
    task_id: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    org_id: str | None = None

    # What was asked for.
    language: str | None = None
    image: str | None = None
    cmd: str | None = None
    args: tuple[str, ...] = ()
    cwd: str = ""
    env_keys: tuple[str, ...] = ()
    code_hash: str | None = None
    """sha256:… of the code, where there is some."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Path to sha256 of every input file."""

    # What was granted, with the layer that set each field; what was found in reading the code.
    policy_snapshot: Mapping[str, Any] = field(default_factory=dict)
    grant_digest: str = ""
    risk: Mapping[str, Any] = field(default_factory=dict)

    # How it went.
    engine: str = ""
    posture: str = ""
    approval: Mapping[str, Any] = field(default_factory=dict)
    """Which approval let it run or stopped it: its id and digest, who decided, when and why."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_ms: int | None = None
    verdict: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    error_code: str | None = None
    error_reason: str | None = None
    error_field: str | None = None
    """The part of the request at fault, of a refusal that has one."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_sha256: str | None = None
    stderr_sha256: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    artifacts_path: str | None = None
    artifacts: tuple[Mapping[str, Any], ...] = ()
    """path, size, sha256, mime of each."""
    skipped: tuple[Mapping[str, Any], ...] = ()
    files_read: tuple[str, ...] = ()
    files_written: tuple[str, ...] = ()
    packages: tuple[Mapping[str, Any], ...] = ()
    """name, version, sha256 of each that was installed for it."""
    network_bytes_sent: int = 0
    network_bytes_recv: int = 0
    network_decisions: Mapping[str, Any] = field(default_factory=dict)
    """How many there were (`total`), how many of them refused, how many have a row, and the rows' sha256.
    Empty: nothing was asked for."""
    receipt_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDecision:
    """One row of `network_decisions`: a program asked for a way out, and this came of it."""

    exec_id: str
    project_id: str
    number: int
    at: datetime
    host: str
    port: int
    address: str
    allowed: bool
    rule: str
    secret: str
    """Name of the one that went along."""
    sent: int | None
    received: int | None
    """Bytes. None: not known when the run was over: its jar was lost, or another run kept the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAccount:
    """All that a run asked for on its way out: how often, and the first of it in full."""

    decisions: tuple[NetworkDecision, ...] = ()
    total: int = 0
    refused: int = 0


NOTHING_ASKED = NetworkAccount()


@dataclass(frozen=True, slots=True)
class Page:
    records: tuple[ExecRecord, ...]
    cursor: str | None
    """Give it back for the next page; None on the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    projects: frozenset[str] | None = None
    """Of these only; None is all."""
    project_id: str | None = None
    task_id: str | None = None
    status: Status | None = None
    skill_id: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """One link of the chain."""

    number: int
    exec_id: str
    body: bytes
    """Canonical JSON; holds `previous`, the hash of the receipt before it."""
    hash: str
    """sha256 of `body`."""
    signature: bytes
    """ed25519 of `body`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """What has a state and outlives a restart, beside the runs: an approval, a session, …"""

    kind: str
    """`approval`, `standing` (a yes that holds for a while), `session` or `terminal`."""
    id: str
    project_id: str
    state: str
    created_at: datetime
    body: Mapping[str, Any] = field(default_factory=dict)
    """All the rest, as JSON."""


class AuditStore(Protocol):
    """Where records and receipts are kept. Every write is durable when it returns.

    Raises `StoreUnavailable` when the disk is full, the database is read-only or gone. Nothing was written
    then, unless a connection broke during the commit. The same call may be made again: it takes place once.
    """

    async def accept(self, record: ExecRecord) -> ExecRecord:
        """Write a new record (QUEUED, PENDING or REFUSED) and return it; or the one that has its request_id
        already, if that has the same digest.

        Raises:
            Conflict: the request_id of that project is another request's.
        """

    async def release(self, record: ExecRecord) -> None:
        """PENDING to QUEUED: a person said yes, and the record's `approval` says who.

        Raises:
            Conflict: it does not wait for a person any more.
            NotFound: it was never accepted.
        """

    async def start(self, exec_id: str, started_at: datetime, engine: str) -> None:
        """QUEUED to RUNNING.

        Raises:
            Conflict: it is running already, by another start, or over.
            NotFound: it was never accepted.
        """

    async def finish(self, record: ExecRecord, account: NetworkAccount = NOTHING_ASKED) -> ExecRecord:
        """Write the outcome, what was decided of its way out, and its receipt; returns the record with
        `network_decisions` and `receipt_hash`. Exactly once per run: a record that is final already is
        returned as it is. A PENDING one may also end as REFUSED.

        The outcome is `status`, `engine` and all that follows it; what was accepted stays as it was.

        Raises:
            Conflict: it was refused, and is now said to have run.
            NotFound: it was never accepted.
        """

    async def get(self, exec_id: str) -> ExecRecord | None: ...

    async def network_decisions(self, exec_id: str) -> Sequence[NetworkDecision]:
        """In their order."""

    async def find_request(self, project_id: str, request_id: str) -> ExecRecord | None: ...

    async def page(self, wanted: Filter, *, limit: int, cursor: str | None = None) -> Page:
        """Newest first."""

    async def unfinished(self) -> Sequence[ExecRecord]:
        """PENDING, QUEUED and RUNNING ones, of any epoch."""

    def receipts(self, after: int = 0) -> AsyncIterator[Receipt]:
        """In order of their number."""

    async def receipt_of(self, exec_id: str) -> Receipt | None: ...

    async def unreceipted(self, limit: int) -> Sequence[str]:
        """Ids of records that are final but have no receipt. There are none, unless somebody else wrote."""

    async def open_matter(self, matter: Matter) -> Matter:
        """
        Raises:
            Conflict: there is one of that kind and id.
        """

    async def move_matter(self, matter: Matter, expected: str) -> Matter:
        """Its state and body become these, if it is still in the expected state.

        Raises:
            Conflict: it is not.
        """

    async def matter(self, kind: str, id: str) -> Matter | None: ...

    async def matters(
        self, kind: str, *states: str, projects: frozenset[str] | None = None, limit: int = 1000
    ) -> Sequence[Matter]:
        """Newest first; without states, of any."""

    async def close(self) -> None: ...
