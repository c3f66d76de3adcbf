"""One HTTP request and its answer, passed from a client to a server and back.

The request is read to its exact end and no further. The answer is passed on as it is, until it ends, but for
one word: that the connection ends with it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from belljar.egress.heads import MAX_HEAD, BadHead, Head
from belljar.egress.streams import Duplex, Reader, TooMuch, both, pump

__all__ = ["Counters", "exchange"]

MAX_LINE = 4096
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_REFUSED_METHODS = ("CONNECT", "TRACE")
_SWITCHING = b"101"
_CONNECTION = (b"connection", b"keep-alive", b"proxy-connection")

Count = Callable[[int], None]
Counters = tuple[Count, Count]
"""Told of bytes to the server, and of bytes from it."""


async def exchange(
    head: Head, request: bytes, reader: Reader, client: Duplex, server: Duplex, counters: Counters
) -> None:
    """`request` is the head as it is sent on; `reader` has what the client says after it."""
    sent, received = counters
    if head.method in _REFUSED_METHODS:
        raise BadHead(f"{head.method} is refused")
    if head.upgrade and head.length != 0:
        raise BadHead("a request to upgrade has no body")
    sent(len(request))
    await server.write(request)
    answer = Reader(server)
    sending = asyncio.create_task(_send_body(head, reader, server, sent))
    try:
        status = await _pass_head(answer, client, received)
        if head.upgrade and status == _SWITCHING:  # only if the server agrees is anything else said to it
            await both(pump(answer, client, received), pump(reader, server, sent))
        else:
            await pump(answer, client, received)
    finally:
        sending.cancel()


async def _pass_head(answer: Reader, client: Duplex, received: Count) -> bytes:
    """Returns the status. What a server says that does not speak plainly is passed on as it is."""
    while True:
        try:
            head = await answer.until(b"\r\n\r\n", MAX_HEAD)
        except (EOFError, TooMuch):
            return b""
        received(len(head))
        first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        status = first.split(b" ")[1] if first.count(b" ") else b""
        if not status.startswith(b"1"):
            kept = [line for line in fields if line.partition(b":")[0].lower() not in _CONNECTION]
            head = b"\r\n".join((first, *kept, b"connection: close", b"", b""))
        await client.write(head)
        if status == _SWITCHING or not status.startswith(b"1"):
            return status


async def _send_body(head: Head, reader: Reader, server: Duplex, sent: Count) -> None:
    try:
        if head.length is not None:
            await _send_exactly(head.length, reader, server, sent)
            return
        while size := await _chunk_size(reader):
            await server.write(b"%x\r\n" % size)
            await _send_exactly(size, reader, server, sent)
            if await reader.exactly(2) != b"\r\n":
                raise BadHead("a chunk is longer than it says")
            await server.write(b"\r\n")
        while await reader.until(b"\r\n", MAX_LINE) != b"\r\n":
            pass  # trailers are left out
        await server.write(b"0\r\n\r\n")
    except OSError:
        pass  # the server has heard enough; its answer may still come
    except Exception:
        server.close()  # it would wait for the rest for ever


async def _send_exactly(count: int, reader: Reader, server: Duplex, sent: Count) -> None:
    while count:
        data = await reader.some(count)
        count -= len(data)
        sent(len(data))
        await server.write(data)


async def _chunk_size(reader: Reader) -> int:
    try:
        match = _CHUNK_LINE.fullmatch(await reader.until(b"\r\n", MAX_LINE))
    except TooMuch:
        match = None
    if match is None:
        raise BadHead("a chunk has no plain size")
    return int(match[1], 16)
