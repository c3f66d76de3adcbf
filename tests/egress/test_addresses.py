"""From names to connections, with the system's own resolver, in a network that the test makes itself."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.egress import addresses
from belljar.egress.addresses import Unreachable, connect, vetted
from belljar.models import Network

ROOT = Path(__file__).parents[2]
NETWORK = """
set -e
mount --bind "$1" /etc/resolv.conf
ip link set lo up
for address in 93.184.216.34/32 169.254.169.254/32; do ip address add "$address" dev lo; done
ip -6 address add 2606:4700::1111/128 dev lo nodad
shift
exec "$@"
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Any:
    """Asks for hosts in a network namespace of its own, where only the name server of the test is."""
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("a network of one's own takes root and iproute2")
    settings = tmp_path / "resolv.conf"
    settings.write_text("nameserver 127.0.0.1\nsearch evil.example\n")

    def ask(*hosts: str) -> dict[str, Any]:
        program = [sys.executable, "-m", "tests.egress.elsewhere", *hosts]
        done = subprocess.run(
            ["unshare", "--net", "--mount", "sh", "-c", NETWORK, "sh", str(settings), *program],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return ask


def test_a_name_with_a_public_address_is_reached(elsewhere: Any) -> None:
    found = elsewhere("good.test", "six.test")
    assert found["told"] == [["200", "public"], ["200", "public six"]]


def test_a_name_that_turns_private_is_not_reached(elsewhere: Any) -> None:
    """One lookup for each request: what was vetted is what was connected to."""
    found = elsewhere("rebound.test", "rebound.test", "rebound.test")
    assert [status for status, _ in found["told"]] == ["200", "403", "200"]
    assert found["reached"] == [0, 0]
    assert found["asked"] == {"rebound.test": 6}


def test_no_private_address_is_reached_by_whatever_name(elsewhere: Any) -> None:
    found = elsewhere("both.test", "local.test", "mapped.test")
    assert [status for status, _ in found["told"]] == ["403", "403", "403"]
    assert found["reached"] == [0, 0]


def test_a_name_that_is_not_there_is_not_looked_for_elsewhere(elsewhere: Any) -> None:
    """The search list of the machine would turn it into a name that nobody allowed."""
    found = elsewhere("absent.test")
    assert found["told"] == [["502", "belljar: absent.test: there is no such name\n"]]
    assert list(found["asked"]) == ["absent.test"]


async def test_a_name_server_that_does_not_answer_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "LOOKUP_S", 0.05)

    async def silent(host: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(Unreachable, match="do not answer"):
        await vetted(silent, Network(True), "a.test")


async def test_nobody_at_the_address_is_said_so() -> None:
    with pytest.raises(Unreachable, match="refused"):
        await connect(["127.0.0.1"], 1)
