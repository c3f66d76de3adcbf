"""From a name to a connection: resolved here, once, every answer vetted, and nothing else connected to.

A name that may point anywhere is the attacker's: what counts is the address at the other end of the socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from belljar.egress.rules import Ruling, may_connect
from belljar.models import Network

__all__ = ["Resolve", "Resolver", "Unreachable", "connect", "vetted"]

LOOKUP_S = 10.0
CONNECT_S = 10.0
MAX_ADDRESSES = 8
"""Tried of one name."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""From a canonical name to its addresses; OSError when it has none."""


class Unreachable(Exception):
    """The name has no address, or nobody answers there. Says which."""


class Resolver:
    """The system's, in threads of its own: a name server that does not answer holds up nobody else."""

    def __init__(self, threads: int = 64) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolving")

    async def __call__(self, host: str) -> Sequence[str]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _lookup, host)


def _lookup(host: str) -> list[str]:
    # The final dot keeps the search list of this machine out of it.
    found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def vetted(resolve: Resolve, network: Network, host: str) -> tuple[list[str], Ruling]:
    """Its addresses and that all of them may be connected to; or none, and which rule forbids one of them."""
    try:
        async with asyncio.timeout(LOOKUP_S):
            found = await resolve(host)
    except TimeoutError:
        raise Unreachable("the name servers do not answer") from None
    except (OSError, UnicodeError):
        raise Unreachable("there is no such name") from None
    if not found:
        raise Unreachable("the name has no address")
    addresses = [ip_address(address) for address in found]
    ruling = Ruling(False, "")
    for address in addresses:
        ruling = may_connect(network, address)
        if not ruling.allowed:
            return [], ruling
    return [str(address) for address in addresses[:MAX_ADDRESSES]], ruling


async def connect(addresses: Sequence[str], port: int) -> socket.socket:
    """To the first that answers."""
    loop = asyncio.get_running_loop()
    reason = ""
    for address in addresses:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(sock, (address, port))
            if sock.getpeername()[0] != address:
                raise OSError(f"connected to {sock.getpeername()[0]} instead of {address}")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except TimeoutError:
            reason = "nobody answers there"
            sock.close()
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise Unreachable(reason)
