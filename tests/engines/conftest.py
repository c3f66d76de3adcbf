"""Fixtures by stage of life: an engine, a jar of it. What a test leaves on the host fails that test.

`ENGINES=jail,fake` restricts the suite to those engines; one that is named and cannot be had is then a
failure instead of a skip.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from belljar.engines.fake import FakeEngine
from belljar.engines.jail.engine import JailEngine
from belljar.models import Grant, Limits, OnOutputLimit

if TYPE_CHECKING:
    from belljar.engines.base import Engine, Jar

ENGINES: dict[str, Callable[[], Engine]] = {"fake": FakeEngine, "jail": JailEngine}
NAMED = {name for name in os.environ.get("ENGINES", "").split(",") if name}

MakeJar = Callable[..., Awaitable["Jar"]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if unknown := NAMED - ENGINES.keys():
        raise pytest.UsageError(f"ENGINES names {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    callspecs = [(item, getattr(item, "callspec", None)) for item in items]
    unwanted = [
        item for item, spec in callspecs if NAMED and spec and spec.params.get("engine", "") not in {"", *NAMED}
    ]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


@dataclass(frozen=True)
class Footprint:
    """What this process has of the host, as far as an engine could leave something in it."""

    descriptors: frozenset[tuple[str, str]]
    processes: frozenset[int]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    tasks: frozenset[asyncio.Task[object]]

    @classmethod
    def now(cls) -> Footprint:
        return cls(
            descriptors=frozenset(_descriptors()),
            processes=frozenset(descendants(os.getpid())),
            cgroups=frozenset(
                folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f"/belljar-{os.getpid()}-" in folder
            ),
            mounts=frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
            tasks=frozenset(asyncio.all_tasks() - {asyncio.current_task()}),
        )

    async def restored(self, patience_s: float = 2.0) -> None:
        """Fails unless everything is as it was; transports may take a turn of the loop to close."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            now = Footprint.now()
            names = (field.name for field in fields(self))
            left = {name: extra for name in names if (extra := getattr(now, name) - getattr(self, name))}
            if not left:
                return
            assert asyncio.get_running_loop().time() < deadline, f"left behind: {left}"
            await asyncio.sleep(0.01)


def _descriptors() -> list[tuple[str, str]]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except FileNotFoundError:
            pass  # of the listing itself
    return found


def descendants(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        children = [int(c) for t in tasks for c in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return children + [below for child in children for below in descendants(child)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(ENGINES))
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    before = Footprint.now()
    engine = ENGINES[request.param]()
    probe = await engine.probe()
    if not probe.usable:
        missing = "; ".join(f"{check.name}: {check.detail}" for check in probe.missing)
        (pytest.fail if request.param in NAMED else pytest.skip)(f"{engine.name} cannot be used here: {missing}")
    await (await engine.create(_grant())).destroy()  # what is made once is made now
    yield engine
    await engine.close()
    await before.restored()


def _grant(on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE, **limits: float) -> Grant:
    # Weaker limits are accepted, so that an ordinary user without a cgroup can keep the contract too.
    return Grant(
        limits=Limits(**limits),  # type: ignore[arg-type]
        on_output_limit=on_output_limit,
        accept_weaker_limits=True,
    )


@pytest_asyncio.fixture(loop_scope="module")
async def make_jar(engine: Engine) -> AsyncIterator[MakeJar]:
    """Jars with the given limits; they are destroyed at the end, and then nothing of them may be left."""
    before = Footprint.now()
    jars: list[Jar] = []

    async def make(on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE, **limits: float) -> Jar:
        jars.append(await engine.create(_grant(on_output_limit, **limits)))
        return jars[-1]

    yield make
    for jar in jars:
        await jar.destroy()
    await before.restored()


@pytest.fixture
def footprint() -> Callable[[], Footprint]:
    return Footprint.now


@pytest_asyncio.fixture(loop_scope="module")
async def jar(make_jar: MakeJar) -> Jar:
    return await make_jar()
