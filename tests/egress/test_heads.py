"""Heads of requests: one meaning, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.heads import Authority, BadHead, authority, parse


def head(*lines: str, first: str = "GET http://a.test/x HTTP/1.1") -> bytes:
    return "\r\n".join((first, *lines, "", "")).encode("latin-1")


@pytest.mark.parametrize(
    ("first", "host", "meant"),
    [
        pytest.param(
            "GET http://a.test/x?y=1 HTTP/1.1", "a.test", (Authority("a.test", 80), "/x?y=1"), id="plain"
        ),
        pytest.param(
            "GET http://A.Test./x HTTP/1.1", "a.test", (Authority("a.test", 80), "/x"), id="one-form"
        ),
        pytest.param(
            "GET http://a.test:80/ HTTP/1.1", "a.test", (Authority("a.test", 80), "/"), id="default-port"
        ),
        pytest.param(
            "GET http://a.test:81/ HTTP/1.1", "a.test:81", (Authority("a.test", 81), "/"), id="port"
        ),
        pytest.param("GET http://a.test HTTP/1.1", "a.test", (Authority("a.test", 80), "/"), id="no-path"),
        pytest.param(
            "GET http://a.test?q HTTP/1.1", "a.test", (Authority("a.test", 80), "/?q"), id="only-query"
        ),
        pytest.param(
            "GET http://a.test/#x HTTP/1.1", "a.test", (Authority("a.test", 80), "/"), id="fragment"
        ),
        pytest.param("GET /x HTTP/1.1", "a.test", (Authority("a.test", 80), "/x"), id="origin-form"),
    ],
)
def test_target_and_host_say_whom_it_is_for(first: str, host: str, meant: tuple[Authority, str]) -> None:
    assert parse(head(f"Host: {host}", first=first)).server(80) == meant


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(head("Host: a.test", first="GET http://a.test/ HTTP/2.0"), id="version"),
        pytest.param(head("Host: a.test", first="GET  http://a.test/ HTTP/1.1"), id="two-spaces"),
        pytest.param(head("Host: a.test", first="GET http://a.test/ x HTTP/1.1"), id="space-in-target"),
        pytest.param(head("Host: a.test", first="GET http://a.t\xe9st/ HTTP/1.1"), id="not-ascii"),
        pytest.param(head("Host: a.test", first="G(T http://a.test/ HTTP/1.1"), id="method"),
        pytest.param(head("Host: a.test", first="GET http://a.test/"), id="http-0.9"),
        pytest.param(head("Host: a.test", " folded: 1"), id="obsolete-folding"),
        pytest.param(head("Host : a.test"), id="space-before-colon"),
        pytest.param(head("Host: a.test", "X"), id="no-colon"),
        pytest.param(head("Host: a.test", ": x"), id="no-name"),
        pytest.param(head("Host: a.test", "X: a\rb"), id="bare-cr"),
        pytest.param(head("Host: a.test", "X: a\nEvil: b"), id="bare-lf"),
        pytest.param(head("Host: a.test", "X: a\x00b"), id="nul"),
        pytest.param(head("Host: a.test", "Content-Length: 1", "Content-Length: 2"), id="two-lengths"),
        pytest.param(head("Host: a.test", "Content-Length: 1", "Content-Length: 1"), id="length-twice"),
        pytest.param(head("Host: a.test", "Content-Length: +1"), id="length-with-sign"),
        pytest.param(head("Host: a.test", "Content-Length: 1, 1"), id="length-list"),
        pytest.param(head("Host: a.test", "Content-Length: 0x1"), id="length-in-hex"),
        pytest.param(head("Host: a.test", "Content-Length: -1"), id="length-below-zero"),
        pytest.param(
            head("Host: a.test", "Content-Length: 4", "Transfer-Encoding: chunked"), id="both-framings"
        ),
        pytest.param(head("Host: a.test", "Transfer-Encoding: xchunked"), id="unknown-coding"),
        pytest.param(head("Host: a.test", "Transfer-Encoding: gzip, chunked"), id="two-codings"),
        pytest.param(
            head("Host: a.test", "Transfer-Encoding: chunked", "Transfer-Encoding: x"), id="coding-twice"
        ),
        pytest.param(head("Host: a.test", "Transfer-Encoding:\x0bchunked"), id="vertical-tab"),
        pytest.param(
            head("Host: a.test", "Transfer-Encoding: chunked", first="GET http://a.test/ HTTP/1.0"),
            id="1.0-chunked",
        ),
        pytest.param(head(*(f"X{n}: 1" for n in range(300))), id="too-many-fields"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead):
        parse(data)


@pytest.mark.parametrize(
    ("first", "hosts"),
    [
        pytest.param("GET http://a.test/ HTTP/1.1", ["evil.test"], id="another-host"),
        pytest.param("GET http://a.test/ HTTP/1.1", ["a.test:81"], id="another-port"),
        pytest.param("GET http://a.test/ HTTP/1.1", ["a.test", "a.test"], id="two-hosts"),
        pytest.param("GET http://a.test/ HTTP/1.1", [], id="no-host"),
        pytest.param("GET http://a.test/ HTTP/1.1", ["a.test, evil.test"], id="host-list"),
        pytest.param("GET http://evil@a.test/ HTTP/1.1", ["a.test"], id="user"),
        pytest.param("GET http://a.test\\@evil.test/ HTTP/1.1", ["a.test"], id="backslash"),
        pytest.param("GET https://a.test/ HTTP/1.1", ["a.test"], id="https"),
        pytest.param("GET ftp://a.test/ HTTP/1.1", ["a.test"], id="ftp"),
        pytest.param("GET file:///etc/passwd HTTP/1.1", [""], id="file"),
        pytest.param("GET gopher://a.test/ HTTP/1.1", ["a.test"], id="gopher"),
        pytest.param("GET a.test HTTP/1.1", ["a.test"], id="authority-form"),
        pytest.param("GET http://a.test:0/ HTTP/1.1", ["a.test:0"], id="port-zero"),
        pytest.param("GET http://a.test:99999/ HTTP/1.1", ["a.test:99999"], id="port-too-large"),
        pytest.param("GET http://a.test:/ HTTP/1.1", ["a.test:"], id="empty-port"),
    ],
)
def test_target_and_host_must_agree(first: str, hosts: list[str]) -> None:
    with pytest.raises(BadHead):
        parse(head(*(f"Host: {host}" for host in hosts), first=first)).server(80)


def test_a_request_is_sent_on_in_our_own_words() -> None:
    asked = parse(
        head(
            "HOST: a.test",
            "Connection: close, X-Hop",
            "X-Hop: 1",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic eDp5",
            "Keep-Alive: 5",
            "TE: trailers",
            "Accept:  */* ",
            "Content-Length: 003",
            first="POST http://a.test/x HTTP/1.1",
        )
    )
    assert asked.sent_on("a.test", "/x").split(b"\r\n") == [
        b"POST /x HTTP/1.1",
        b"host: a.test",
        b"accept: */*",
        b"content-length: 3",
        b"connection: close",
        b"",
        b"",
    ]


def test_what_we_add_takes_the_place_of_what_the_program_put_there() -> None:
    asked = parse(head("Host: a.test", "Authorization: mine"))
    assert asked.sent_on("a.test", "/", ((b"authorization", b"ours"),)).count(b"authorization") == 1


@given(st.text(alphabet=st.characters(max_codepoint=255), max_size=60))
def test_no_authority_breaks_the_reader(text: str) -> None:
    try:
        found = authority(text, 80)
    except BadHead:
        return
    assert 0 < found.port < 65536
    assert "@" not in found.host


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        found = parse(data + b"\r\n\r\n")
        found.server(80)
        sent = found.sent_on("a.test", "/")
    except BadHead:
        return
    assert parse(sent).length == found.length
