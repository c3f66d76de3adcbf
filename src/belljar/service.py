"""Puts the parts together, in order, and undoes it in reverse. No logic of its own."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from belljar.audit.receipts import Signer
from belljar.audit.records import AuditStore
from belljar.audit.trail import Trail
from belljar.config import Config
from belljar.engines.base import Engine
from belljar.execution.lifecycle import Lifecycle
from belljar.execution.turns import Turns
from belljar.execution.workspace import Workspace
from belljar.metrics import Metrics
from belljar.tokens import Tokens
from belljar.wiring import accepts_weaker_limits, check_enabled, engine_for, policies_of

SHUTDOWN_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Service:
    config: Config
    engine: Engine
    store: AuditStore
    signer: Signer
    workspace: Workspace
    lifecycle: Lifecycle
    metrics: Metrics
    tokens: Tokens

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config, *, person: bool = False) -> AsyncIterator[Service]:
        """Everything up, and what an earlier process left behind settled. `person`: as in `grant_for`."""
        check_enabled(config)
        config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with AsyncExitStack() as stack:
            signer = Signer.load_or_create(config.data_dir / "signing.key")
            store = await _store(config, signer)
            stack.push_async_callback(store.close)
            engine = await engine_for(config)
            stack.push_async_callback(engine.close)
            metrics = Metrics()
            lifecycle = Lifecycle(
                engine=engine,
                policies=policies_of(config),
                store=store,
                workspace=Workspace(config.data_dir / "workspace"),
                turns=Turns(at_once=config.max_concurrent_execs, waiting=config.max_queued_execs),
                metrics=metrics,
                trail=Trail(config.data_dir / "audit.jsonl"),
                accept_weaker_limits=accepts_weaker_limits(config, person=person),
                epoch=_epoch(os.getpid()),
            )
            await lifecycle.recover(_is_alive)
            stack.push_async_callback(lifecycle.close, SHUTDOWN_GRACE_S)
            sweeping = asyncio.create_task(lifecycle.forget_old(config.keep_days, config.keep_gb))
            stack.callback(sweeping.cancel)
            tokens = Tokens(config.data_dir, config.token)
            yield cls(config, engine, store, signer, lifecycle.workspace, lifecycle, metrics, tokens)


async def _store(config: Config, signer: Signer) -> AuditStore:
    url = config.database_url
    if url is not None and not url.startswith("sqlite:"):
        from belljar.audit.postgres import PostgresStore

        return await PostgresStore.open(url, signer)
    from belljar.audit.sqlite import SqliteStore

    path = Path(url.removeprefix("sqlite://")) if url else config.data_dir / "belljar.db"
    return await SqliteStore.open(path, signer)


def _epoch(pid: int) -> str:
    """Names one process for good: a pid is used again, with its start time it is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{platform.node()}/{pid}/{stat.rpartition(')')[2].split()[19]}"


def _is_alive(epoch: str) -> bool:
    """A process of another machine counts as alive: only that machine can tell."""
    host, _, rest = epoch.rpartition("/")[0].rpartition("/")
    if host != platform.node():
        return True
    return _epoch(int(rest)) == epoch
