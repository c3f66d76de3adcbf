"""Frames between the host and the guest inside a jar, over any byte stream.

    kind (1 byte) │ stream (4 bytes) │ length (4 bytes) │ payload

Every operation has a stream of its own, numbered by whoever opened it (the host takes even
numbers, the guest odd ones), so several can be under way at once. The guest opens one for each
connection to its way out:

    OPEN   starts the operation; {"op": …}
    DATA   bytes of its body: a file's content, a program's stdin
    EOF    the sender has no more DATA
    OUT    bytes the program wrote to stdout
    ERR    bytes the program wrote to stderr
    NOTE   something happened on the way
    ROOM   of a tunnel: so many more bytes of DATA may be sent (4 bytes); each side begins with WINDOW
    END    the operation's outcome; the last frame of its stream

The guest believes the host, whose OPEN is marshalled: reading that takes no import, which every container
would pay for. The host trusts nothing that arrives: what the guest says is JSON, and a frame larger than
MAX_PAYLOAD or of an unknown kind ends the conversation. Standard library only: this file goes into the jar.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

OPEN, DATA, EOF, OUT, ERR, NOTE, ROOM, END = range(1, 9)

MAX_PAYLOAD = 4 << 20
CHUNK = 1 << 16
WINDOW = 1 << 17
"""Bytes that one side of a tunnel may send before the other has passed any on."""
HEADER = struct.Struct(">BII")
_ROOM = struct.Struct(">I")
MARSHAL = 4
"""Its version: what every Python since 3.4 can read."""
_ESCAPES = {point: f"\\u{point:04x}" for point in (*range(0x20), ord('"'), ord("\\"))}


class Frame:
    __slots__ = ("kind", "payload", "stream")

    def __init__(self, kind: int, stream: int, payload: bytes) -> None:
        self.kind = kind
        self.stream = stream
        self.payload = payload

    def __eq__(self, other: object) -> bool:
        mine = (self.kind, self.stream, self.payload)
        return isinstance(other, Frame) and mine == (other.kind, other.stream, other.payload)

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.stream}, {self.payload!r})"

    def request(self) -> dict[str, Any]:
        """The payload of the host's OPEN. Only for who believes the host."""
        fields: dict[str, Any] = marshal.loads(self.payload)
        return fields

    def json(self) -> dict[str, Any]:
        """The payload as an object; ProtocolError where it is none."""
        import json

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


def encode_request(stream: int, **fields: object) -> bytes:
    return encode(OPEN, stream, marshal.dumps(fields, MARSHAL))


def encode_json(kind: int, stream: int, **fields: object) -> bytes:
    return encode(kind, stream, _json(fields).encode("utf-8", "surrogatepass"))


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


def _json(value: object) -> str:
    """As json.dumps, which would bring thirty other modules into every jar."""
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(name)}:{_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, int):
        return int.__repr__(value)  # an enumeration's own says more
    if isinstance(value, float):
        return float.__repr__(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
