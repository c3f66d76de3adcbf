"""A grant with a network: the same way out on every engine that has a guest, or a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.egress.jars import run
from tests.egress.places import answered, egress, network, server
from tests.engines.conftest import ENGINES, NAMED

from belljar.engines.base import Engine
from belljar.errors import GrantNotEnforceable
from belljar.models import Grant, Language, Limits, Network

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.essential]

LIMITS = Limits(timeout_s=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(ENGINES.keys() - {"fake"}))
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    engine = ENGINES[request.param](way_out=egress())
    probe = await engine.probe()
    if not probe.usable:
        give_up = pytest.fail if request.param in NAMED else pytest.skip
        give_up(f"{engine.name} cannot be used here: {probe.missing}")
    yield engine
    await engine.close()


async def test_a_program_reaches_what_it_was_granted_and_nothing_else(engine: Engine) -> None:
    async with server(answered(bytes(3_000_000))) as (port, seen):
        result, contacts = await run(
            engine,
            network(port),
            f"""
            import socket, urllib.request
            print(len(urllib.request.urlopen("http://a.test:{port}/").read()))
            try:
                urllib.request.urlopen("http://b.test:{port}/")
            except OSError as error:
                print(error)
            try:
                socket.create_connection(("127.0.0.1", {port}), 5)
            except OSError as error:
                print(error)
            """,
            Language.PYTHON,
            limits=LIMITS,
        )
    first, *refused = result.stdout.decode().splitlines()
    assert first == "3000000", result
    assert "b.test" in refused[0]
    assert "refused" in refused[1]
    assert [(contact.host, contact.allowed) for contact in contacts] == [("a.test", True), ("b.test", False)]
    assert seen.connections == 1
    assert result.usage.network_bytes_recv == len(answered(bytes(3_000_000)))


async def test_a_jar_without_network_has_no_proxy(engine: Engine) -> None:
    code = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)))"
    result, _ = await run(engine, Network(), code, Language.PYTHON, limits=LIMITS)
    assert result.stdout == b"111\n"


@pytest.mark.parametrize("name", sorted(ENGINES))
async def test_an_engine_without_egress_refuses_a_network(name: str) -> None:
    engine = ENGINES[name]()
    with pytest.raises(GrantNotEnforceable) as refused:
        await engine.create(Grant(network=network(80), accept_weaker_limits=True))
    assert refused.value.field == "network"
    await engine.close()
