"""The server's side of TLS over any byte stream: how a host's TLS is opened to read requests."""

from __future__ import annotations

import ssl

from belljar.egress.streams import CHUNK, Duplex, Reader

__all__ = ["accept"]


async def accept(reader: Reader, raw: Duplex, identity: ssl.SSLContext) -> Duplex:
    """What the client says inside, once it has believed that identity. OSError if it does not."""
    inside = _Inside(reader, raw, identity)
    await inside.handshake()
    return inside


class _Inside:
    def __init__(self, reader: Reader, raw: Duplex, identity: ssl.SSLContext) -> None:
        self._reader = reader
        self._raw = raw
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = identity.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                await self._flush()
                return
            except ssl.SSLWantReadError:
                await self._more()

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                await self._more()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        self._tls.write(data)
        await self._flush()

    async def write_eof(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it has said goodbye; the other side need not answer
        await self._flush()
        await self._raw.write_eof()

    def close(self) -> None:
        self._raw.close()

    async def _more(self) -> None:
        await self._flush()
        data = await self._reader.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._raw.write(self._outgoing.read())
