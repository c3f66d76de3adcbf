"""Puts the parts together, in order, and undoes it in reverse. No logic of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from belljar.audit.ledger import LedgerStore
from belljar.audit.receipts import Signer
from belljar.audit.records import AuditStore
from belljar.audit.trail import Trail
from belljar.config import Config
from belljar.engines.base import Engine
from belljar.errors import BadConfig, BadRequest, EngineUnavailable, GrantNotEnforceable, PostureMismatch
from belljar.execution import terminals
from belljar.execution.approvals import Approvals
from belljar.execution.lifecycle import Lifecycle
from belljar.execution.pending import Pending
from belljar.execution.pool import Pool
from belljar.execution.sampling import Sampler
from belljar.execution.sessions import SessionRules, Sessions
from belljar.execution.turns import Turns
from belljar.execution.workspace import Workspace
from belljar.flows.skills import Skills
from belljar.metrics import Metrics
from belljar.models import Grant, Language
from belljar.processes import Presence
from belljar.tokens import Tokens
from belljar.tracing import Tracing, tracing_for
from belljar.wiring import (
    accepts_weaker_limits,
    check_enabled,
    engine_for,
    packages_for,
    policies_of,
    usable_secrets,
    workspace_root,
)

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Service:
    config: Config
    engine: Pool
    store: AuditStore
    signer: Signer
    workspace: Workspace
    lifecycle: Lifecycle
    sessions: Sessions
    sampler: Sampler
    metrics: Metrics
    tracing: Tracing
    tokens: Tokens
    skills: Skills

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config, *, person: bool = False) -> AsyncIterator[Service]:
        """Everything up, and what an earlier process left behind settled.

        `person`: as in `wiring.accepts_weaker_limits`.
        """
        check_enabled(config)
        _make(config.data_dir, "data_dir")
        root = workspace_root(config)
        _make(root, "workspace_root_wsl")
        skills = Skills(config.skills_dir)
        async with AsyncExitStack() as stack:
            presence = Presence(config.data_dir / "alive")
            stack.callback(presence.close)
            signer = Signer.load_or_create(config.data_dir / "signing.key")
            store = await open_store(config, signer)
            stack.push_async_callback(store.close)
            metrics = Metrics()
            tracing = tracing_for(wanted=config.traced)
            stack.push_async_callback(tracing.aclose)
            engine = Pool(
                await engine_for(config),
                min_idle=min(config.pool_min_idle, config.pool_max_idle),
                max_idle=config.pool_max_idle,
            )
            stack.push_async_callback(engine.close)
            policies = policies_of(config)
            approvals = Approvals(store, expires_s=config.approval_expires_s, approvers=policies.approvers)
            lifecycle = Lifecycle(
                engine=engine,
                policies=policies,
                store=store,
                workspace=Workspace(root),
                turns=Turns(at_once=config.max_concurrent_execs, waiting=config.max_queued_execs),
                metrics=metrics,
                trail=Trail(config.data_dir / "audit.jsonl"),
                approvals=approvals,
                pending=Pending(config.data_dir / "pending"),
                packages=packages_for(config),
                refresh=skills.refresh,
                secrets_within=usable_secrets(config),
                accept_weaker_limits=accepts_weaker_limits(config, person=person),
                epoch=presence.epoch,
                tracing=tracing,
            )
            rules = SessionRules(
                idle_s=config.session_idle_s,
                max_age_s=config.session_max_age_s,
                per_project=config.session_per_project,
            )
            sessions = Sessions(lifecycle, engine, store, rules, epoch=presence.epoch)
            sampler = Sampler(lifecycle, sessions, metrics)
            stack.push_async_callback(sessions.close)
            stack.push_async_callback(lifecycle.close, SHUTDOWN_GRACE_S)
            await lifecycle.recover(presence.is_alive)
            await sessions.recover(presence.is_alive)
            await terminals.recover(store, presence.is_alive)
            presence.tidy()
            for work in (
                lifecycle.forget_old(config.keep_days, config.keep_gb),
                sessions.watch(),
                sampler.watch(),
                approvals.watch(),
            ):
                stack.callback(asyncio.create_task(work).cancel)
            usual = lifecycle.decide(tool=policies.usual_tool(None), overrides={})
            grant = await engine.fit(usual.grant, Language.PYTHON)
            if not person:
                await _check_enforced(engine, grant)
            engine.keep(grant)
            tokens = Tokens(config.data_dir, config.token)
            workspace = lifecycle.workspace
            yield cls(
                config,
                engine,
                store,
                signer,
                workspace,
                lifecycle,
                sessions,
                sampler,
                metrics,
                tracing,
                tokens,
                skills,
            )


async def _check_enforced(engine: Engine, grant: Grant) -> None:
    """A service that would refuse every run does not start.

    Raises:
        GrantNotEnforceable, PostureMismatch: a layer is missing.
    """
    try:
        jar = await engine.create(grant)
    except (GrantNotEnforceable, PostureMismatch):
        raise
    except EngineUnavailable as error:  # it may come back
        logger.warning("no jar can be made now: %s", error)
    else:
        await jar.destroy()


def _make(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        message = f"{folder} cannot be made: {error.strerror}; set sandbox.{setting} to another folder"
        raise BadConfig(message, field=setting) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        logger.warning("%s cannot be written to; until it can, runs are refused or their files lost", folder)


async def open_store(config: Config, signer: Signer | None) -> LedgerStore:
    """The configured records. Without a signer they have to be there, and can only be read.

    Raises:
        BadRequest: there are none to read.
        StoreUnavailable: they cannot be opened.
    """
    url = config.database_url
    if url is not None and not url.startswith("sqlite:"):
        try:
            from belljar.audit.postgres import PostgresStore
        except ImportError as error:
            message = "records in PostgreSQL need its driver; in belljar's source: pip install '.[postgres]'"
            raise BadConfig(message, field="database_url") from error

        return await PostgresStore.open(url, signer)
    from belljar.audit.sqlite import SqliteStore

    path = Path(url.removeprefix("sqlite://")) if url else config.data_dir / "belljar.db"
    if signer is None and not path.is_file():  # opening it would make one
        raise BadRequest(f"there are no records at {path}; has a run taken place?", field="data_dir")
    return await SqliteStore.open(path, signer)
