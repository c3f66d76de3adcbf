"""Byte streams in both directions, whatever carries them, and how bytes are moved from one to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

__all__ = ["CHUNK", "Duplex", "Reader", "TooMuch", "Upstream", "both", "pump"]

CHUNK = 1 << 16


class Duplex(Protocol):
    """Both directions raise OSError once the other end is gone."""

    async def read(self) -> bytes:
        """Some bytes; none at all is the end."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more."""

    async def write_eof(self) -> None:
        """Nothing more is written."""

    def close(self) -> None:
        """Both directions, at once."""


class TooMuch(Exception):
    """What was waited for did not come within so many bytes."""


class Reader:
    """Reads ahead: what was looked at is still there to be read."""

    def __init__(self, source: Duplex) -> None:
        self._source = source
        self._ahead = b""

    async def read(self) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        return await self._source.read()

    async def look(self) -> bytes:
        """What has been read ahead, and some more of it; EOFError when nothing more comes."""
        more = await self._source.read()
        if not more:
            raise EOFError
        self._ahead += more
        return self._ahead

    async def first(self) -> bytes:
        """What comes first, one byte at least."""
        return self._ahead or await self.look()

    async def until(self, mark: bytes, most: int) -> bytes:
        """Up to and with the mark."""
        while (at := self._ahead.find(mark)) < 0:
            if len(self._ahead) > most:
                raise TooMuch
            await self.look()
        if at + len(mark) > most:
            raise TooMuch
        return self._take(at + len(mark))

    async def exactly(self, count: int) -> bytes:
        while len(self._ahead) < count:
            await self.look()
        return self._take(count)

    async def some(self, most: int) -> bytes:
        """At least one byte, and no more than that."""
        await self.first()
        return self._take(most)

    def _take(self, count: int) -> bytes:
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken


class Upstream:
    """A connection of our own to somewhere."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`closed` is told once, when it is."""
        self._reader = reader
        self._writer = writer
        self._closed: Callable[[], None] | None = closed
        # So that `drain` waits until all is the kernel's: what was written is not lost by closing.
        writer.transport.set_write_buffer_limits(high=0)

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.transport.abort()
        if self._closed is not None:
            self._closed()
            self._closed = None


async def pump(source: Duplex | Reader, sink: Duplex, count: Callable[[int], None]) -> None:
    """Until the source ends; then the sink is told."""
    while data := await source.read():
        count(len(data))
        await sink.write(data)
    await sink.write_eof()


async def both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Until both are done, or one has failed."""
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
