"""A page's WebSocket: a browser lets a page choose no header for one, so its token comes as a subprotocol.

    Sec-WebSocket-Protocol: belljar.terminal, belljar.bearer.<the token as base64url, without padding>

Here it becomes the header that every other caller sends, before anybody looks at the request.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

__all__ = ["PROTOCOL", "with_token"]

PROTOCOL = "belljar.terminal"
_BEARER = "belljar.bearer."


def with_token(scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
    """The same handshake with the token where it belongs; one that names no protocol of ours as it is."""
    offered = scope.get("subprotocols") or []
    if PROTOCOL not in offered:
        return scope, receive, send

    async def answer(message: Message) -> None:
        chosen = {"subprotocol": PROTOCOL} if message["type"] == "websocket.accept" else {}
        await send({**message, **chosen})

    tokens = [_decoded(one.removeprefix(_BEARER)) for one in offered if one.startswith(_BEARER)]
    headers = [*scope["headers"], *((b"authorization", b"Bearer " + token) for token in tokens)]
    return {**scope, "headers": headers}, receive, answer


def _decoded(text: str) -> bytes:
    """What is no token here is none later either."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
