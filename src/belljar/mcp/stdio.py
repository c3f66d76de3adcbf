"""The MCP server on standard input and output, for a host on this machine."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from belljar.client import AsyncClient
from belljar.mcp.server import create_server

__all__ = ["serve_stdio"]


async def serve_stdio(client: AsyncClient) -> None:
    """Until the host closes our standard input."""
    server = create_server(lambda _: client)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
