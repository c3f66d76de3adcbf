"""Real servers on loopback addresses, names for them, and a program's end of a tunnel without a jar around it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from belljar.egress.authority import Authority
from belljar.egress.gate import Egress, Gate, Quota
from belljar.egress.secrets import Secret
from belljar.egress.sockets import Sockets
from belljar.egress.streams import CHUNK, Upstream
from belljar.models import Carried, Contacted, Network, NetworkRules

Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LOOPBACK = "127.0.0.0/8"
HOST = "a.test"


def own_address() -> str:
    """A loopback address that no other test process uses, for ports that cannot be chosen."""
    pid = os.getpid()
    return f"127.{pid >> 16 & 63 | 64}.{pid >> 8 & 255}.{pid & 255}"


@dataclass
class Seen:
    """What a server was told, and by how many."""

    text: bytearray = field(default_factory=bytearray)
    connections: int = 0


@asynccontextmanager
async def server(
    answer: bytes | Served = b"",
    *,
    address: str = "127.0.0.1",
    port: int = 0,
    identity: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[int, Seen]]:
    """With bytes: reads a head, says them, and closes. Otherwise what `answer` does."""
    seen = Seen()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            if not isinstance(answer, bytes):
                await answer(reader, writer)
                return
            heard = b""
            while b"\r\n\r\n" not in heard:
                data = await reader.read(CHUNK)
                if not data:
                    return
                heard += data
                seen.text += data
            writer.write(answer)
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, address, port, ssl=identity)
    try:
        yield listening.sockets[0].getsockname()[1], seen
    finally:
        listening.close()
        await listening.wait_closed()


def answered(body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *lines, b"", body))


def egress(
    names: Mapping[str, Sequence[str]] | None = None,
    *,
    quota: Quota | None = None,
    secrets: tuple[Secret, ...] = (),
    trust: ssl.SSLContext | None = None,
    sockets: Sockets | None = None,
) -> Egress:
    """Every name is at 127.0.0.1, unless `names` says otherwise."""

    async def resolve(host: str) -> Sequence[str]:
        if names is None:
            return ["127.0.0.1"]
        if host not in names:
            raise OSError("no such name")
        return names[host]

    return Egress(resolve=resolve, quota=quota, secrets=secrets, trust=trust, sockets=sockets)


def network(
    *ports: int,
    hosts: tuple[str, ...] = (HOST,),
    addresses: tuple[str, ...] = (LOOPBACK,),
    read_only: tuple[str, ...] = (),
) -> Network:
    rules = NetworkRules("settings", hosts=hosts, ports=ports, addresses=addresses, read_only_hosts=read_only)
    return Network(True, (rules,))


@dataclass
class Program:
    """What a program has: a socket to its proxy; and what its run was told."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gate: Gate
    contacts: list[Contacted]
    carried: list[Carried]

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self) -> bytes:
        """All, to the end."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def connect(self, port: int, host: str = HOST) -> bytes:
        await self.say(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        return await self.reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def program(way_out: Egress, allowed: Network, *, gate: Gate | None = None) -> AsyncIterator[Program]:
    contacts: list[Contacted] = []
    carried: list[Carried] = []

    def tell(news: Contacted | Carried) -> None:
        if isinstance(news, Contacted):
            contacts.append(news)
        else:
            carried.append(news)

    if gate is None:
        gate = way_out.gate(allowed)
        gate.open(tell)
    ours, theirs = socket.socketpair()
    tunnel = Upstream(*await asyncio.open_connection(sock=theirs, limit=CHUNK))
    carrying = asyncio.create_task(gate.carry(tunnel))
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        yield Program(reader, writer, gate, contacts, carried)
    finally:
        writer.transport.abort()
        carrying.cancel()
        await asyncio.wait({carrying})


def certified(*hosts: str) -> tuple[Mapping[str, ssl.SSLContext], ssl.SSLContext]:
    """Identities for hosts, and a client's context that believes them."""
    authority = Authority()
    trust = ssl.create_default_context(cadata=authority.certificate)
    return {host: authority.identity(host) for host in hosts}, trust
