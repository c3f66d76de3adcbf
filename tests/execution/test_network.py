"""A run with a way out, from the operator's files to what is written down of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.egress.places import Seen, answered, server

from belljar.audit.receipts import verify_chain
from belljar.config import load
from belljar.egress import addresses
from belljar.engines.guestjar import GuestJar
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest, Verdict
from belljar.service import Service

VALUE = "s3cr3t-w0rd"
POLICY = """
policies:
  tools:
    code_run:
      network_access: true
      allowed_domains: ["*.test"]
      allowed_ports: [{port}]
      allowed_ips: [127.0.0.0/8]
"""
SECRETS = """
secrets:
  token: {{host: a.test, port: {port}, header: X-Key, value: {value}, projects: [default]}}
"""
CODE = """
import urllib.request
for host in ("a.test", "b.example"):
    try:
        print(urllib.request.urlopen(f"http://{{host}}:{port}/").read())
    except OSError as error:
        print(error)
"""


@pytest.fixture
async def web() -> AsyncIterator[tuple[int, Seen]]:
    async with server(answered(b"hello")) as (port, seen):
        yield port, seen


@pytest.fixture
async def service(
    tmp_path: Path, web: tuple[int, Seen], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    monkeypatch.setattr(addresses, "_lookup", lambda host: ["127.0.0.1"])
    policy, secrets = tmp_path / "policy.yaml", tmp_path / "secrets.yaml"
    policy.write_text(POLICY.format(port=web[0]))
    secrets.touch(mode=0o600)
    secrets.write_text(SECRETS.format(port=web[0], value=VALUE))
    config = replace(
        load(environ={}, cwd=Path("/"), home=tmp_path, machine_file=tmp_path / "none"),
        data_dir=tmp_path / "data",
        policy=policy,
        network_secrets=secrets,
    )
    async with Service.open(config, person=True) as service:
        yield service


async def run(
    service: Service, code: str, tool: str | None, project_id: str = "default"
) -> tuple[LiveRun, Outcome]:
    request = RunRequest(language=Language.PYTHON, code=code)
    live = await service.lifecycle.submit(Submission(request=request, tool=tool, project_id=project_id))
    assert isinstance(live, LiveRun)
    return live, await live.outcome()


async def test_each_decision_is_an_event_and_a_row_and_bytes_are_in_the_record_and_in_metrics(
    service: Service, web: tuple[int, Seen]
) -> None:
    port, seen = web
    live, outcome = await run(service, CODE.format(port=port), "code_run")
    assert outcome.result is not None
    assert outcome.result.stdout.startswith(b"b'hello'\n"), outcome
    told = [dict(event.data) async for event in live.log.follow() if event.kind == "network"]
    moments = [datetime.fromisoformat(one.pop("at")) for one in told]
    assert told == [
        {
            "number": 1,
            "host": "a.test",
            "port": port,
            "allowed": True,
            "rule": "tool:code_run: allowed_domains *.test",
            "address": "127.0.0.1",
            "secret": "token",
        },
        {
            "number": 2,
            "host": "b.example",
            "port": port,
            "allowed": False,
            "rule": "tool:code_run: not in allowed_domains",
            "address": "",
            "secret": "",
        },
    ]
    record = outcome.record
    moved = (len(seen.text), len(answered(b"hello")))
    assert (record.network_bytes_sent, record.network_bytes_recv) == moved
    rows = await service.store.network_decisions(record.exec_id)
    assert [(row.number, row.at, row.host, row.rule, row.secret) for row in rows] == [
        (one["number"], moment, one["host"], one["rule"], one["secret"])
        for one, moment in zip(told, moments, strict=True)
    ]
    assert [(row.sent, row.received) for row in rows] == [moved, (0, 0)]
    assert {(row.exec_id, row.project_id) for row in rows} == {(record.exec_id, record.project_id)}
    said = record.network_decisions
    assert (said["total"], said["refused"], said["rows"]) == (2, 1, 2)
    assert (await verify_chain(service.store, service.signer.public_key)).faults == []
    stored = [event.kind async for event in service.lifecycle.events(record, 0)]
    assert stored.count("network") == 2
    metrics = service.metrics.text()
    assert b'sandbox_network_contacts_total{decision="allowed"} 1.0' in metrics
    assert b'sandbox_network_contacts_total{decision="denied"} 1.0' in metrics
    assert b'sandbox_network_bytes_total{direction="sent"} %d.0' % len(seen.text) in metrics


async def test_a_run_whose_jar_is_lost_has_the_rows_of_what_is_known(
    service: Service, web: tuple[int, Seen]
) -> None:
    request = RunRequest(
        language=Language.PYTHON, code=CODE.format(port=web[0]) + "import time; time.sleep(60)"
    )
    live = await service.lifecycle.submit(Submission(request=request, tool="code_run"))
    assert isinstance(live, LiveRun)
    decided = 0
    async for event in live.log.follow():
        decided += event.kind == "network"
        if decided == 2 and isinstance(live.jar, GuestJar):
            live.jar.link.fail("the test cut it off")
    record = (await live.outcome()).record
    assert record.verdict == Verdict.LOST
    rows = await service.store.network_decisions(record.exec_id)
    assert [(row.host, row.allowed) for row in rows] == [("a.test", True), ("b.example", False)]
    assert (await verify_chain(service.store, service.signer.public_key)).faults == []


async def test_a_secret_is_sent_and_nowhere_written_down(service: Service, web: tuple[int, Seen]) -> None:
    port, seen = web
    live, outcome = await run(service, CODE.format(port=port), "code_run")
    assert f"x-key: {VALUE}".encode() in seen.text
    assert VALUE not in repr((outcome, [event async for event in live.log.follow()]))
    files = [path for path in service.config.data_dir.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]


async def test_a_secret_of_one_project_is_not_sent_for_another(
    service: Service, web: tuple[int, Seen]
) -> None:
    port, seen = web
    _, outcome = await run(service, CODE.format(port=port), "code_run", "other")
    assert outcome.result is not None
    assert outcome.result.stdout.startswith(b"b'hello'\n")
    assert b"x-key" not in seen.text
    rows = await service.store.network_decisions(outcome.record.exec_id)
    assert [row.secret for row in rows] == ["", ""]


async def test_a_run_that_policy_gives_no_network_has_none(service: Service, web: tuple[int, Seen]) -> None:
    port, seen = web
    live, _ = await run(service, CODE.format(port=port), None)
    assert not [event async for event in live.log.follow() if event.kind == "network"]
    assert seen.connections == 0
