"""Heads of HTTP/1.1 requests: what two readers could understand in two ways is refused. RFC 9112.

No obsolete folding, no bare CR or LF, no space before a colon, one Host, one length. A request is sent on
in our own words, so the next reader sees exactly what was judged here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

__all__ = ["MAX_HEAD", "Authority", "BadHead", "Head", "authority", "parse"]

MAX_HEAD = 1 << 16
MAX_FIELDS = 200
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/1\.([01])")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_PORT = re.compile(r"[0-9]{1,5}")
_HOP = frozenset(
    (
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"host",
        b"content-length",
    )
)
"""Of this hop, or said anew by us."""
_READS = ("GET", "HEAD")
_OTHER_METHOD = (b"x-http-method-override", b"x-http-method", b"x-method-override")
"""By which some servers take one method for another."""


class BadHead(Exception):
    """Says what is wrong with it, to the program."""


@dataclass(frozen=True, slots=True)
class Authority:
    host: str
    """In lower case and without a final dot, but not yet known to be a name."""
    port: int


@dataclass(frozen=True, slots=True)
class Head:
    method: str
    target: str
    """As written: a path, an address of http://, or of CONNECT a host and port."""
    fields: tuple[tuple[bytes, bytes], ...]
    """Names in lower case, in order."""
    length: int | None
    """Of the body; None when it comes in chunks."""
    minor: int = 1
    """Of the version: HTTP/1.0 is answered in its own words."""

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field == name]

    @property
    def upgrade(self) -> bytes:
        """What the client wants to talk after this request; empty when nothing else."""
        named = b",".join(self.values(b"connection")).lower().replace(b" ", b"").split(b",")
        wanted = self.values(b"upgrade")
        return wanted[0] if wanted and b"upgrade" in named else b""

    @property
    def only_reads(self) -> bool:
        """GET or HEAD and nothing with it, by whatever name a server might take it for more."""
        if self.method not in _READS or self.length != 0 or self.upgrade:
            return False
        return all(name not in _OTHER_METHOD for name, _ in self.fields)

    def server(self, default_port: int) -> tuple[Authority, str]:
        """Whom it is for, and the path there. Target and Host must say the same; Host is there once."""
        hosts = self.values(b"host")
        if len(hosts) != 1:
            raise BadHead("a request has exactly one Host")
        host = authority(hosts[0].decode("latin-1"), default_port)
        if self.target.startswith("/") or (self.target == "*" and self.method == "OPTIONS"):
            return host, self.target
        scheme, _, rest = self.target.partition("://")
        if scheme.lower() == "https":
            raise BadHead("https:// is reached through CONNECT, not by its address")
        if scheme.lower() != "http":
            raise BadHead("the target is neither a path nor an http:// address")
        server = re.split("[/?#]", rest, maxsplit=1)[0]
        if authority(server, default_port) != host:
            raise BadHead("the Host is not the host of the target")
        path = rest[len(server) :].partition("#")[0]
        return host, path if path.startswith("/") else f"/{path}"

    def sent_on(self, host: str, path: str, extra: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
        """For the server: the last request of its connection, unless it is upgraded."""
        dropped = _HOP | {
            name.strip().lower() for value in self.values(b"connection") for name in value.split(b",")
        }
        dropped |= {name for name, _ in extra}
        lines = [
            f"{self.method} {path} HTTP/1.{self.minor}".encode("latin-1"),
            b"host: " + host.encode("ascii"),
        ]
        lines += [b"%s: %s" % field for field in self.fields if field[0] not in dropped]
        lines += [b"%s: %s" % field for field in extra]
        if self.length is None:
            lines.append(b"transfer-encoding: chunked")
        elif self.length or self.values(b"content-length"):
            lines.append(b"content-length: %d" % self.length)
        if self.upgrade:
            lines += [b"connection: upgrade", b"upgrade: " + self.upgrade]
        else:
            lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"


def parse(data: bytes) -> Head:
    """Of everything up to and with the empty line."""
    lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise BadHead("the request line is not one of HTTP/1.1")
    if len(lines) > MAX_FIELDS:
        raise BadHead(f"more than {MAX_FIELDS} header fields")
    fields = tuple(map(_field, lines[1:]))
    head = Head(match[1].decode("ascii"), match[2].decode("ascii"), fields, 0, int(match[3]))
    return replace(head, length=_length(head))


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadHead("a header field is malformed, folded, or holds a bare CR or LF")
    return name.lower(), value.strip(b" \t")


def _length(head: Head) -> int | None:
    codings, lengths = head.values(b"transfer-encoding"), head.values(b"content-length")
    if codings:
        if lengths or not head.minor or len(codings) != 1 or codings[0].lower() != b"chunked":
            raise BadHead("Transfer-Encoding is `chunked`, once, and without Content-Length")
        return None
    if len(lengths) > 1 or (lengths and not re.fullmatch(rb"[0-9]{1,18}", lengths[0])):
        raise BadHead("Content-Length is one number, once")
    return int(lengths[0]) if lengths else 0


def authority(text: str, default_port: int | None) -> Authority:
    """`host:port`; without a default the port must be there."""
    if "@" in text:
        raise BadHead("a user name before the host is refused")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "" if default_port is None else str(default_port)
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise BadHead("the port is missing, or is none")
    return Authority(host.lower().removesuffix("."), int(port))
