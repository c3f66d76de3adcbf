"""Which name on which port, and which address: every layer must allow, any may deny."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.rules import matches, may_connect, may_reach
from belljar.models import Network, NetworkRules


def network(*rules: NetworkRules) -> Network:
    return Network(enabled=True, rules=rules)


OPEN = NetworkRules("settings", hosts=("example.com", "*.example.com"))


@pytest.mark.parametrize(
    ("pattern", "host", "fits"),
    [
        pytest.param("example.com", "example.com", True, id="exact"),
        pytest.param("example.com", "www.example.com", False, id="exact-is-not-below"),
        pytest.param("*.example.com", "www.example.com", True, id="one-label"),
        pytest.param("*.example.com", "a.b.example.com", True, id="several-labels"),
        pytest.param("*.example.com", "example.com", False, id="not-itself"),
        pytest.param("*.example.com", "evilexample.com", False, id="whole-labels-only"),
        pytest.param("*.example.com", "example.com.evil.net", False, id="only-at-the-end"),
        pytest.param("*.internal.*", "db.internal.corp.net", True, id="in-the-middle"),
        pytest.param("*.internal.*", "internal.corp", False, id="needs-both-sides"),
        pytest.param("a.*.c.*.e", "a.b.c.d.e", True, id="two-stars"),
        pytest.param("a.*.c", "a.b.d", False, id="wrong-end"),
        pytest.param("*", "localhost", True, id="everything"),
    ],
)
def test_a_star_is_one_or_more_whole_labels(pattern: str, host: str, fits: bool) -> None:
    assert matches(pattern, host) is fits


@given(
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=6),
    st.lists(st.sampled_from("ab"), max_size=7),
)
def test_patterns_mean_what_a_plain_reading_says(pattern: list[str], labels: list[str]) -> None:
    def fits(pattern: list[str], labels: list[str]) -> bool:
        if not pattern:
            return not labels
        if pattern[0] != "*":
            return labels[:1] == pattern[:1] and fits(pattern[1:], labels[1:])
        return any(fits(pattern[1:], labels[count:]) for count in range(1, len(labels) + 1))

    host = ".".join(labels)
    assert matches(".".join(pattern), host) is fits(pattern, host.split("."))


@pytest.mark.parametrize(
    ("rules", "host", "port", "allowed", "rule"),
    [
        pytest.param((OPEN,), "example.com", 443, True, "settings: allowed_domains example.com", id="listed"),
        pytest.param(
            (OPEN,), "a.example.com", 80, True, "settings: allowed_domains *.example.com", id="pattern"
        ),
        pytest.param((OPEN,), "example.org", 443, False, "settings: not in allowed_domains", id="not-listed"),
        pytest.param((), "example.com", 443, False, "system: no layer lists allowed_domains", id="no-list"),
        pytest.param(
            (NetworkRules("settings", hosts=()),),
            "a.b",
            443,
            False,
            "settings: not in allowed_domains",
            id="empty",
        ),
        pytest.param(
            (OPEN,),
            "example.com",
            22,
            False,
            "system: only ports 80 and 443, unless allowed_ports lists others",
            id="port",
        ),
        pytest.param(
            (OPEN, NetworkRules("tool:x", ports=(8443,))),
            "example.com",
            8443,
            True,
            "settings: allowed_domains example.com",
            id="port-listed",
        ),
        pytest.param(
            (OPEN, NetworkRules("tool:x", ports=(8443,))),
            "example.com",
            443,
            False,
            "tool:x: not in allowed_ports",
            id="port-not-on-the-list",
        ),
        pytest.param(
            (OPEN, NetworkRules("tool:x", denied_hosts=("*.example.com",))),
            "a.example.com",
            443,
            False,
            "tool:x: denied_domains *.example.com",
            id="denied-by-a-later-layer",
        ),
        pytest.param(
            (OPEN, NetworkRules("role:r", denied_ports=(443,))),
            "example.com",
            443,
            False,
            "role:r: denied_ports 443",
            id="denied-port",
        ),
        pytest.param(
            (OPEN, NetworkRules("request", hosts=("other.net",))),
            "example.com",
            443,
            False,
            "request: not in allowed_domains",
            id="every-layer-must-allow",
        ),
    ],
)
def test_the_rule_that_settled_it_is_named(
    rules: tuple[NetworkRules, ...], host: str, port: int, allowed: bool, rule: str
) -> None:
    assert may_reach(network(*rules), host, port) == (allowed, rule)


def test_nothing_is_reached_when_the_network_is_off() -> None:
    assert not may_reach(Network(enabled=False, rules=(OPEN,)), "example.com", 443).allowed


FORBIDDEN = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.255",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:127.0.0.1",
    "64:ff9b::a00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_addresses_that_are_not_public_are_forbidden(address: str) -> None:
    assert not may_connect(network(OPEN), ip_address(address)).allowed


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "2a00::1"])
def test_public_addresses_are_not(address: str) -> None:
    assert may_connect(network(OPEN), ip_address(address)).allowed


@pytest.mark.parametrize("address", FORBIDDEN)
def test_the_operator_can_grant_a_range(address: str) -> None:
    whole = "::/0" if ":" in address else "0.0.0.0/0"
    granted = NetworkRules("settings", addresses=(whole,))
    assert may_connect(network(OPEN, granted), ip_address(address)) == (
        True,
        f"settings: allowed_ips {whole}",
    )


def test_every_layer_that_lists_ranges_must_list_the_address() -> None:
    rules = network(
        NetworkRules("settings", addresses=("10.0.0.0/8",)),
        NetworkRules("tool:x", addresses=("10.1.0.0/16",)),
    )
    assert may_connect(rules, ip_address("10.1.2.3")).allowed
    assert not may_connect(rules, ip_address("10.2.0.1")).allowed


def test_a_denied_range_wins_over_a_granted_one_and_over_public() -> None:
    rules = network(
        NetworkRules("settings", addresses=("10.0.0.0/8",)),
        NetworkRules("tool:x", denied_addresses=("10.1.0.0/16", "1.1.1.0/24")),
    )
    assert may_connect(rules, ip_address("10.1.2.3")) == (False, "tool:x: denied_ips 10.1.0.0/16")
    assert not may_connect(rules, ip_address("1.1.1.1")).allowed
