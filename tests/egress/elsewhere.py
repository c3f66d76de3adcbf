"""Run in a network of its own, where nothing is what it is outside: a name server, hosts, and a program's asking.

    python -m tests.egress.elsewhere HOST…

Public addresses are on its loopback, so that nothing has to be granted; the name server at 127.0.0.1 gives each
name the next of its answers. Writes what each request was told, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from typing import Any

from tests.egress.places import answered, program, server

from belljar.egress.gate import Egress
from belljar.models import Network, NetworkRules

PUBLIC, METADATA = "93.184.216.34", "169.254.169.254"
ANSWERS = {
    "good.test": [[PUBLIC]],
    "rebound.test": [[PUBLIC], [METADATA], [PUBLIC]],
    "both.test": [[PUBLIC, METADATA]],
    "local.test": [["127.0.0.1"]],
    "mapped.test": [["::ffff:127.0.0.1"]],
    "six.test": [["2606:4700::1111"]],
}


class NameServer(asyncio.DatagramProtocol):
    """Answers of a name are one set for A and AAAA together, taken in turn."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        question = data[12 : at + 5]
        kind = int.from_bytes(data[at + 1 : at + 3], "big")
        name = ".".join(labels)
        sets = ANSWERS.get(name, [[]])
        turn = self.asked.get(name, 0) // 2  # A and AAAA of one lookup
        self.asked[name] = self.asked.get(name, 0) + 1
        found = [
            socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
            for address in sets[min(turn, len(sets) - 1)]
            if (":" in address) == (kind == 28)
        ]
        records = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(address)) + address for address in found
        )
        code = 0 if name in ANSWERS else 3
        head = data[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(found), 0, 0)
        self._transport.sendto(head + question + records, sender)


async def main() -> None:
    loop = asyncio.get_running_loop()
    _, names = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 53))
    allowed = Network(True, (NetworkRules("settings", hosts=("*.test",)),))
    told = []
    async with (
        server(answered(b"public"), address=PUBLIC, port=80),
        server(answered(b"public six"), address="2606:4700::1111", port=80),
        server(answered(b"metadata"), address=METADATA, port=80) as (_, metadata),
        server(answered(b"inside"), address="127.0.0.1", port=80) as (_, inside),
    ):
        way_out = Egress()
        for host in sys.argv[1:]:
            async with program(way_out, allowed) as one:
                await one.say(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                heard = (await one.hear()).decode()
            told.append([heard[9:12], heard.rpartition("\r\n")[2]])
        reached = [metadata.connections, inside.connections]
    sys.stdout.write(json.dumps({"told": told, "reached": reached, "asked": names.asked}))


if __name__ == "__main__":
    asyncio.run(main())
