"""Nothing stays: what a process that is gone has left, what an engine that was away could not remove."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engines.docker.conftest import WITHOUT_PYTHON, ours

from belljar.engines.base import Command
from belljar.engines.docker import labels
from belljar.engines.docker.api import Api
from belljar.engines.docker.engine import DockerEngine
from belljar.errors import EngineUnavailable
from belljar.models import Ended, Grant, Started, Verdict
from belljar.processes import epoch

ELSEWHERE = "another-machine"
"""Where the killed are from: to whoever else cleans up meanwhile, they count as alive."""
VICTIM = f"""
import asyncio, platform, sys
platform.node = lambda: "{ELSEWHERE}"
from belljar.engines.base import Command
from belljar.engines.docker.engine import DockerEngine
from belljar.models import Grant

async def main():
    engine = DockerEngine()
    jars = [await engine.create(Grant(image=image)) for image in sys.argv[1:]]
    print("ready", flush=True)
    async def run(jar):
        async for event in jar.exec(Command(argv=("sh", "-c", "trap '' TERM; sleep 60 & sleep 60"))):
            print("event", flush=True)
    await asyncio.gather(*map(run, jars))

asyncio.run(main())
"""


@pytest.fixture
def killed(api: Api, monkeypatch: pytest.MonkeyPatch) -> str:
    """Epoch of a belljar that was killed while programs ran: one in a guest, one without. We are of its machine."""
    monkeypatch.setattr(platform, "node", lambda: ELSEWHERE)
    argv = [sys.executable, "-c", VICTIM, "belljar/python", WITHOUT_PYTHON]
    victim = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    with victim.stdout:
        for _ in range(3):  # ready, and both programs have started
            assert victim.stdout.readline()
    name = epoch(victim.pid)
    victim.kill()
    victim.wait()
    return name


async def left_of(api: Api, name: str) -> list[str]:
    containers = await api.ask("GET", "containers/json", all=1)
    volumes = (await api.ask("GET", "volumes"))["Volumes"] or []
    return [
        str(found.get("Name") or found["Names"][0])
        for found in (*containers, *volumes)
        if (found["Labels"] or {}).get(labels.EPOCH) == name
    ]


async def test_what_a_killed_belljar_left_goes_when_the_next_one_starts(api: Api, killed: str) -> None:
    assert await left_of(api, killed)
    engine = DockerEngine()
    await (await engine.create(Grant())).destroy()
    assert await left_of(api, killed) == []
    await engine.close()


async def test_doctor_cleans(api: Api, killed: str) -> None:
    code = f"import platform; platform.node = lambda: '{ELSEWHERE}'; from belljar.cli import main; main()"
    argv = [sys.executable, "-c", code, "doctor", "--clean"]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
    assert "removed container belljar-" in done.stdout
    assert "removed volume belljar-" in done.stdout
    assert await left_of(api, killed) == []


@pytest.mark.parametrize("runs", [True, False], ids=["home-runs", "home-is-gone"])
async def test_what_a_belljar_in_a_container_left_goes_when_that_container_is_gone(
    engine: DockerEngine, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: bool
) -> None:
    """From elsewhere its pids say nothing; whether it runs, docker can tell."""
    home = await engine.create(Grant())
    (found,) = [one for one in await api.ask("GET", "containers/json") if found_in(one, epoch())]
    node = found["Id"][:12] if runs else "0" * 12
    (tmp_path / "dockerenv").touch()
    with monkeypatch.context() as inside:
        inside.setattr(platform, "node", lambda: node)
        inside.setattr(labels, "_IN_CONTAINER", tmp_path / "dockerenv")
        config = {"Image": "belljar/python", "Cmd": ["true"], "Labels": labels.for_jar("another", "theirs")}
    theirs = (await api.ask("POST", "containers/create", body=config))["Id"]
    try:
        await engine.left_behind()
        there = [one["Id"] for one in await api.ask("GET", "containers/json", all=1)]
        assert (theirs in there) is runs
    finally:
        await labels.remove(api, theirs)
        await home.destroy()


def found_in(container: dict[str, Any], name: str) -> bool:
    return (container["Labels"] or {}).get(labels.EPOCH) == name


async def test_cleaning_leaves_the_living_alone(engine: DockerEngine, api: Api) -> None:
    jar = await engine.create(Grant())
    assert await labels.left_behind(api) == []
    assert await engine.left_behind() == []
    events = [event async for event in jar.exec(Command(argv=("true",)))]
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.EXITED
    await jar.destroy()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """From now on the engine is not asked for its list before `made` is set."""
    late = Late(asyncio.Event(), asyncio.Event())
    ask = Api.ask

    async def wait_and_ask(self: Api, method: str, path: str, **params: Any) -> Any:
        if path == "containers/json" and params.get("all"):
            late.asked.set()
            await late.made.wait()
        return await ask(self, method, path, **params)

    monkeypatch.setattr(Api, "ask", wait_and_ask)
    return late


class Late(NamedTuple):
    asked: asyncio.Event
    made: asyncio.Event


async def test_cleaning_leaves_a_jar_alone_that_is_made_meanwhile(engine: DockerEngine, late: Late) -> None:
    late.made.set()
    await (await engine.create(Grant())).destroy()  # it is open now
    late.made.clear()
    late.asked.clear()
    cleaning = asyncio.create_task(engine.left_behind())
    await late.asked.wait()
    jar = await engine.create(Grant())
    late.made.set()
    assert await cleaning == []
    events = [event async for event in jar.exec(Command(argv=("true",)))]
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.EXITED
    await jar.destroy()


async def test_cleaning_leaves_those_alone_whose_home_starts_meanwhile(
    engine: DockerEngine, api: Api, late: Late
) -> None:
    late.made.set()
    await (await engine.create(Grant())).destroy()
    late.made.clear()
    late.asked.clear()
    cleaning = asyncio.create_task(labels.left_behind(api))
    await late.asked.wait()
    home = await engine.create(Grant())
    (found,) = [one for one in await api.ask("GET", "containers/json") if found_in(one, epoch())]
    named = {labels.EPOCH: epoch(), labels.ENGINE: "another", labels.HOME: found["Id"][:12]}
    config = {"Image": "belljar/python", "Cmd": ["true"], "Labels": named}
    theirs = (await api.ask("POST", "containers/create", body=config))["Id"]
    try:
        late.made.set()
        assert await cleaning == []
    finally:
        await labels.remove(api, theirs)
        await home.destroy()


async def test_a_jar_whose_container_is_removed_is_lost(engine: DockerEngine, api: Api) -> None:
    jar = await engine.create(Grant())
    events = jar.exec(Command(argv=("sleep", "60")))
    assert isinstance(await anext(events), Started)
    (name, *_) = await ours(api)
    await labels.remove(api, name.lstrip("/"))
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.LOST
    assert not jar.alive
    await jar.destroy()


class Between:
    """A way to the engine that can be cut, as when the engine itself is killed."""

    def __init__(self, place: Path, engine: str) -> None:
        self.place = place
        self._engine = engine
        self._server: asyncio.AbstractServer | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def up(self) -> None:
        self._server = await asyncio.start_unix_server(self._pass, self.place)

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        self.place.unlink()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._engine)
        self._open |= {writer, back}
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
            if target.can_write_eof():
                target.write_eof()
        except OSError:
            target.transport.abort()


@pytest.fixture
async def between(api: Api, tmp_path: Path) -> Between:
    way = Between(tmp_path / "docker.sock", api.endpoint.removeprefix("unix://"))
    await way.up()
    return way


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_engine_that_goes_away_loses_its_jars_and_heals(api: Api, between: Between) -> None:
    engine = DockerEngine(host=f"unix://{between.place}")
    jar, idle = await engine.create(Grant()), await engine.create(Grant())
    events = jar.exec(Command(argv=("sh", "-c", "trap '' TERM; sleep 60")))
    assert isinstance(await anext(events), Started)
    await between.cut()
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.LOST
    await until(lambda: not idle.alive)
    for lost in (jar, idle):
        await lost.destroy()
    with pytest.raises(EngineUnavailable, match="no docker engine answers"):
        await engine.create(Grant())
    await between.up()
    again = await engine.create(Grant())
    await engine.left_behind()
    assert len([name for name in await ours(api) if name.startswith("/")]) == 1
    await again.destroy()
    await engine.close()
    assert await ours(api) == []
    await between.cut()


async def test_a_container_that_is_killed_from_outside_is_lost(engine: DockerEngine, api: Api) -> None:
    jar = await engine.create(Grant())
    events = jar.exec(Command(argv=("sleep", "60")))
    assert isinstance(await anext(events), Started)
    (name, *_) = await ours(api)
    state = (await api.ask("GET", f"containers{name}/json"))["State"]
    os.kill(state["Pid"], signal.SIGKILL)
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.LOST
    await jar.destroy()
