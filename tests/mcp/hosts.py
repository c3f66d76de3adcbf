"""A real MCP client, over standard input and output and over HTTP, in both generations of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.cli.commands import BELLJAR, environment

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext

MODES = ("auto", "legacy")
"""The newest protocol, and the one with a handshake."""


class Person:
    """Who sits at the host: sees each question, and gives the same answer until they change their mind."""

    def __init__(self, action: str, **content: Any) -> None:
        self.asked: list[str] = []
        self.change(action, **content)

    def change(self, action: str, **content: Any) -> None:
        self._answer = types.ElicitResult.model_validate({"action": action, "content": content or None})

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        self.asked.append(params.message)
        return self._answer


@asynccontextmanager
async def over_stdio(
    data_dir: Path, mode: str = "auto", person: Person | None = None, **settings: str
) -> AsyncIterator[Client]:
    command, *args = *BELLJAR, "mcp"
    env = environment(data_dir, **{"BELLJAR_PORT": "0", **settings})
    server = StdioServerParameters(command=command, args=args, env=env)
    async with Client(stdio_client(server), mode=mode, elicitation_callback=person) as client:
        yield client


@asynccontextmanager
async def over_http(
    port: int, token: str, mode: str = "auto", person: Person | None = None
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
        async with Client(transport, mode=mode, elicitation_callback=person) as client:
            yield client
