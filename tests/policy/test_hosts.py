from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest
from belljar.policy import hosts


@pytest.mark.parametrize(
    "text",
    ["localhost", "api.openai.com", "*.example.com", "*.internal.*", "*", "xn--bcher-kva.example", "a_b.c"],
)
def test_host_pattern_is_kept_as_written(text: str) -> None:
    assert hosts.host_pattern(text) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("https://example.com", "scheme", id="scheme"),
        pytest.param("example.com:443", "port", id="port"),
        pytest.param("example.com:*", "port", id="any-port"),
        pytest.param("user@example.com", "without user or path", id="user"),
        pytest.param("example.com/x", "without user or path", id="path"),
        pytest.param("Example.com", "lower case", id="capital"),
        pytest.param("bücher.example", "xn--", id="international"),
        pytest.param("api*.example.com", "whole label", id="star-in-label"),
        pytest.param("example.com.", "host pattern", id="trailing-dot"),
        pytest.param(".example.com", "host pattern", id="leading-dot"),
        pytest.param("-a.example.com", "host pattern", id="leading-hyphen"),
        pytest.param("a" * 64 + ".com", "host pattern", id="long-label"),
        pytest.param("a." * 127 + "com", "host pattern", id="long-name"),
        pytest.param("", "host pattern", id="empty"),
        pytest.param("a b", "host pattern", id="space"),
        pytest.param("example.com\n", "host pattern", id="newline"),
        pytest.param("127.0.0.1", "`ips`", id="address"),
        pytest.param("::1", "`ips`", id="ipv6"),
        pytest.param("10.*", "`ips`", id="address-pattern"),
        pytest.param("127.1", "`ips`", id="short-address"),
        pytest.param("2130706433", "`ips`", id="address-as-number"),
        pytest.param("0x7f000001", "`ips`", id="address-in-hexadecimal"),
    ],
)
def test_what_is_no_host_pattern_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        hosts.host_pattern(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("127.*", "127.0.0.0/8", id="one-octet"),
        pytest.param("192.168.*", "192.168.0.0/16", id="two-octets"),
        pytest.param("192.168.7.*", "192.168.7.0/24", id="three-octets"),
        pytest.param("10.*.*.*", "10.0.0.0/8", id="all-stars"),
        pytest.param("169.254.169.254", "169.254.169.254/32", id="address"),
        pytest.param("::1", "::1/128", id="ipv6"),
        pytest.param("10.0.0.0/8", "10.0.0.0/8", id="range"),
        pytest.param("*.internal.*", None, id="host-pattern"),
        pytest.param("localhost", None, id="host"),
        pytest.param("10.*.*", None, id="not-four-parts"),
    ],
)
def test_denied_name_that_means_addresses_becomes_a_range(text: str, expected: str | None) -> None:
    assert hosts.denied_range(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("10.0.0.0/33", id="prefix-too-long"),
        pytest.param("fe80::1%eth0", id="scoped"),
        pytest.param("fe80::%eth0/64", id="scoped-range"),
        pytest.param("example.com", id="host"),
        pytest.param("１0.0.0.0/8", id="full-width"),
        pytest.param("10.0.0.0/8/8", id="two-prefixes"),
    ],
)
def test_bad_range_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="address range"):
        hosts.address_range(text)


def test_range_with_bits_past_its_prefix_comes_with_a_suggestion() -> None:
    with pytest.raises(BadRequest, match=r"did you mean `10\.0\.0\.0/8`"):
        hosts.address_range("10.1.2.3/8")


def test_denied_pattern_with_an_octet_out_of_range_is_refused() -> None:
    with pytest.raises(BadRequest):
        hosts.denied_range("999.*")


@given(st.text() | st.from_regex(r"[0-9a-fx.:*/%-]{1,20}", fullmatch=True))
def test_any_text_is_a_host_a_range_or_refused(text: str) -> None:
    try:
        found = hosts.denied_range(text)
        if found is None:
            assert "/" not in hosts.host_pattern(text)
        else:
            ipaddress.ip_network(found)
    except BadRequest:
        pass
