"""May a program talk to this name on this port, and to this address? Every layer must allow; any may deny.

    hosts      none are allowed unless a layer lists them; any layer may call one read-only
    ports      80 and 443 unless a layer lists others
    addresses  private ones are forbidden unless a layer lists their range

The rule that settled it is told to the program and written down: which layer's, which list, which entry.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

from belljar.models import Network, NetworkRules

__all__ = ["Ruling", "matches", "may_connect", "may_reach", "read_only"]

PORTS = (80, 443)


class Ruling(NamedTuple):
    allowed: bool
    rule: str


def may_reach(network: Network, host: str, port: int) -> Ruling:
    """Of a name in canonical form."""
    if not network.enabled:
        return Ruling(False, "network is off")
    allowed_by = ""
    for rules in network.rules:
        for pattern in rules.denied_hosts:
            if matches(pattern, host):
                return Ruling(False, f"{rules.layer}: denied_domains {pattern}")
        if port in rules.denied_ports:
            return Ruling(False, f"{rules.layer}: denied_ports {port}")
        if rules.hosts is not None:
            pattern = next((pattern for pattern in rules.hosts if matches(pattern, host)), "")
            if not pattern:
                return Ruling(False, f"{rules.layer}: not in allowed_domains")
            allowed_by = f"{rules.layer}: allowed_domains {pattern}"
        if rules.ports is not None and port not in rules.ports:
            return Ruling(False, f"{rules.layer}: not in allowed_ports")
    if not allowed_by:
        return Ruling(False, "system: no layer lists allowed_domains")
    if all(rules.ports is None for rules in network.rules) and port not in PORTS:
        return Ruling(False, "system: only ports 80 and 443, unless allowed_ports lists others")
    return Ruling(True, allowed_by)


def read_only(network: Network, host: str) -> str:
    """The rule by which that name may be read from and sent nothing; empty where there is none."""
    for rules in network.rules:
        for pattern in rules.read_only_hosts:
            if matches(pattern, host):
                return f"{rules.layer}: read_only_domains {pattern}"
    return ""


def matches(pattern: str, host: str) -> bool:
    """`*` stands for one or more whole labels."""
    labels = host.split(".")
    used = {0}  # how many labels of the name the pattern may have come past, part by part
    for part in pattern.split("."):
        if part == "*":
            used = set(range(min(used, default=len(labels)) + 1, len(labels) + 1))
        else:
            used = {count + 1 for count in used if count < len(labels) and labels[count] == part}
    return len(labels) in used


_Address = IPv4Address | IPv6Address
_Range = IPv4Network | IPv6Network

_FORBIDDEN = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network; Linux connects to itself
            "10.0.0.0/8",
            "100.64.0.0/10",  # shared by carriers; also a metadata service
            "127.0.0.0/8",
            "168.63.129.16/32",  # a cloud's host, though the address is public
            "169.254.0.0/16",  # link-local; metadata services
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved; broadcast
            "2001::/23",  # Teredo and other protocols' own
            "2001:db8::/32",
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)
"""Nothing that a program has to reach by its public name is there. IANA's special-purpose registries."""
_GLOBAL_V6 = ip_network("2000::/3")
"""All of IPv6 that is in use; the rest is loopback, mapped, NAT64, private, link-local or multicast."""


def may_connect(network: Network, address: _Address) -> Ruling:
    """Of an address that a name was resolved to: the very one that is connected to."""
    for rules in network.rules:
        if denying := _holder(rules.denied_addresses, address):
            return Ruling(False, f"{rules.layer}: denied_ips {denying}")
    if not _is_forbidden(address):
        return Ruling(True, "public address")
    listing = [rules for rules in network.rules if rules.addresses is not None]
    if not listing:
        return Ruling(False, f"system: {address} is not a public address")
    granted = ""
    for rules in listing:
        granted = _granting(rules, address)
        if not granted:
            return Ruling(False, f"{rules.layer}: {address} is not a public address, nor in allowed_ips")
    return Ruling(True, granted)


def _granting(rules: NetworkRules, address: _Address) -> str:
    holder = _holder(rules.addresses or (), address)
    return f"{rules.layer}: allowed_ips {holder}" if holder else ""


def _is_forbidden(address: _Address) -> bool:
    if address.version == 6 and (address not in _GLOBAL_V6 or getattr(address, "scope_id", None)):
        return True
    return any(address in one for one in _FORBIDDEN)


def _holder(ranges: Collection[str], address: _Address) -> str:
    return next((one for one in ranges if address in _range(one)), "")


@lru_cache(maxsize=1024)
def _range(text: str) -> _Range:
    return ip_network(text)
