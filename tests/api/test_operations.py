"""Health, metrics, the chain of receipts."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING

from tests.api.served import client_of, client_with

from belljar import __version__
from belljar.engines.base import Probe
from belljar.engines.fake import FakeEngine
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2
    from tests.api.conftest import Opening


async def test_health_says_who_answers(shared: httpx2.AsyncClient) -> None:
    answer = await shared.get("/health")
    assert answer.json() == {"status": "ok", "service": "belljar", "version": __version__}


async def test_the_sandboxs_health_is_for_everybody_but_paths_are_not(shared_service: Service) -> None:
    said = {}
    for role in Role:
        async with client_with(shared_service, role) as http:
            said[role] = (await http.get("/sandbox/health")).json()
    agent = said[Role.AGENT]
    assert (agent["status"], agent["engine"], agent["runtime_mode"]) == ("ok", "fake", "linux")
    assert agent["workspace_writable"] is True
    assert agent["engines"] == [
        {"name": "fake", "usable": True, "checks": [{"name": "memory", "ok": True, "required": True}]}
    ]
    assert "workspace_root_native" not in agent
    assert said[Role.OPERATOR]["workspace_root_native"] == str(shared_service.workspace.root)
    assert "detail" in said[Role.OPERATOR]["engines"][0]["checks"][0]


async def test_the_engine_is_not_probed_for_every_caller(open_service: Opening) -> None:
    class Counting(FakeEngine):
        probes = 0

        async def probe(self) -> Probe:
            self.probes += 1
            await asyncio.sleep(0.01)
            return await super().probe()

    engine = Counting()
    async with open_service(engine) as service, client_of(service) as http:
        await asyncio.gather(*(http.get("/sandbox/health") for _ in range(10)))
    assert engine.probes == 1


async def test_metrics_count_what_ran_and_what_was_refused(http: httpx2.AsyncClient) -> None:
    await http.post("/run", json={"code": "1"})
    await http.post("/run", json={"code": "1", "limits": {"memory_mb": 99999}})
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'sandbox_executions_total{language="python",status="exited",tool="none"} 1.0' in answer.text
    assert 'sandbox_refusals_total{code="POLICY_ESCALATION"} 1.0' in answer.text
    assert "sandbox_queue_depth 0.0" in answer.text


async def test_a_whole_chain_is_in_order(http: httpx2.AsyncClient) -> None:
    for code in ("1", "exit 2", "write f x"):
        await http.post("/run", json={"code": code})
    assert (await http.get("/audit/verify")).json() == {"ok": True, "faults": []}


async def test_a_row_that_was_changed_is_found_and_named(service: Service, http: httpx2.AsyncClient) -> None:
    exec_id = (await http.post("/run", json={"code": "exit 2"})).json()["id"]
    with sqlite3.connect(service.config.data_dir / "belljar.db") as database:
        database.execute("UPDATE sandbox_execs SET exit_code = 0 WHERE exec_id = ?", (exec_id,))
    database.close()
    answer = (await http.get("/audit/verify")).json()
    assert answer["ok"] is False
    assert [(fault["kind"], fault["exec_id"]) for fault in answer["faults"]] == [("record", exec_id)]
    assert "exit_code" in answer["faults"][0]["what"]
