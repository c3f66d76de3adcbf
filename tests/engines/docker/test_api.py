"""An engine that cannot be used: one clear sentence each, that says what to do."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from tests.engines.docker.conftest import WITHOUT_PYTHON

from belljar import engines
from belljar.engines.base import Command
from belljar.engines.docker import images
from belljar.engines.docker.api import Api
from belljar.engines.docker.engine import DockerEngine
from belljar.engines.docker.images import DEFAULT
from belljar.errors import EngineUnavailable
from belljar.models import Ended, Grant, Verdict

HANGS_S = 0.1


async def refusal(host: str | None = None, context: str | None = None) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        await Api.open(host, context)
    assert "\n" not in caught.value.message
    return caught.value.message


async def test_no_engine_at_all(tmp_path: Path) -> None:
    said = await refusal(f"unix://{tmp_path}/none.sock")
    assert said == (
        f"no docker engine answers at unix://{tmp_path}/none.sock; start it (`systemctl start docker`), "
        "or say where it is with sandbox.docker.host"
    )


async def test_a_socket_that_nobody_listens_on(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    assert "no docker engine answers" in await refusal(f"unix://{tmp_path}/left.sock")


async def test_an_address_that_is_none() -> None:
    assert "nonsense is no address of a docker engine" in await refusal("nonsense")


async def test_a_context_that_does_not_exist() -> None:
    said = await refusal(context="no-such-context")
    assert "the docker context no-such-context cannot be used; `docker context ls`" in said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody who is not permitted")
def test_a_socket_that_does_not_permit_us(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "docker.sock"))
        engine.listen()
        (tmp_path / "docker.sock").chmod(0o600)
        code = (
            "import asyncio, os, sys\n"
            "import aiodocker\n"
            "from belljar.engines.docker.api import Api\n"
            "os.setresuid(65534, 65534, 65534)\n"
            "asyncio.run(Api.open(sys.argv[1]))"
        )
        argv = [sys.executable, "-c", code, f"unix://{tmp_path}/docker.sock"]
        for folder in tmp_path.parents:
            if folder != Path("/tmp") and folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "does not permit this user; add it to the group `docker`, or run belljar as root" in done.stderr


@pytest.fixture
async def old_engine(tmp_path: Path) -> AsyncIterator[str]:
    """Speaks HTTP, and says that it is of another age."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"ApiVersion": "1.40"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "old.sock"):
        yield f"unix://{tmp_path}/old.sock"


async def test_an_engine_that_is_too_old(old_engine: str) -> None:
    said = await refusal(old_engine)
    assert said.endswith("speaks API 1.40, but belljar needs 1.41; upgrade it to Docker 20.10 or newer")


@pytest.fixture
async def hanging_engine(tmp_path: Path) -> AsyncIterator[str]:
    """Says which version it is, and after that not a word; but that a container is over, when it was asked."""
    answers = {b"/version ": {"ApiVersion": "1.41"}, b"/wait?": {"StatusCode": 7}}
    there: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.add(writer)
        asked = await reader.readuntil(b"\r\n\r\n")
        for what, said in answers.items():
            if what in asked:
                if what == b"/wait?":
                    await asyncio.sleep(5 * HANGS_S)
                body = json.dumps(said).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with await asyncio.start_unix_server(answer, tmp_path / "hanging.sock"):
        yield f"unix://{tmp_path}/hanging.sock"
        for writer in there:
            writer.close()


async def test_an_engine_that_listens_and_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belljar.engines.docker.api.ANSWER_S", HANGS_S)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "deaf.sock"))
        deaf.listen()
        said = await refusal(f"unix://{tmp_path}/deaf.sock")
        assert f"deaf.sock did not answer within {HANGS_S:.0f} s; look at its own log" in said
        engine = DockerEngine(host=f"unix://{tmp_path}/deaf.sock")
        with pytest.raises(EngineUnavailable, match="did not answer"):
            await engine.fit(Grant(), None)
        assert "did not answer" in (await engine.probe()).checks[0].detail
        await engine.close()


async def test_every_request_has_a_limit_but_the_one_to_wait(
    hanging_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await Api.open(hanging_engine)
    monkeypatch.setattr("belljar.engines.docker.api.ANSWER_S", HANGS_S)
    with pytest.raises(EngineUnavailable, match="did not answer"):
        await api.ask("GET", "info")
    with pytest.raises(EngineUnavailable, match="did not answer"):
        await api.attach("one", asyncio.Protocol(), lambda _: None)
    assert await api.wait("one", "next-exit") == {"StatusCode": 7}
    await api.close()


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiodocker", None)
    assert (
        await refusal()
        == "the docker engine needs the package aiodocker; in belljar's source: pip install '.[docker]'"
    )


async def test_a_probe_says_the_same(tmp_path: Path) -> None:
    probe = await DockerEngine(host=f"unix://{tmp_path}/none.sock").probe()
    assert not probe.usable
    (check,) = probe.checks
    assert check.detail.startswith("no docker engine answers")
    assert check.fix.startswith("start it")


async def test_a_probe_says_which_engine_it_is_and_what_it_has(api: Api) -> None:
    engine = DockerEngine(languages={"bash": "belljar-test/none"})
    about = (await engine.probe()).about
    versions = await api.ask("GET", "version")
    assert about == {
        "docker_endpoint": api.endpoint,
        "docker_context": "default",
        "docker_version": versions["Version"],
        "docker_api_version": versions["ApiVersion"],
        "runtime": "runc",
        "images": {DEFAULT: (await images.find(api, DEFAULT)).id, "belljar-test/none": None},
    }


async def test_a_context_that_is_used_is_named(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".docker/contexts/meta" / hashlib.sha256(b"here").hexdigest()
    folder.mkdir(parents=True)
    endpoints = {"docker": {"Host": api.endpoint, "SkipTLSVerify": False}}
    (folder / "meta.json").write_text(json.dumps({"Name": "here", "Metadata": {}, "Endpoints": endpoints}))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = await Api.open(context="here")
    assert (found.context, found.endpoint) == ("here", api.endpoint)
    await found.close()


def test_a_password_in_an_address_is_not_told() -> None:
    api = Api(None, "tcp://me:secret@docker.example:2376", "default")  # type: ignore[arg-type]
    assert api.endpoint == "tcp://docker.example:2376"


async def test_a_runtime_that_is_not_registered_is_named(api: Api) -> None:
    engine = DockerEngine(name="gvisor", runtime="no-such-runtime")
    probe = await engine.probe()
    assert not probe.usable
    (check,) = probe.missing
    assert check.name == "runtime"
    assert "no-such-runtime is not registered; there are " in check.detail
    with pytest.raises(EngineUnavailable, match="no-such-runtime"):
        await engine.create(Grant())
    await engine.close()


async def test_an_engine_that_was_down_is_found_when_it_is_up(api: Api, tmp_path: Path) -> None:
    place = tmp_path / "docker.sock"
    engine = DockerEngine(host=f"unix://{place}")
    with pytest.raises(EngineUnavailable, match="no docker engine answers"):
        await engine.create(Grant())
    place.symlink_to(api.endpoint.removeprefix("unix://"))
    await (await engine.create(Grant())).destroy()
    await engine.close()


async def test_a_named_engine_that_lacks_something_is_refused(tmp_path: Path) -> None:
    choice = engines.Choice(docker_host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(
        EngineUnavailable, match="engine docker: engine: no docker engine answers.*fix: start it"
    ):
        await engines.choose("docker", choice)


async def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match="there are jail, docker, gvisor"):
        await engines.choose("podman")


async def test_auto_takes_docker_where_no_jail_can_be_held(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belljar.engines.jail.probe.KERNEL", (99, 0))
    engine = await engines.choose("auto")
    assert engine.name == "docker"
    await engine.close()


async def test_auto_never_runs_unconfined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belljar.engines.jail.probe.KERNEL", (99, 0))
    choice = engines.Choice(docker_host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineUnavailable, match="engine jail: kernel.*engine docker: engine"):
        await engines.choose("auto", choice)


def test_the_event_loop_of_the_service_will_do() -> None:
    """Its transports are not asyncio's own."""

    async def use() -> bool:
        engine = DockerEngine()
        probe = await engine.probe()
        if not probe.usable:
            pytest.skip(f"no docker engine here: {probe.missing}")
        verdicts = []
        for image in ("belljar/python", WITHOUT_PYTHON):
            jar = await engine.create(Grant(image=image))
            events = [event async for event in jar.exec(Command(argv=("cat",), stdin=b"x"))]
            verdicts += [event.verdict for event in events if isinstance(event, Ended)]
            await jar.destroy()
        await engine.close()
        return verdicts == [Verdict.EXITED, Verdict.EXITED]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(use())
