"""One engine, its canaries and a neighbour for all hostile programs, and the count of them at the end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.hostile.attacks import SMALL
from tests.hostile.canaries import Canaries, cgroup_claims, descendants
from tests.hostile.glass import Glass

from belljar.engines import seccomp
from belljar.engines.jail.engine import JailEngine
from belljar.models import Grant

ALLOW_EVERYTHING = b"\x06\x00\x00\x00\x00\x00\xff\x7f"
"""A filter of one instruction: return SECCOMP_RET_ALLOW."""


@pytest.fixture(scope="session")
def _session_glass() -> Iterator[Glass]:
    with Canaries() as canaries, asyncio.Runner() as runner:
        engine, unfiltered = JailEngine(), JailEngine()
        try:
            runner.run(_start_unfiltered(unfiltered))
            glass = Glass(runner, engine, unfiltered, canaries)
            yield glass
            glass.close()
        finally:
            runner.run(engine.close())
            runner.run(unfiltered.close())
    assert not cgroup_claims()
    assert not list(descendants(os.getpid()))


async def _start_unfiltered(engine: JailEngine) -> None:
    """The launcher keeps the filter that it was started with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seccomp, "compile_profile", lambda *_: ALLOW_EVERYTHING)
        jar = await engine.create(Grant(limits=SMALL, accept_weaker_limits=True))
    await jar.destroy()


@pytest.fixture
def glass(_session_glass: Glass, request: pytest.FixtureRequest) -> Glass:
    _session_glass.notes = request.node.user_properties
    return _session_glass


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count: Counter[object] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.when == "call":
                notes = [value for name, value in report.user_properties if name == "hostile"]
                count.update(notes if outcome == "passed" else ["run"] * notes.count("run"))
    if count["run"]:
        terminalreporter.write_line(
            f"hostile programs: {count['run']} run, {count['contained']} contained; effective without the "
            f"guard: {count['effective']} of {count['run']}; probes: {count['probe']}"
        )
