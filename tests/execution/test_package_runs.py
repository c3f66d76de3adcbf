"""Packages for a run, from the operator's files and the caller's request to what is written down of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.execution.wheels import Index, index, sha256, wheel

from belljar.audit.receipts import verify_chain
from belljar.audit.records import Status
from belljar.client import AsyncClient, Event
from belljar.client.apps import AppTransport
from belljar.config import Config, load
from belljar.egress import addresses
from belljar.errors import (
    ApprovalNeeded,
    BadRequest,
    BelljarError,
    Conflict,
    PackageNotAllowed,
    PackageUnavailable,
)
from belljar.execution.live import LiveRun
from belljar.execution.pending import Pending
from belljar.execution.submissions import Submission
from belljar.models import Language, Package, RunRequest, Verdict
from belljar.service import Service

pytestmark = pytest.mark.timeout(180)

ALPHA = wheel("alpha", needs=["beta>=1"])
BETA = wheel("beta", "2.0")
BOTH = [Package("alpha", "1.0", sha256(ALPHA[1])), Package("beta", "2.0", sha256(BETA[1]))]
CODE = "import alpha, beta; print(alpha.version, beta.version)"
POLICY = "policies: {default: {allowed_packages: [alpha, beta, gamma]}}"
SKILL = {
    "schema_version": "1",
    "id": "alpha.version",
    "name": "Version",
    "description": "Says which alpha there is.",
    "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
    "runtime": {"kind": "docker", "entrypoint": ["python", "main"], "packages": ["alpha"]},
}


@pytest.fixture
async def served() -> AsyncIterator[Index]:
    async with index(ALPHA, BETA) as served:
        yield served


@pytest.fixture
def config(tmp_path: Path, served: Index, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(addresses, "_lookup", lambda host: ["127.0.0.1"])
    (tmp_path / "policy.yaml").write_text(POLICY)
    skill = tmp_path / "skills" / "alpha.version"
    skill.mkdir(parents=True)
    (skill / "manifest.json").write_text(json.dumps(SKILL))
    (skill / "main").write_text(CODE)
    return replace(
        load(environ={}, cwd=Path("/"), home=tmp_path, machine_file=tmp_path / "none"),
        data_dir=tmp_path / "data",
        policy=tmp_path / "policy.yaml",
        skills_dir=tmp_path / "skills",
        packages_index_url=served.supply.index_url,
        packages_allowed_ips=served.supply.allowed_ips,
        pool_max_idle=0,
    )


@pytest.fixture
async def service(config: Config) -> AsyncIterator[Service]:
    async with Service.open(config, person=True) as service:
        yield service


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncClient]:
    from belljar.api.app import create_app_for

    transport = AppTransport(create_app_for(service))
    async with AsyncClient(
        "http://localhost", service.tokens.operator_token(), transport=transport
    ) as client:
        yield client


async def test_every_door_gets_what_was_installed_and_it_is_written_down_everywhere(
    service: Service, client: AsyncClient, served: Index
) -> None:
    events: list[Event] = []
    async for event in client.stream(CODE, packages=["alpha>=1"]):
        if isinstance(event, Event):
            events.append(event)
        else:
            result = event
    assert result.stdout == "1.0 2.0\n", result.stderr
    assert list(result.packages) == BOTH
    rows = [{"name": one.name, "version": one.version, "sha256": one.sha256} for one in BOTH]
    (told,) = [event.data for event in events if event.kind == "packages"]
    assert told == {"packages": rows, "cached": False}
    reached = [event.data for event in events if event.kind == "network"]
    assert {(one["host"], one["allowed"]) for one in reached} == {("index.test", True)}

    record = await client.get(result.id)
    assert record["packages"] == rows
    assert not [path for path in record["files_read"] if ".packages" in path]
    assert [one["reason"] for one in record["risk"]["findings"]] == ["installs packages: alpha>=1"]
    folder = service.workspace.run_folder(record["project_id"], result.id)
    assert json.loads((folder / "meta.json").read_text())["packages"] == rows
    receipt = await service.store.receipt_of(result.id)
    assert receipt is not None
    assert json.loads(receipt.body)["packages"] == rows
    assert (await verify_chain(service.store, service.signer.public_key)).faults == []

    # The other forms of a run, from what is in stock; not a byte more from the index.
    served.asked.clear()
    execed = await client.exec("python", CODE, packages=["alpha>=1"])
    assert (execed["stdout"], execed["packages"]) == ("1.0 2.0\n", rows)
    async for event in client.stream(CODE, packages=["alpha>=1"]):
        if isinstance(event, Event) and event.kind == "packages":
            assert event.data["cached"] is True
    assert served.asked == []
    invoked = await client.invoke("alpha.version")
    assert invoked["stdout"] == "1.0 2.0\n", invoked
    called = await client.call_tool("code_run", arguments={"code": CODE, "packages": ["alpha>=1"]})
    assert called["data"]["stdout"] == "1.0 2.0\n", called


@pytest.mark.parametrize(
    ("wanted", "error", "reason"),
    [
        pytest.param("gamma", PackageUnavailable, "No matching distribution found for gamma", id="none"),
        pytest.param(
            "alpha>9", PackageUnavailable, "No matching distribution found for alpha>9", id="version"
        ),
        pytest.param("numpy", PackageNotAllowed, "settings: not in allowed_packages", id="policy"),
        pytest.param("./numpy", BadRequest, "is not a package", id="path"),
    ],
)
async def test_what_cannot_or_may_not_be_installed_is_refused_and_not_lost(
    service: Service, client: AsyncClient, wanted: str, error: type[BelljarError], reason: str
) -> None:
    with pytest.raises(error, match=reason) as refused:
        await client.run(CODE, packages=[wanted])
    assert refused.value.field == "packages"
    (record,) = (await client.execs()).records
    assert record["status"] == Status.REFUSED
    assert record["error_code"] == error.code
    assert record["verdict"] is None
    assert service.lifecycle.turns.running == 0
    assert (await verify_chain(service.store, service.signer.public_key)).faults == []


async def test_who_cancels_while_packages_are_installed_ends_the_run(service: Service, served: Index) -> None:
    served.slow = asyncio.Event()
    request = RunRequest(language=Language.PYTHON, code=CODE, packages=("beta",))
    live = await service.lifecycle.submit(Submission(request=request))
    assert isinstance(live, LiveRun)
    await served.reached.wait()
    await service.lifecycle.cancel(live.record.exec_id)
    outcome = await live.outcome()
    served.slow.set()
    assert outcome.record.verdict == Verdict.CANCELLED
    assert service.lifecycle.turns.running == 0


async def test_a_person_is_asked_where_policy_wants_it(config: Config, served: Index) -> None:
    assert config.policy is not None
    config.policy.write_text("policies: {default: {allowed_packages: [beta], approve_code_at: high}}")
    async with Service.open(config, person=True) as service:
        from belljar.api.app import create_app_for

        token = service.tokens.operator_token()
        transport = AppTransport(create_app_for(service))
        async with AsyncClient("http://localhost", token, transport=transport) as client:
            with pytest.raises(ApprovalNeeded) as needed:
                await client.run("print(1)", packages=["beta"])
            shown = await client.approvals.show(needed.value.approval_id)
    assert shown["packages"] == ["beta"]
    assert served.asked == []


@pytest.mark.parametrize("packages", ["numpy", [1], {"numpy": 1}, ["a\0b"]])
async def test_packages_that_are_no_list_of_texts_are_refused(client: AsyncClient, packages: object) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.run("print(1)", packages=packages)  # type: ignore[arg-type]
    assert (refused.value.field or "").startswith("packages")


async def test_the_same_request_with_other_packages_is_another_request(client: AsyncClient) -> None:
    await client.run("print(1)", request_id="once")
    with pytest.raises(Conflict):
        await client.run("print(1)", request_id="once", packages=["beta"])


def test_a_request_that_waits_keeps_its_packages(tmp_path: Path) -> None:
    pending = Pending(tmp_path / "pending")
    submission = Submission(request=RunRequest(code="print(1)", packages=("numpy>=2",)))
    pending.save("ex-1", submission)
    loaded = pending.load("ex-1")
    assert loaded is not None
    assert loaded.request.packages == ("numpy>=2",)
    assert loaded.digest == submission.digest
