"""A real MCP client, over standard input and output and over HTTP, in both generations of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.cli.commands import BELLJAR, environment

MODES = ("auto", "legacy")
"""The newest protocol, and the one with a handshake."""


@asynccontextmanager
async def over_stdio(data_dir: Path, mode: str = "auto", **settings: str) -> AsyncIterator[Client]:
    command, *args = *BELLJAR, "mcp"
    env = environment(data_dir, BELLJAR_PORT="0", **settings)
    server = StdioServerParameters(command=command, args=args, env=env)
    async with Client(stdio_client(server), mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(port: int, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client
