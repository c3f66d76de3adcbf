"""Who calls, and from where: what is checked of every request before any route sees it.

A page in a browser on the operator's machine can reach a service on localhost, under a name of its own
(DNS rebinding) or from another site. So `Host` must be a name of ours, `Origin` must be the same, and the
token counts on localhost too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from belljar.api.errors import WrongRequest
from belljar.config import Config
from belljar.errors import BadConfig, Forbidden, Unauthorized, Unavailable
from belljar.tokens import Token, Tokens

__all__ = ["Hosts", "check_path", "identify"]

Headers = Iterable[tuple[bytes, bytes]]

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = frozenset({"0.0.0.0", "::"})
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")

# A path has one form: no empty step, none of dots, and nothing encoded that could make either, or end a line.
_UNCLEAR = re.compile(rb"//|/\.{1,2}(?:/|$)|%(?:2[eEfF]|[01][0-9A-Fa-f]|7[fF])|[\\\x00-\x20\x7f-\xff]")


class Hosts:
    """The names under which the service may be called; with any port, because it may be forwarded."""

    def __init__(self, config: Config) -> None:
        called = urlsplit(config.runner_url).hostname if config.runner_url else None
        self._names = _LOCAL | {name.lower() for name in (config.host, called) if name}
        self._any_address = config.host in _EVERYWHERE
        """An address cannot be rebound: only a name can come to mean another machine."""

    def check(self, headers: Headers) -> None:
        given = [*_values(headers, b"host")]
        host = given[0].lower() if len(given) == 1 else ""
        if not self._is_ours(host):
            message = "this Host is not a name of the service; sandbox.runner_url can add one"
            raise Forbidden(message, field="Host")
        ours = (f"http://{host}", f"https://{host}")
        if any(origin.lower() not in ours for origin in _values(headers, b"origin")):
            raise Forbidden("a page of another site may not call the service", field="Origin")

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1] or match[2]
        return name in self._names or (self._any_address and _is_address(name))


def check_path(raw_path: bytes) -> None:
    if not raw_path.startswith(b"/") or _UNCLEAR.search(raw_path):
        raise WrongRequest(400, "the path is not in its plain form", field="path")


def identify(headers: Headers, tokens: Tokens) -> Token:
    given = [*_values(headers, b"authorization")]
    if len(given) != 1:
        how = "two Authorization headers" if given else "no token"
        raise Unauthorized(f"{how}; send one header `Authorization: Bearer <token>`", field="Authorization")
    scheme, _, text = given[0].partition(" ")
    text = text.strip()
    try:
        token = tokens.identify(text) if text and scheme.lower() == "bearer" else None
    except BadConfig as error:
        raise Unavailable("the service cannot read its tokens; its operator must mend that") from error
    if token is None:
        raise Unauthorized("this token is not known", field="Authorization")
    return token


def _values(headers: Headers, wanted: bytes) -> Iterator[str]:
    return (value.decode("latin-1") for name, value in headers if name == wanted)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
