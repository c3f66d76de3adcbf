"""The agent's door: belljar as an MCP server, in the client's terms."""

from __future__ import annotations

from belljar.mcp.server import create_server
from belljar.mcp.stdio import serve_stdio

__all__ = ["create_server", "serve_stdio"]
