"""One tunnel from its first byte to its last: what a program says to its proxy, judged and carried out.

    CONNECT host:port     ┐             ┌ 443: TLS whose server name is the host
    SOCKS5, by name       ├─► gate ─►   ┤ 80:  HTTP whose Host is the host
    GET http://host/path  ┘             └ else: TLS with that name, or whatever the port was granted for

Plain HTTP is one request per connection, in our own words: there is no place to smuggle a second one in.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from belljar.egress import heads, names, sni, tls
from belljar.egress.contacts import Contact, Refusal, Spent
from belljar.egress.exchange import exchange
from belljar.egress.heads import Authority, BadHead, Head
from belljar.egress.streams import Duplex, Reader, TooMuch, both, pump

if TYPE_CHECKING:
    from belljar.egress.gate import Gate

__all__ = ["carry"]

logger = logging.getLogger(__name__)

HEAD_S = 30.0
"""For a program to say what it wants."""
IDLE_S = 300.0
"""A tunnel without a byte for so long is closed."""
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 503: "Service Unavailable"}
_UNRECOGNIZED_NAME = bytes((21, 3, 1, 0, 2, 2, 112))
"""A fatal TLS alert, so that a client can say more than that the connection was closed."""

_SOCKS, _SOCKS_CONNECT = 5, 1
_BY_IPV4, _BY_NAME, _BY_IPV6 = 1, 3, 4
_SOCKS_CODES = {403: 2, 502: 4}
_SOCKS_FAILED, _SOCKS_NO_SUCH_COMMAND, _SOCKS_NO_METHOD = 1, 7, 0xFF


async def carry(client: Duplex, gate: Gate) -> None:
    """Whatever the program does, this ends without an exception, and everything is closed."""
    conversation = _Conversation(client, gate)
    try:
        async with asyncio.timeout(IDLE_S) as idle:
            await conversation.hold(idle)
    except (OSError, EOFError, TimeoutError, Spent):
        pass  # one end is gone, or says nothing any more, or has used up what it may
    except Exception:
        logger.exception("a fault of ours in a tunnel")
    finally:
        conversation.close()


class _Conversation:
    def __init__(self, client: Duplex, gate: Gate) -> None:
        self._client = client
        self._reader = Reader(client)
        self._gate = gate
        self._contact: Contact | None = None
        self._server: Duplex | None = None
        self._idle: asyncio.Timeout | None = None

    def close(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.close()
        if self._contact is not None:
            self._gate.done(self._contact)

    async def hold(self, idle: asyncio.Timeout) -> None:
        self._idle = idle
        async with asyncio.timeout(HEAD_S):
            first = await self._reader.first()
        if first[0] == _SOCKS:
            await self._socks()
        else:
            try:
                await self._http()
            except Refusal as refusal:
                await self._client.write(_answer(refusal))

    # The ways to ask

    async def _http(self) -> None:
        head = await self._head(self._reader)
        if head.method == "CONNECT":
            try:
                wanted = heads.authority(head.target, None)
            except BadHead as reason:
                raise Refusal(400, str(reason)) from None
            contact, server = await self._reach(wanted, tunnel=True)
            await self._client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._tunnel(contact, server)
        elif head.target.startswith("/"):
            raise Refusal(400, "this is a proxy: the target must be a whole http:// address")
        else:
            wanted, path = _server(head, 80)
            contact, server = await self._reach(wanted, tunnel=False)
            await self._request(head, path, contact, self._reader, self._client, server)

    async def _socks(self) -> None:
        """RFC 1928, without authentication."""
        async with asyncio.timeout(HEAD_S):
            _, methods = await self._reader.exactly(2)
            if 0 not in await self._reader.exactly(methods):
                await self._client.write(bytes((_SOCKS, _SOCKS_NO_METHOD)))
                return
            await self._client.write(bytes((_SOCKS, 0)))
            _, command, _, kind = await self._reader.exactly(4)
            host = await self._socks_host(kind)
            port = int.from_bytes(await self._reader.exactly(2), "big")
        if command != _SOCKS_CONNECT:
            await self._client.write(_socks_reply(_SOCKS_NO_SUCH_COMMAND))
            return
        try:
            contact, server = await self._reach(Authority(host, port), tunnel=True)
        except Refusal as refusal:
            await self._client.write(_socks_reply(_SOCKS_CODES.get(refusal.status, _SOCKS_FAILED)))
            return
        await self._client.write(_socks_reply(0))
        await self._tunnel(contact, server)

    async def _socks_host(self, kind: int) -> str:
        """An address is read to be refused, as any other is."""
        if kind == _BY_NAME:
            (length,) = await self._reader.exactly(1)
            return (await self._reader.exactly(length)).decode("latin-1")
        if kind == _BY_IPV4:
            return ".".join(map(str, await self._reader.exactly(4)))
        if kind == _BY_IPV6:
            return f"[{(await self._reader.exactly(16)).hex(':', 2)}]"
        raise EOFError

    async def _reach(self, wanted: Authority, *, tunnel: bool) -> tuple[Contact, Duplex]:
        contact = self._contact = await self._gate.admit(wanted.host, wanted.port, tunnel=tunnel)
        self._server = await self._gate.connect(contact)
        return contact, self._server

    # What is said inside

    async def _tunnel(self, contact: Contact, server: Duplex) -> None:
        """A tunnel was promised; from here on a refusal is said in the words that are spoken inside."""
        if contact.identity is not None:
            await self._check_server_name(contact)
            client = await tls.accept(self._reader, self._client, contact.identity)
            await self._request_inside(contact, Reader(client), client, server)
        elif contact.read_only or (
            contact.is_plain_http and not sni.is_handshake(await self._reader.first())
        ):
            await self._request_inside(contact, self._reader, self._client, server)
        else:
            down = pump(server, self._client, self._received)
            await both(down, self._up_once_vetted(contact, server))

    async def _up_once_vetted(self, contact: Contact, server: Duplex) -> None:
        with suppress(EOFError):  # it only listens
            if contact.port == 443 or sni.is_handshake(await self._reader.first()):
                await self._check_server_name(contact)
        await pump(self._reader, server, self._sent)

    async def _check_server_name(self, contact: Contact) -> None:
        try:
            name = await self._server_name()
            if name != contact.host:
                raise sni.BadHello(f"its server name is {name}")
        except sni.BadHello as reason:
            self._gate.refuse(contact.host, contact.port, f"system: TLS does not ask for this host: {reason}")
            await self._client.write(_UNRECOGNIZED_NAME)
            raise ConnectionAbortedError from None

    async def _server_name(self) -> str:
        async with asyncio.timeout(HEAD_S):
            data = await self._reader.first()
            while True:
                try:
                    return names.canonical(sni.server_name(data))
                except sni.Incomplete:
                    if len(data) > sni.MAX_HELLO:
                        raise sni.BadHello("it is too long") from None
                    data = await self._reader.look()
                except names.NotAName as reason:
                    raise sni.BadHello(f"of its server name, {reason}") from None

    async def _request_inside(self, contact: Contact, reader: Reader, client: Duplex, server: Duplex) -> None:
        try:
            head = await self._head(reader)
            wanted, path = _server(head, contact.port)
            if wanted != Authority(contact.host, contact.port):
                rule = "system: the Host is not the host of the tunnel"
                raise self._gate.refuse(wanted.host, wanted.port, rule)
            await self._request(head, path, contact, reader, client, server)
        except Refusal as refusal:
            await client.write(_answer(refusal))
            await client.write_eof()

    async def _request(
        self, head: Head, path: str, contact: Contact, reader: Reader, client: Duplex, server: Duplex
    ) -> None:
        if contact.read_only and not head.only_reads:
            rule = f"{contact.read_only}, and this is not a plain GET or HEAD"
            raise self._gate.refuse(contact.host, contact.port, rule)
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if contact.secret is not None:
            path, extra = contact.secret.into(path)
        host = contact.host if contact.port in (80, 443) else f"{contact.host}:{contact.port}"
        request = head.sent_on(host, path, extra)
        try:
            await exchange(head, request, reader, client, server, (self._sent, self._received))
        except BadHead as reason:
            raise Refusal(400, str(reason)) from None

    async def _head(self, reader: Reader) -> Head:
        try:
            async with asyncio.timeout(HEAD_S):
                return heads.parse(await reader.until(b"\r\n\r\n", heads.MAX_HEAD))
        except BadHead as reason:
            raise Refusal(400, str(reason)) from None
        except TooMuch:
            raise Refusal(400, f"the head is longer than {heads.MAX_HEAD >> 10} KB") from None

    def _sent(self, count: int) -> None:
        assert self._contact is not None
        self._gate.count_sent(self._contact, count)
        self._touch()

    def _received(self, count: int) -> None:
        assert self._contact is not None
        self._gate.count_received(self._contact, count)
        self._touch()

    def _touch(self) -> None:
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)


def _server(head: Head, port: int) -> tuple[Authority, str]:
    try:
        return head.server(port)
    except BadHead as reason:
        raise Refusal(400, str(reason)) from None


def _answer(refusal: Refusal) -> bytes:
    """The reason stands in the first line too: that is all that many clients show."""
    text = f"belljar: {refusal.message}\n".encode("ascii", "backslashreplace")
    return b"\r\n".join(
        (
            f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}: {refusal.message}".encode(
                "ascii", "backslashreplace"
            ),
            b"content-type: text/plain",
            b"content-length: %d" % len(text),
            b"connection: close",
            b"",
            text,
        )
    )


def _socks_reply(code: int) -> bytes:
    return bytes((_SOCKS, code, 0, _BY_IPV4, 0, 0, 0, 0, 0, 0))
