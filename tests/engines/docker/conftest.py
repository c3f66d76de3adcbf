"""A docker engine for each test, and images made for it. A container or volume that is left fails the test."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from belljar.engines.docker import labels
from belljar.engines.docker.api import Api
from belljar.engines.docker.engine import DockerEngine
from belljar.errors import EngineUnavailable
from belljar.processes import epoch

WITHOUT_PYTHON = "belljar/base"

MakeImage = Callable[[str], Awaitable[str]]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    try:
        api = await Api.open()
    except EngineUnavailable as error:
        pytest.skip(f"{error}; `scripts/docker-up` installs and starts one")
    yield api
    await api.close()


async def ours(api: Api) -> list[str]:
    """Names of the containers and volumes that this process has."""
    wanted = json.dumps({"label": [f"{labels.EPOCH}={epoch()}"]})
    containers = await api.ask("GET", "containers/json", all=1, filters=wanted)
    volumes = (await api.ask("GET", "volumes", filters=wanted))["Volumes"] or []
    return [*(found["Names"][0] for found in containers), *(found["Name"] for found in volumes)]


@pytest.fixture
async def engine(api: Api) -> AsyncIterator[DockerEngine]:
    engine = DockerEngine()
    yield engine
    await engine.close()
    assert await ours(api) == []


@pytest.fixture
async def make_image(api: Api) -> AsyncIterator[MakeImage]:
    """Images from the text of a Dockerfile; they go with the test."""
    made: list[str] = []

    async def make(dockerfile: str) -> str:
        name = f"belljar-test/{secrets.token_hex(4)}"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(dockerfile.encode())
            archive.addfile(entry, io.BytesIO(dockerfile.encode()))
        lines = [line async for line in api.lines("POST", "build", data=buffer.getvalue(), t=name, forcerm=1)]
        assert "error" not in lines[-1], lines[-1]
        made.append(name)
        return name

    yield make
    for name in made:
        await api.ask("DELETE", f"images/{name}", force=1)
