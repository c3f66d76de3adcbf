"""One jar's gate: every name that is asked for is decided here, told, and connected to or not.

A gate is open while a run is under way, because what nobody writes down is not let through. What a run may
use in all begins anew with each.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from belljar.egress import addresses, names, rules, tunnels
from belljar.egress.addresses import Resolve, Unreachable
from belljar.egress.contacts import Contact, Refusal, Spent
from belljar.egress.secrets import Secret
from belljar.egress.sockets import Share, Sockets
from belljar.egress.streams import CHUNK, Duplex, Upstream
from belljar.models import Carried, Contacted, Network, Owner

if TYPE_CHECKING:
    from belljar.egress.authority import Authority

__all__ = ["Egress", "Gate", "Quota"]

LOOKUPS_AT_ONCE = 4
"""Of one jar, so that the others' names are resolved meanwhile."""

Tell = Callable[[Contacted | Carried], None]


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one run."""

    connections: int = 10_000
    megabytes: int = 1024
    """In both directions together."""


@dataclass(slots=True)
class _Moved:
    sent: int = 0
    received: int = 0


class Gate:
    def __init__(self, egress: Egress, network: Network) -> None:
        self._egress = egress
        self._network = network
        self._quota = egress.quota
        self._share = Share(egress.sockets)
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._tell: Tell | None = None
        self.owners: frozenset[Owner | None] = frozenset({None})
        """Of the runs that are under way: what is not for all of them is for none."""
        self._decisions = 0
        self._under_way: dict[int, _Moved] = {}
        """Connections by the number of their decision."""
        self._connections = 0
        self._bytes = 0
        self.sent = 0
        self.received = 0

    @property
    def certificate(self) -> str:
        """What programs have to trust, in PEM; empty where no TLS is opened."""
        opens = self._egress.opens_tls or any(rules.read_only_hosts for rules in self._network.rules)
        return self._egress.authority.certificate if opens else ""

    def open(self, tell: Tell) -> None:
        """A run begins."""
        self._tell = tell
        self._connections = self._bytes = 0

    def shut(self) -> None:
        """What is under way is cut; so much it had moved."""
        for number in list(self._under_way):
            self._account(number)
        self._tell = None

    def count_sent(self, contact: Contact, count: int) -> None:
        """Spent where that is more than a run may move."""
        self.sent += count
        if contact.number in self._under_way:
            self._under_way[contact.number].sent += count
        self._spend(contact, count)

    def count_received(self, contact: Contact, count: int) -> None:
        self.received += count
        if contact.number in self._under_way:
            self._under_way[contact.number].received += count
        self._spend(contact, count)

    def done(self, contact: Contact) -> None:
        """Its connection is over."""
        self._account(contact.number)

    async def carry(self, client: Duplex) -> None:
        """One tunnel, from its first byte to its last. Whatever the program does, nothing is raised."""
        await tunnels.carry(client, self)

    async def admit(self, host: str, port: int, *, tunnel: bool) -> Contact:
        """Refusal unless it may be talked to. Of a tunnel it is not known yet what is said inside."""
        self._connections += 1
        if self._tell is None:
            raise Refusal(403, "no run is under way")
        if self._connections > self._quota.connections:
            rule = f"quota: a run may make {self._quota.connections} connections"
            if self._connections > self._quota.connections + 1:
                raise Refusal(403, rule)  # told once: the log of a run is not to be filled with it
            raise self.refuse(host, port, rule)
        if self._is_spent:
            raise self.refuse(host, port, self._spent_rule)
        try:
            name = names.canonical(host)
        except names.NotAName as reason:
            raise self.refuse(host, port, f"system: {reason}") from None
        ruling = rules.may_reach(self._network, name, port)
        if not ruling.allowed:
            raise self.refuse(name, port, ruling.rule)
        try:
            found, vetting = await addresses.vetted(self._resolve, self._network, name)
        except Unreachable as reason:
            self._decided(name, port, allowed=True, rule=ruling.rule)
            raise Refusal(502, f"{name}: {reason}") from None
        if not vetting.allowed:
            raise self.refuse(name, port, vetting.rule)
        secret = self._egress.secret_for(name, port, self.owners)
        number = self._decided(
            name,
            port,
            allowed=True,
            rule=ruling.rule,
            address=found[0],
            secret=secret.name if secret else "",
        )
        self._under_way[number] = _Moved()
        read_only = rules.read_only(self._network, name)
        opened = secret.tls if secret else read_only and tunnel and port != 80
        identity = self._egress.authority.identity(name) if opened else None
        return Contact(number, name, port, tuple(found), secret, identity, read_only)

    async def _resolve(self, host: str) -> Sequence[str]:
        """However soon its caller gives up, a lookup counts until it is over: it holds a thread so long."""
        await self._lookups.acquire()
        looking = asyncio.ensure_future(self._egress.resolve(host))
        looking.add_done_callback(self._looked_up)
        return await asyncio.shield(looking)

    def _looked_up(self, looking: asyncio.Future[Sequence[str]]) -> None:
        self._lookups.release()
        if not looking.cancelled():
            looking.exception()  # perhaps nobody waits for it any more

    def refuse(self, host: str, port: int, rule: str) -> Refusal:
        """It is written down; what the program can be told of it is for the caller to raise."""
        host = names.shown(host)
        self._decided(host, port, allowed=False, rule=rule)
        return Refusal(403, f"{host}:{port} is refused ({rule})")

    async def connect(self, contact: Contact) -> Duplex:
        """To an address that was vetted, and to no other."""
        if not self._share.take():
            raise Refusal(503, "too many connections of all runs are open; try again")
        try:
            sock = await addresses.connect(contact.addresses, contact.port)
            ends = await self._ends(sock, contact)
        except Unreachable as reason:
            self._share.give_back()
            raise Refusal(502, f"{contact.host}:{contact.port}: {reason}") from None
        except BaseException:
            self._share.give_back()
            raise
        return Upstream(*ends, self._share.give_back)

    async def _ends(
        self, sock: socket.socket, contact: Contact
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if contact.identity is None:
            return await asyncio.open_connection(sock=sock, limit=CHUNK)
        try:
            async with asyncio.timeout(addresses.CONNECT_S):
                return await asyncio.open_connection(
                    sock=sock, limit=CHUNK, ssl=self._egress.trust, server_hostname=contact.host
                )
        except (OSError, TimeoutError) as error:  # SSLError is an OSError
            sock.close()
            why = getattr(error, "verify_message", None) or "it does not speak TLS as it should"
            raise Unreachable(why) from None

    def _decided(
        self, host: str, port: int, *, allowed: bool, rule: str, address: str = "", secret: str = ""
    ) -> int:
        """The number that it is told under."""
        self._decisions += 1
        contacted = Contacted(
            number=self._decisions,
            at=datetime.now(UTC).isoformat(timespec="microseconds"),
            host=host,
            port=port,
            allowed=allowed,
            rule=rule,
            address=address,
            secret=secret,
        )
        if self._tell is not None:
            self._tell(contacted)
        return contacted.number

    def _account(self, number: int) -> None:
        moved = self._under_way.pop(number, None)
        if moved is not None and self._tell is not None:
            self._tell(Carried(number=number, sent=moved.sent, received=moved.received))

    def _spend(self, contact: Contact, count: int) -> None:
        self._bytes += count
        if self._is_spent:
            self.refuse(contact.host, contact.port, self._spent_rule)
            raise Spent

    @property
    def _is_spent(self) -> bool:
        return self._bytes > self._quota.megabytes << 20

    @property
    def _spent_rule(self) -> str:
        return f"quota: a run may move {self._quota.megabytes} MB"


class Egress:
    """What is the same for every jar of a service."""

    def __init__(
        self,
        *,
        resolve: Resolve | None = None,
        quota: Quota | None = None,
        secrets: tuple[Secret, ...] = (),
        trust: ssl.SSLContext | None = None,
        sockets: Sockets | None = None,
    ) -> None:
        """`trust`: whom to believe at the other end of TLS that is opened."""
        self.resolve = resolve or addresses.Resolver()
        self.quota = quota or Quota()
        self.sockets = sockets or Sockets()
        self._trust = trust
        self._secrets = secrets
        self.opens_tls = any(secret.tls for secret in secrets)

    @cached_property
    def authority(self) -> Authority:
        from belljar.egress.authority import Authority  # what it imports takes longer than a short run

        return Authority()

    @property
    def trust(self) -> ssl.SSLContext:
        if self._trust is None:
            self._trust = ssl.create_default_context()
        return self._trust

    def gate(self, network: Network) -> Gate:
        return Gate(self, network)

    def secret_for(self, host: str, port: int, owners: Collection[Owner | None]) -> Secret | None:
        """That which all of them may use there. No two of one host and port are for the same owner."""
        for one in self._secrets:
            if (one.host, one.port) == (host, port) and owners and all(map(one.is_for, owners)):
                return one
        return None
