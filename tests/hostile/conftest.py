"""One engine, its canaries and a neighbour for all hostile programs, and the count of them at the end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.engines.conftest import ENGINES as ALL_ENGINES
from tests.engines.conftest import has_its_stock
from tests.hostile.attacks import SMALL
from tests.hostile.canaries import Canaries, cgroup_claims, descendants
from tests.hostile.glass import Glass

from belljar.engines import seccomp
from belljar.engines.base import Engine, Jar
from belljar.engines.docker import container
from belljar.models import Grant

ALLOW_EVERYTHING = b"\x06\x00\x00\x00\x00\x00\xff\x7f"
"""A filter of one instruction: return SECCOMP_RET_ALLOW."""


ENGINES = {name: make for name, make in ALL_ENGINES.items() if name != "fake"}
NAMED = [name for name in os.environ.get("ENGINES", "").split(",") if name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Everything on the jail; on the others what is marked `every_engine`, unless ENGINES names them."""
    if "glass" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker
        engines = NAMED or (ENGINES if marked("every_engine") else ["jail"])
        if marked("jail_only"):
            engines = [name for name in engines if name == "jail"]
        if marked("shared_kernel"):
            engines = [name for name in engines if name != "gvisor"]
        metafunc.parametrize("_session_glass", engines, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is left without an engine is not for those that were named."""
    marks = ("jail_only", "shared_kernel")
    unwanted = [item for item in items if any(map(item.get_closest_marker, marks)) and "NOTSET" in item.name]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_engine: also run on engines that are too slow for everything")
    config.addinivalue_line("markers", "jail_only(reason): looks different elsewhere; see docs/engines.md")
    config.addinivalue_line("markers", "shared_kernel(reason): not on gVisor's own; see docs/engines.md")


class Unfiltered:
    """An engine whose jars have a filter that allows everything."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.probe = engine.probe
        self.interpreters = engine.interpreters
        self.fit = engine.fit
        self.close = engine.close

    async def create(self, grant: Grant) -> Jar:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seccomp, "compile_profile", lambda *_: ALLOW_EVERYTHING)
            patch.setattr(container, "_profile", lambda: '{"defaultAction": "SCMP_ACT_ALLOW"}')
            return await self._engine.create(grant)


@pytest.fixture(scope="session")
def _session_glass(request: pytest.FixtureRequest) -> Iterator[Glass]:
    with Canaries() as canaries, asyncio.Runner() as runner:
        engine, other = ENGINES[request.param](), ENGINES[request.param]()
        unfiltered = Unfiltered(other)
        probe = runner.run(engine.probe())
        if not probe.usable:
            give_up = pytest.fail if request.param in NAMED else pytest.skip
            give_up(f"{engine.name} cannot be used here: {probe.missing}")
        try:
            jar = runner.run(unfiltered.create(Grant(limits=SMALL, accept_weaker_limits=True)))
            runner.run(jar.destroy())
            glass = Glass(
                runner,
                engine,
                unfiltered,
                canaries,
                has_stock=lambda: has_its_stock(engine) and has_its_stock(other),
            )
            yield glass
            glass.close()
        finally:
            runner.run(engine.close())
            runner.run(unfiltered.close())
    assert not cgroup_claims()
    assert not list(descendants(os.getpid()))


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
