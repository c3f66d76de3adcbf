"""Health, metrics, the chain of receipts."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from tests.api.served import client_of, client_with, python3

from belljar import __version__
from belljar.api.desk import Patience
from belljar.engines.base import Probe
from belljar.engines.fake import FakeEngine
from belljar.engines.jail.engine import JailEngine
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
    assert agent["engines"][0] == {
        "name": "fake",
        "usable": True,
        "checks": [{"name": "memory", "ok": True, "required": True}],
    }
    hidden = {"workspace_root_native", "docker_cli_path", "docker_version", "docker_context"}
    assert not hidden & set(agent)
    assert all(set(engine) == {"name", "usable", "checks"} for engine in agent["engines"])
    assert all(
        set(check) == {"name", "ok", "required"} for engine in agent["engines"] for check in engine["checks"]
    )
    operator = said[Role.OPERATOR]
    assert hidden <= set(operator)
    assert operator["workspace_root_native"] == str(shared_service.workspace.root)
    assert operator["docker_cli_path"] == shutil.which("docker")
    assert "detail" in operator["engines"][0]["checks"][0]


async def test_health_tells_of_every_engine_also_of_those_that_are_not_there(
    open_service: Opening, tmp_path: Path
) -> None:
    settings = {"docker_host": f"unix://{tmp_path}/none.sock"}
    async with open_service(JailEngine(), **settings) as service, client_of(service) as http:
        health = (await http.get("/sandbox/health")).json()
    assert health["status"] == "ok"
    assert [(one["name"], one["usable"]) for one in health["engines"]] == [
        ("jail", True),
        ("docker", False),
        ("gvisor", False),
    ]
    assert "no docker engine answers" in health["engines"][1]["checks"][0]["detail"]
    assert (health["docker_version"], health["docker_context"]) == (None, None)


async def test_health_does_not_wait_for_an_engine_that_hangs(open_service: Opening) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        settings = {"docker_host": f"tcp://127.0.0.1:{hangs.getsockname()[1]}"}
        async with (
            open_service(**settings) as service,
            client_of(service, patience=Patience(probing_s=0.1)) as http,
        ):
            health = (await http.get("/sandbox/health")).json()
    told = {one["name"]: one["checks"][0]["detail"] for one in health["engines"]}
    assert told["docker"] == told["gvisor"] == "it did not answer within 0.1 s"


async def test_health_tells_which_docker_it_is(open_service: Opening) -> None:
    async with docker_of(version="28.1.0") as host, open_service(docker_host=host) as service:
        async with client_of(service) as http:
            health = (await http.get("/sandbox/health")).json()
    assert (health["docker_version"], health["docker_context"]) == ("28.1.0", "default")


@asynccontextmanager
async def docker_of(*, version: str) -> AsyncIterator[str]:
    """An engine that says what it is, and has no images. Where it is."""

    async def answered(request: web.Request) -> web.Response:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        if request.path.endswith("/info"):
            return web.json_response({"ServerVersion": version})
        return web.json_response({"message": "no such image"}, status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "tcp://{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


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


def counted(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_metrics_tell_what_ran_what_runs_what_waits_and_what_was_refused(open_service: Opening) -> None:
    engine = FakeEngine(programs={"python3": python3})
    async with open_service(engine, max_concurrent_execs=1, max_queued_execs=1) as service:
        async with client_of(service) as http:
            assert (await http.post("/run", json={"code": "sleep 0.01"})).status_code == 200
            assert (
                await http.post("/run", json={"code": "1", "limits": {"memory_mb": 99999}})
            ).status_code == 403
            long = {"exec": {"kind": "python", "command": "sleep 60"}, "wait": False}
            for _ in range(2):
                assert (await http.post("/sandbox/execs", json=long)).status_code == 202
            assert (await http.post("/run", json={"code": "1"})).status_code == 429
            answer = await http.get("/metrics")
            for exec_id in service.lifecycle.live_ids:
                await service.lifecycle.cancel(exec_id)
    assert answer.headers["content-type"].startswith("text/plain")
    found = counted(answer.text)
    assert found['sandbox_executions_total{language="python",status="exited",tool="code_run"}'] == 1
    assert found['sandbox_execution_duration_seconds_count{tool="code_run"}'] == 1
    assert found['sandbox_execution_duration_seconds_sum{tool="code_run"}'] > 0
    assert 'sandbox_memory_usage_bytes{tool="code_run"}' in found
    assert 'sandbox_cpu_usage_seconds{tool="code_run"}' in found
    assert found['sandbox_pool_size{status="busy"}'] == 1
    assert found['sandbox_policy_violations_total{reason="POLICY_ESCALATION",tool="code_run"}'] == 1
    assert found['sandbox_refusals_total{code="POLICY_ESCALATION"}'] == 1
    assert found['sandbox_refusals_total{code="QUEUE_FULL"}'] == 1
    assert found["sandbox_queue_depth"] == 1
    assert found["sandbox_jar_start_seconds_count"] >= 1


async def test_what_a_real_jar_used_is_in_the_metrics(open_service: Opening) -> None:
    async with open_service(JailEngine()) as service, client_of(service) as http:
        await http.post("/run", json={"code": "sum(range(10**6))"})
        found = counted((await http.get("/metrics")).text)
    assert found['sandbox_memory_usage_bytes{tool="code_run"}'] > 0
    assert found['sandbox_cpu_usage_seconds{tool="code_run"}'] > 0
    assert found["sandbox_jar_start_seconds_sum"] > 0


async def test_a_whole_chain_is_in_order(http: httpx2.AsyncClient) -> None:
    for code in ("1", "exit 2", "write f x"):
        await http.post("/run", json={"code": code})
    assert (await http.get("/audit/verify")).json() == {
        "ok": True,
        "receipts": 3,
        "faults": [],
        "notes": [],
    }


async def test_what_was_never_kept_is_noted_and_not_taken_for_retention(
    service: Service, http: httpx2.AsyncClient
) -> None:
    service.workspace.project("default").mkdir()
    (service.workspace.project("default") / "artifacts").touch()  # where folders are to go
    exec_id = (await http.post("/run", json={"code": "write f x"})).json()["id"]
    answer = (await http.get("/audit/verify")).json()
    what = "the run's own files could not be kept: Not a directory"
    assert (answer["ok"], answer["notes"]) == (True, [{"number": 1, "exec_id": exec_id, "what": what}])


async def test_a_row_that_was_changed_is_found_and_named(service: Service, http: httpx2.AsyncClient) -> None:
    exec_id = (await http.post("/run", json={"code": "exit 2"})).json()["id"]
    with sqlite3.connect(service.config.data_dir / "belljar.db") as database:
        database.execute("UPDATE sandbox_execs SET exit_code = 0 WHERE exec_id = ?", (exec_id,))
    database.close()
    answer = (await http.get("/audit/verify")).json()
    assert answer["ok"] is False
    assert [(fault["kind"], fault["exec_id"]) for fault in answer["faults"]] == [("record", exec_id)]
    assert "exit_code" in answer["faults"][0]["what"]


async def test_an_artifact_that_was_changed_is_found_and_named(
    service: Service, http: httpx2.AsyncClient
) -> None:
    exec_id = (await http.post("/run", json={"code": "write f x"})).json()["id"]
    (service.workspace.run_folder("default", exec_id) / "files/f").write_text("y")
    answer = (await http.get("/audit/verify")).json()
    assert [(fault["kind"], fault["exec_id"]) for fault in answer["faults"]] == [("artifact", exec_id)]
