"""The application by itself, with a service that lives as long as the server's lifespan."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
from tests.api.served import TOKEN, code_of, config_for

from belljar.api.app import create_app
from belljar.engines.fake import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_the_service_is_open_as_long_as_the_lifespan_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fake(config: Any) -> FakeEngine:
        return FakeEngine()

    monkeypatch.setattr("belljar.service.engine_for", fake)
    app = create_app(config_for(tmp_path))
    said: asyncio.Queue[Any] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    headers = {"authorization": f"Bearer {TOKEN}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        early = await http.get("/health")
        assert (early.status_code, code_of(early)) == (503, "UNAVAILABLE")

        lifespan = asyncio.create_task(_run(app, said, told))
        said.put_nowait({"type": "lifespan.startup"})
        assert (await told.get())["type"] == "lifespan.startup.complete"
        answer = await http.post("/run", json={"language": "bash", "code": "echo hello"})
        assert answer.json()["stdout"] == "hello\n"
        said.put_nowait({"type": "lifespan.shutdown"})
        assert (await told.get())["type"] == "lifespan.shutdown.complete"
        await lifespan

        late = await http.post("/run", json={"language": "bash", "code": "echo hello"})
        assert late.status_code == 503


async def _run(app: Any, said: asyncio.Queue[Any], told: asyncio.Queue[Any]) -> None:
    await app({"type": "lifespan", "asgi": {}, "state": {}}, said.get, told.put)
