"""The MCP server behind the door, when it cannot be started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from belljar.api.app import create_app_for
from belljar.api.mcp import Mount
from belljar.errors import Unavailable
from belljar.service import Service


async def test_a_server_that_does_not_start_is_said_so_and_tried_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def fails(self: StreamableHTTPSessionManager) -> AsyncIterator[None]:
        raise RuntimeError("no room")
        yield

    mount = Mount(create_app_for(service))
    with monkeypatch.context() as patch:
        patch.setattr(StreamableHTTPSessionManager, "run", fails)
        for _ in range(2):
            with pytest.raises(Unavailable, match="no room"):
                async with asyncio.timeout(30):
                    await mount.sessions()
    assert await mount.sessions()
    await mount.aclose()
