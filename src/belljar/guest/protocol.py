"""Frames between the host and the guest inside a jar, over any byte stream.

    kind (1 byte) │ stream (4 bytes) │ length (4 bytes) │ payload

Every operation has a stream of its own, numbered by whoever opened it (the host takes even
numbers, the guest odd ones), so several can be under way at once. The guest opens one for each
connection to its way out:

    OPEN   starts the operation; JSON {"op": …}
    DATA   bytes of its body: a file's content, a program's stdin
    EOF    the sender has no more DATA
    OUT    bytes the program wrote to stdout
    ERR    bytes the program wrote to stderr
    NOTE   JSON, something happened on the way
    ROOM   of a tunnel: so many more bytes of DATA may be sent (4 bytes); each side begins with WINDOW
    END    JSON, the operation's outcome; the last frame of its stream

The host trusts nothing that arrives: a frame larger than MAX_PAYLOAD or of an unknown kind ends
the conversation. Standard library only: this file is sent into the jar.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

OPEN, DATA, EOF, OUT, ERR, NOTE, ROOM, END = range(1, 9)

MAX_PAYLOAD = 4 << 20
CHUNK = 1 << 16
WINDOW = 1 << 17
"""Bytes that one side of a tunnel may send before the other has passed any on."""
HEADER = struct.Struct(">BII")
_ROOM = struct.Struct(">I")


class Frame(NamedTuple):
    kind: int
    stream: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload as an object; ProtocolError where it is none."""
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ProtocolError("payload is not a JSON object")
        return value

    def room(self) -> int:
        """The payload as the count of a ROOM frame; ProtocolError where it is none."""
        if len(self.payload) != _ROOM.size:
            raise ProtocolError("payload is not a count")
        return int(_ROOM.unpack(self.payload)[0])


class ProtocolError(Exception):
    """The other side broke the rules; nothing more it says can be believed."""


def encode(kind: int, stream: int, payload: bytes = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"payload of {len(payload)} bytes is too large")
    return HEADER.pack(kind, stream, len(payload)) + payload


def encode_json(kind: int, stream: int, **fields: object) -> bytes:
    return encode(kind, stream, json.dumps(fields, separators=(",", ":")).encode())


def encode_room(stream: int, count: int) -> bytes:
    return encode(ROOM, stream, _ROOM.pack(count))


def encode_body(stream: int, content: bytes) -> Iterator[bytes]:
    """DATA frames for the whole content, then EOF."""
    view = memoryview(content)
    for start in range(0, len(view), CHUNK):
        yield encode(DATA, stream, bytes(view[start : start + CHUNK]))
    yield encode(EOF, stream)


class Decoder:
    """Turns bytes as they arrive into frames. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                kind, stream, length = HEADER.unpack_from(self._buffer, start)
                if not OPEN <= kind <= END:
                    raise ProtocolError(f"unknown kind of frame: {kind}")
                if length > MAX_PAYLOAD:
                    raise ProtocolError(f"frame of {length} bytes is too large")
                body = start + HEADER.size
                if len(self._buffer) < body + length:
                    break
                start = body + length
                yield Frame(kind, stream, bytes(self._buffer[body:start]))
        finally:
            del self._buffer[:start]
