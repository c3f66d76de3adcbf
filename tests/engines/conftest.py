"""Fixtures by stage of life: an engine, a jar of it. What a test leaves on the host fails that test.

`ENGINES=jail,fake` restricts the suite to those engines; one that is named and cannot be had is then a
failure instead of a skip. gVisor is slow: unless it is named, it keeps only what is marked `essential`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import pytest_asyncio

from belljar.engines.docker import labels
from belljar.engines.docker.engine import DockerEngine
from belljar.engines.fake import FakeEngine
from belljar.engines.jail import delegation
from belljar.engines.jail.engine import JailEngine
from belljar.models import Grant, Limits, OnOutputLimit
from belljar.processes import epoch

if TYPE_CHECKING:
    from belljar.engines.base import Engine, Jar

ENGINES: dict[str, Callable[..., Engine]] = {
    "docker": DockerEngine,
    "fake": FakeEngine,
    "gvisor": partial(DockerEngine, name="gvisor", runtime="runsc"),
    "jail": JailEngine,
}
NAMED = {name for name in os.environ.get("ENGINES", "").split(",") if name}

MakeJar = Callable[..., Awaitable["Jar"]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if unknown := NAMED - ENGINES.keys():
        raise pytest.UsageError(f"ENGINES names {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    unwanted = [item for item in items if not _is_wanted(item)]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "essential: also run on engines that are too slow for everything")


def _is_wanted(item: pytest.Item) -> bool:
    engine = _engine_of(item)
    if NAMED:
        return engine is None or engine in NAMED
    return engine != "gvisor" or item.get_closest_marker("essential") is not None


def _engine_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("engine") if callspec else None


@dataclass(frozen=True)
class Footprint:
    """What this process has of the host, as far as an engine could leave something in it."""

    descriptors: frozenset[tuple[str, str]]
    mounts: frozenset[str]
    tasks: frozenset[asyncio.Task[object]]
    processes: frozenset[tuple[int, str]]
    """Ours and all below them, with the name of what each runs."""
    cgroups: frozenset[str]
    containers: frozenset[str]

    @classmethod
    def now(cls) -> Footprint:
        ours = frozenset(containers())
        return cls(
            descriptors=frozenset(_descriptors()),
            mounts=frozenset(
                point
                for line in _lines("/proc/self/mountinfo")
                if not (point := line.split()[4]).startswith(("/run/", "/sys/", "/var/"))  # others' business
            ),
            tasks=frozenset(task for task in asyncio.all_tasks() if task is not asyncio.current_task()),
            processes=frozenset([*_descendants(os.getpid()), *_contained(ours)]),
            cgroups=frozenset(
                folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f"/belljar-{os.getpid()}-" in folder
            ),
            containers=ours,
        )

    async def restored(self, patience_s: float = 60.0) -> None:
        """Fails unless there is no more than there was; an engine may just be asking docker what was left."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while left := self._more(Footprint.now()):
            assert asyncio.get_running_loop().time() < deadline, f"left behind: {left}"
            await asyncio.sleep(0.01)

    def _more(self, now: Footprint) -> dict[str, object]:
        """By number, because an engine may keep a fresh jar ready in place of each that was used."""
        return {
            field.name: getattr(now, field.name) - getattr(self, field.name)
            for field in fields(self)
            if len(getattr(now, field.name)) > len(getattr(self, field.name))
        }


def _descriptors() -> list[tuple[str, str]]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except FileNotFoundError:
            pass  # of the listing itself
    return found


def _descendants(pid: int) -> list[tuple[int, str]]:
    found = []
    for child in _children(pid):
        found += [(child, "".join(_lines(f"/proc/{child}/comm"))), *_descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended meanwhile
    listed = [line for task in tasks for line in _lines(f"/proc/{pid}/task/{task}/children")]
    return [int(child) for line in listed for child in line.split()]


def has_its_stock(engine: Engine) -> bool:
    """Whether the jar that a jail has ordered ahead is there: one that comes later looks like one that was left."""
    if not isinstance(engine, JailEngine) or engine._opening is None or engine._blank is None:
        return True
    launchers = _children(engine._opening.result()._process.pid)
    return sum(len(_children(launcher)) for launcher in launchers) > len(engine._jars)


def containers() -> list[str]:
    """Ids of this process's containers; none where no docker engine answers."""
    sock = socket.socket(socket.AF_UNIX)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = sock
    wanted = quote(json.dumps({"label": [f"{labels.EPOCH}={epoch()}"]}))
    try:
        sock.connect("/var/run/docker.sock")
        connection.request("GET", f"/containers/json?all=1&filters={wanted}")
        return [container["Id"] for container in json.load(connection.getresponse())]
    except OSError:
        return []
    finally:
        connection.close()


def _contained(ids: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Processes in containers: below the engine, not below us."""
    for container in ids:
        for place in ("pids/docker/{}", "docker/{}", "system.slice/docker-{}.scope"):
            for pid in _lines(f"/sys/fs/cgroup/{place.format(container)}/cgroup.procs"):
                yield int(pid), "".join(_lines(f"/proc/{pid}/comm"))


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []  # of a process or a cgroup that has ended meanwhile


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(ENGINES))
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    before = Footprint.now()
    engine = ENGINES[request.param]()
    probe = await engine.probe()
    if not probe.usable:
        missing = "; ".join(f"{check.name}: {check.detail}" for check in probe.missing)
        give_up = pytest.fail if request.param in NAMED else pytest.skip
        give_up(f"{engine.name} cannot be used here: {missing}")
    yield engine
    await engine.close()
    await before.restored()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def idle(engine: Engine) -> Footprint:
    """What an engine has when it has run something: a process of its own, a fresh jar for the next."""
    await (await engine.create(_grant())).destroy()
    while not has_its_stock(engine):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    before, now = None, Footprint.now()
    while now != before:  # it makes that jar while we wait
        await asyncio.sleep(0.3)
        before, now = now, Footprint.now()
    return now


def _grant(on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE, **limits: float) -> Grant:
    # Weaker limits are accepted, so that an ordinary user without a cgroup can keep the contract too.
    return Grant(
        limits=Limits(**limits),  # type: ignore[arg-type]
        on_output_limit=on_output_limit,
        accept_weaker_limits=True,
    )


@pytest_asyncio.fixture(loop_scope="module")
async def make_jar(engine: Engine, idle: Footprint) -> AsyncIterator[MakeJar]:
    """Jars with the given limits; they are destroyed at the end, and then nothing of them may be left."""
    jars: list[Jar] = []

    async def make(on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE, **limits: float) -> Jar:
        jars.append(await engine.create(_grant(on_output_limit, **limits)))
        return jars[-1]

    yield make
    for jar in jars:
        await jar.destroy()
    await idle.restored()


@pytest.fixture
def another(engine: Engine) -> Callable[..., Engine]:
    """Makes engines of the same kind."""
    return ENGINES[engine.name]


@pytest.fixture
def footprint() -> Callable[[], Footprint]:
    return Footprint.now


@pytest_asyncio.fixture(loop_scope="module")
async def jar(make_jar: MakeJar) -> Jar:
    return await make_jar()


@pytest.fixture
def claimed() -> Iterator[delegation.Claim]:
    """A real place in the real trees of this host."""
    try:
        claim = delegation.claim()
    except delegation.NoDelegation as reason:
        pytest.skip(f"no cgroup can be had: {reason}; run as root or with a delegated cgroup")
    yield claim
    claim.release()


@pytest.fixture
def unified() -> Iterator[Path]:
    """A directory of our own in a version 2 tree, also where version 1 has all controllers."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mount_point = next((point for _, point, kind, *_ in mounts if kind == "cgroup2"), None)
    if mount_point is None or not os.access(mount_point, os.W_OK):
        pytest.skip(
            "no version 2 tree that we may write: as root, mount -t cgroup2 none /sys/fs/cgroup/unified"
        )
    path = Path(tempfile.mkdtemp(prefix="belljar-test-", dir=mount_point))
    yield path
    path.rmdir()
