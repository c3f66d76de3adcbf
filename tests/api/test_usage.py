"""What jars take, as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator
from tests.api.served import client_of

from belljar.api.openapi import document
from belljar.engines.jail.engine import JailEngine
from belljar.execution.live import LiveRun

if TYPE_CHECKING:
    from tests.api.conftest import Opening


async def test_what_a_run_takes_is_told_in_the_words_of_the_seed(open_service: Opening) -> None:
    async with open_service(JailEngine()) as service, client_of(service) as http:
        program = {"kind": "python", "command": "print(1, flush=True); import time; time.sleep(600)"}
        body = {"project_id": "p1", "exec": program, "wait": False}
        exec_id = (await http.post("/sandbox/execs", json=body)).json()["exec_id"]
        live = service.lifecycle.live(exec_id)
        assert isinstance(live, LiveRun)
        async for event in live.log.follow():
            if event.kind == "stdout":
                break
        await service.sampler.look()
        answer = (await http.get("/sandbox/usage")).json()
        live.cancel()
    [usage] = answer["usage"]
    assert (usage["kind"], usage["id"], usage["project_id"]) == ("run", exec_id, "p1")
    assert 0 < usage["memory_usage_mb"] < usage["memory_limit_mb"]
    assert usage["pids_current"] >= 1
    assert {"cpu_usage_percent", "network_rx_bytes", "network_tx_bytes"} <= set(usage)
    schema = document()["paths"]["/sandbox/usage"]["get"]["responses"]["200"]["content"]["application/json"]
    Draft202012Validator(schema["schema"]).validate(answer)
