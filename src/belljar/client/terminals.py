"""`AsyncTerminal`: a shell of a session, over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from belljar.client.wire import NOT_UNDERSTOOD, Unreachable

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ["AsyncTerminal"]


class AsyncTerminal:
    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self.exit_code: int | None = None
        """When it is over, how the shell ended; None if not by itself."""

    async def output(self) -> AsyncGenerator[bytes, None]:
        """What it shows, until it is over.

        Raises:
            Unreachable: the line broke before that.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = await self._line.recv()
                if isinstance(message, bytes):
                    yield message
                else:
                    self.exit_code = json.loads(message)["exit_code"]
                    return
        except (ConnectionClosed, *NOT_UNDERSTOOD) as error:
            raise Unreachable(f"the terminal's line broke: {error}") from error

    async def type(self, data: bytes) -> None:
        for start in range(0, len(data), _AT_ONCE):
            await self._send(data[start : start + _AT_ONCE])

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(json.dumps({"resize": [rows, columns]}))

    async def signal(self, name: str) -> None:
        await self._send(json.dumps({"signal": name}))

    async def _send(self, message: bytes | str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._line.send(message)
        except ConnectionClosed:
            pass  # `output` says so


_AT_ONCE = 32 << 10
