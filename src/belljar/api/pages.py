"""The console's files: exactly these, for anybody, under a policy by which only they can run.

Everything that a program wrote reaches the page as data of the API. Should it ever become markup there, the
browser still runs nothing of it, asks nobody else for anything, and shows it in no frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from belljar.api.errors import WrongRequest

if TYPE_CHECKING:
    from starlette.types import Scope

__all__ = ["HEADERS", "Page", "page_at"]

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' blob:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", "; ".join(_POLICY).encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
_FIRST = "/"
_REST = "/console/"
_METHODS = ("GET", "HEAD")
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class Page(NamedTuple):
    content: bytes
    media_type: str
    etag: str

    def answer(self, scope: Scope) -> Response:
        """
        Raises:
            WrongRequest: it is asked to do anything but show itself.
        """
        if scope["method"] not in _METHODS:
            allowed = ", ".join(_METHODS)
            raise WrongRequest(405, f"this path takes {allowed} only", field="method", allow=allowed)
        headers = {"etag": self.etag}
        if any(name == b"if-none-match" and value == self.etag.encode() for name, value in scope["headers"]):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def page_at(path: str) -> Page | None:
    return _pages().get(path) if path == _FIRST or path.startswith(_REST) else None


@cache
def _pages() -> Mapping[str, Page]:
    """By the path of the address, so that no path of a caller is ever one of ours."""
    web = files("belljar") / "web"
    found = {_FIRST: web / "index.html"} | {_REST + file.name: file for file in (web / "console").iterdir()}
    return {path: _page(file.name, file.read_bytes()) for path, file in found.items()}


def _page(name: str, content: bytes) -> Page:
    media_type = _TYPES[name[name.rindex(".") :]]
    return Page(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
