"""One form of a host name, and no address in whatever notation."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.names import NotAName, canonical, shown


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param("example.com", "example.com", id="as-it-is"),
        pytest.param("EXAMPLE.Com", "example.com", id="capitals"),
        pytest.param("example.com.", "example.com", id="final-dot"),
        pytest.param("xn--bcher-kva.example", "xn--bcher-kva.example", id="international"),
        pytest.param("_dmarc.example.com", "_dmarc.example.com", id="underscore"),
        pytest.param("1password.com", "1password.com", id="digits-first"),
        pytest.param("a.1x", "a.1x", id="digit-in-the-last-label"),
    ],
)
def test_names_have_one_form(written: str, meant: str) -> None:
    assert canonical(written) == meant


@pytest.mark.parametrize(
    "address",
    [
        "1.2.3.4",
        "1.2.3.4.",
        "2130706433",
        "0x7f000001",
        "0X7F.1",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "010.0.0.1",
        "::1",
        "[::1]",
        "[::ffff:169.254.169.254]",
        "fe80::1%eth0",
        "[fe80::1%25lo]",
        "name.0x",
    ],
)
def test_addresses_are_refused_in_every_notation(address: str) -> None:
    with pytest.raises(NotAName, match="address"):
        canonical(address)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(".", id="dot"),
        pytest.param("a..b", id="empty-label"),
        pytest.param("a.b..", id="two-final-dots"),
        pytest.param("-a.b", id="leading-hyphen"),
        pytest.param("a b", id="space"),
        pytest.param("a\x00.b", id="nul"),
        pytest.param("a\r\nhost: b", id="line-break"),
        pytest.param("user@a.b", id="user"),
        pytest.param("a.b/c", id="path"),
        pytest.param("a" * 64 + ".b", id="long-label"),
        pytest.param("a." * 130 + "b", id="long-name"),
        pytest.param("bücher.example", id="not-ascii"),
        pytest.param("exam\u200bple.com", id="zero-width"),
        pytest.param("example。com", id="ideographic-dot"),
        pytest.param("１２７.0.0.1", id="full-width-digits"),
        pytest.param("*.example.com", id="pattern"),
    ],
)
def test_what_is_no_plain_name_is_refused(text: str) -> None:
    with pytest.raises(NotAName):
        canonical(text)


@given(st.text(max_size=300))
def test_a_canonical_name_is_its_own_form_and_no_address(text: str) -> None:
    try:
        name = canonical(text)
    except NotAName:
        return
    assert canonical(name) == name
    assert name.isascii()
    with pytest.raises(OSError, match="illegal IP"):
        socket.inet_aton(name)


@given(st.text())
def test_what_is_shown_can_be_logged(text: str) -> None:
    assert shown(text).isprintable()
    assert shown(text).isascii()
    assert len(shown(text)) <= 1200
