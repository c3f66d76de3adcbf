"""Packages for a program, on every engine that has a guest: installed in a jar of it, found in another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engines.conftest import ENGINES, NAMED
from tests.execution.wheels import index, way_out, wheel

from belljar.engines.base import Engine
from belljar.execution import runs
from belljar.execution.packages import Packages
from belljar.execution.stock import Stock
from belljar.models import Grant, Language, Limits, PatternRules, RunRequest

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.essential,
    pytest.mark.timeout(300),  # pip takes seconds to start, on a slow engine many
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(ENGINES.keys() - {"fake"}))
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    engine = ENGINES[request.param](way_out=way_out())
    probe = await engine.probe()
    if not probe.usable:
        give_up = pytest.fail if request.param in NAMED else pytest.skip
        give_up(f"{engine.name} cannot be used here: {probe.missing}")
    yield engine
    await engine.close()


async def test_a_program_finds_what_was_installed_for_it(engine: Engine, tmp_path: Path) -> None:
    rules = (PatternRules("settings", allow=("*",)),)
    asked = Grant(limits=Limits(timeout_s=60), packages=rules, accept_weaker_limits=True)
    grant = await engine.fit(asked, Language.PYTHON)
    code = "import alpha, beta\nprint(alpha.version, beta.version)\nopen(alpha.__file__, 'a')"
    request = RunRequest(language=Language.PYTHON, code=code, packages=("alpha",))
    async with index(wheel("alpha", needs=["beta"]), wheel("beta", "2.0")) as served:
        packages = Packages(served.supply, Stock(tmp_path / "stock", 10))
        installed = await packages.prepare(engine, grant, request.packages)
    result = await runs.run(engine, grant, request, installed)
    assert result.stdout == b"1.0 2.0\n", result.stderr
    assert b"Read-only file system" in result.stderr or b"Permission denied" in result.stderr
    assert [package.name for package in result.packages] == ["alpha", "beta"]
    assert result.artifacts == ()
