"""How the service is: alive, able to run, counting, and with its receipts in order."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from dataclasses import asdict
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from belljar import __version__
from belljar.api.answers import json_answer
from belljar.api.calls import Call
from belljar.audit.receipts import verify_chain
from belljar.engines.base import Probe
from belljar.execution.hostpaths import detect_environment
from belljar.settings import RuntimeMode

__all__ = ["alive", "audit", "metrics", "sandbox"]


async def alive(call: Call) -> Response:
    return json_answer({"status": "ok", "service": "belljar", "version": __version__})


async def sandbox(call: Call) -> Response:
    service = call.service
    probes = await call.desk.probes()
    writable = await asyncio.to_thread(os.access, service.workspace.root, os.W_OK)
    turns = service.lifecycle.turns
    mode = service.config.runtime_mode
    answer: dict[str, Any] = {
        "status": "ok" if probes[0].usable and writable else "degraded",
        "version": __version__,
        "runtime_mode": detect_environment(sys.platform, platform.release())
        if mode is RuntimeMode.AUTO
        else mode,
        "workspace_writable": writable,
        "engine": service.engine.name,
        "engines": [_engine(probe, operator=call.is_operator) for probe in probes],
        "pool": asdict(service.engine.state),
        "sessions": len(service.sessions.all_open),
        "running": turns.running,
        "waiting": turns.waiting,
        "max_concurrent_execs": service.config.max_concurrent_execs,
        "max_queued_execs": service.config.max_queued_execs,
    }
    if call.is_operator:
        docker = next((probe.about for probe in probes if probe.engine == "docker"), {})
        answer |= {
            "workspace_root_native": str(service.workspace.root),
            "docker_cli_path": await asyncio.to_thread(shutil.which, "docker"),
            "docker_version": docker.get("docker_version"),
            "docker_context": docker.get("docker_context"),
        }
    return json_answer(answer)


def _engine(probe: Probe, *, operator: bool) -> dict[str, Any]:
    """Details and remedies speak of the machine, and so only to its operator."""
    shown = ("name", "ok", "required", "detail", "fix") if operator else ("name", "ok", "required")
    checks = [{name: getattr(check, name) for name in shown} for check in probe.checks]
    about = {"about": probe.about} if operator else {}
    return {"name": probe.engine, "usable": probe.usable, "checks": checks, **about}


async def metrics(call: Call) -> Response:
    turns = call.service.lifecycle.turns
    idle = call.service.engine.state.idle
    call.service.metrics.occupancy(running=turns.running, waiting=turns.waiting, idle=idle)
    return Response(call.service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


async def audit(call: Call) -> Response:
    service = call.service
    walked = await verify_chain(
        service.store, service.signer.public_key, left_behind=service.workspace.digests
    )
    faults = [asdict(fault) for fault in walked.faults]
    notes = [note._asdict() for note in walked.notes]
    return json_answer({"ok": not faults, "receipts": walked.receipts, "faults": faults, "notes": notes})
