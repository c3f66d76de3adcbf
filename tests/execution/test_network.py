"""A run with a way out, from the operator's files to what is written down of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.egress.places import Seen, answered, server

from belljar.config import load
from belljar.egress import addresses
from belljar.execution.live import LiveRun, Outcome
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest
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
SECRETS = "secrets: {{token: {{host: a.test, port: {port}, header: X-Key, value: {value}}}}}"
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


async def run(service: Service, code: str, tool: str | None) -> tuple[LiveRun, Outcome]:
    request = RunRequest(language=Language.PYTHON, code=code)
    live = await service.lifecycle.submit(Submission(request=request, tool=tool))
    assert isinstance(live, LiveRun)
    return live, await live.outcome()


async def test_each_decision_is_an_event_and_bytes_are_in_the_record_and_in_metrics(
    service: Service, web: tuple[int, Seen]
) -> None:
    port, seen = web
    live, outcome = await run(service, CODE.format(port=port), "code_run")
    assert outcome.result is not None
    assert outcome.result.stdout.startswith(b"b'hello'\n"), outcome
    told = [event.data async for event in live.log.follow() if event.kind == "network"]
    assert told == [
        {
            "host": "a.test",
            "port": port,
            "allowed": True,
            "rule": "tool:code_run: allowed_domains *.test",
            "address": "127.0.0.1",
            "secret": "token",
        },
        {
            "host": "b.example",
            "port": port,
            "allowed": False,
            "rule": "tool:code_run: not in allowed_domains",
            "address": "",
            "secret": "",
        },
    ]
    record = outcome.record
    assert (record.network_bytes_sent, record.network_bytes_recv) == (len(seen.text), len(answered(b"hello")))
    stored = [event.kind async for event in service.lifecycle.events(record, 0)]
    assert stored.count("network") == 2
    metrics = service.metrics.text()
    assert b'sandbox_network_contacts_total{decision="allowed"} 1.0' in metrics
    assert b'sandbox_network_contacts_total{decision="denied"} 1.0' in metrics
    assert b'sandbox_network_bytes_total{direction="sent"} %d.0' % len(seen.text) in metrics


async def test_a_secret_is_sent_and_nowhere_written_down(service: Service, web: tuple[int, Seen]) -> None:
    port, seen = web
    live, outcome = await run(service, CODE.format(port=port), "code_run")
    assert f"x-key: {VALUE}".encode() in seen.text
    assert VALUE not in repr((outcome, [event async for event in live.log.follow()]))
    files = [path for path in service.config.data_dir.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]


async def test_a_run_that_policy_gives_no_network_has_none(service: Service, web: tuple[int, Seen]) -> None:
    port, seen = web
    live, _ = await run(service, CODE.format(port=port), None)
    assert not [event async for event in live.log.follow() if event.kind == "network"]
    assert seen.connections == 0
