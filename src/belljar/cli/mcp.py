"""`belljar mcp`: the MCP server for a host that starts it, on standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.errors import Unavailable

if TYPE_CHECKING:
    from belljar.config import Config


def mcp() -> None:
    """Serve MCP on standard input and output: by the running service, or else by one in this process."""
    import asyncio

    from belljar.config import load_here

    asyncio.run(_serve(load_here()))


async def _serve(config: Config) -> None:
    try:
        from belljar.mcp import serve_stdio
    except ImportError as error:
        raise Unavailable("MCP is not installed here; in belljar's source: pip install '.[mcp]'") from error
    from belljar.cli.remote import opened

    async with opened(config) as client:
        await serve_stdio(client)
