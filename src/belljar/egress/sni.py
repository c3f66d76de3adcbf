"""Whom a TLS client says it wants: the server name of its ClientHello. RFC 8446 §4.1.2, RFC 6066 §3.

Read, never changed: the bytes go on as they came. What cannot be read to the end is not let through.

Browsers put an encrypted hello (ECH) into every plain one, mostly a mere show that nobody can tell from the
real thing. It is left alone: the plain name counts.
"""

from __future__ import annotations

import struct

__all__ = ["MAX_HELLO", "BadHello", "Incomplete", "is_handshake", "server_name"]

MAX_HELLO = 1 << 14
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME = 0
_HOST_NAME = 0
_RECORD = struct.Struct(">BBBH")
_MAX_RECORD = 1 << 14


class BadHello(Exception):
    """It is no ClientHello, or one that names no server; says which."""


class Incomplete(Exception):
    """More bytes are needed."""


def is_handshake(first: bytes) -> bool:
    """Whether a client begins with TLS."""
    return first[:1] == bytes([_HANDSHAKE])


def server_name(data: bytes) -> str:
    """The name in the ClientHello that `data` begins with.

    Raises:
        Incomplete: `data` ends before it does.
        BadHello: it is not one, or names nobody.
    """
    hello = _Fields(_message(data))
    hello.take(2 + 32)  # version, random
    hello.take(hello.number(1))  # session id
    hello.take(hello.number(2))  # cipher suites
    hello.take(hello.number(1))  # compression
    extensions = _Fields(hello.take(hello.number(2))) if hello.left else _Fields(b"")
    name = None
    seen = set()
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.take(extensions.number(2))
        if kind in seen:
            raise BadHello("it has an extension twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _only_name(_Fields(content))
    if name is None:
        raise BadHello("it names no server (SNI)")
    return name


def _message(data: bytes) -> bytes:
    """The handshake message, put together from its records."""
    message = bytearray()
    at = 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        if len(data) > at and data[at] != _HANDSHAKE:
            raise BadHello("it is not TLS")
        if len(message) >= 1 and message[0] != _CLIENT_HELLO:
            raise BadHello("it does not begin with a ClientHello")
        if len(data) - at < _RECORD.size:
            raise Incomplete
        _, major, _, length = _RECORD.unpack_from(data, at)
        if major != 3 or not 0 < length <= _MAX_RECORD:
            raise BadHello("it is not TLS")
        at += _RECORD.size
        if len(data) - at < length:
            raise Incomplete
        message += data[at : at + length]
        at += length
        if len(message) >= 4 and int.from_bytes(message[1:4], "big") > MAX_HELLO:
            raise BadHello("it is too long")
    if message[0] != _CLIENT_HELLO:
        raise BadHello("it does not begin with a ClientHello")
    if len(message) != 4 + int.from_bytes(message[1:4], "big"):
        raise BadHello("something follows the ClientHello in its record")
    return bytes(message[4:])


def _only_name(field: _Fields) -> str:
    names = _Fields(field.take(field.number(2)))
    kind = names.number(1)
    name = names.take(names.number(2))
    if kind != _HOST_NAME or names.left or field.left or not name.isascii():
        raise BadHello("its server name cannot be read")
    return name.decode("ascii")


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise BadHello("its lengths do not fit")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")
