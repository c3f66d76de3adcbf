"""The server name of a ClientHello: found in every real one, and never guessed."""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.sni import BadHello, Incomplete, server_name


def hello(name: str | None, **settings: int) -> bytes:
    """What OpenSSL says first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for setting, value in settings.items():
        setattr(context, setting, value)
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def made(*extensions: tuple[int, bytes], kind: int = 1, record: int = 1 << 14) -> bytes:
    """A hello of our own, in records of at most so many bytes."""
    listed = b"".join(struct.pack(">HH", number, len(data)) + data for number, data in extensions)
    body = bytes(34) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + struct.pack(">H", len(listed)) + listed
    message = bytes([kind]) + len(body).to_bytes(3, "big") + body
    pieces = [message[at : at + record] for at in range(0, len(message), record)]
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece for piece in pieces)


def named(*names: bytes, kind: int = 0) -> tuple[int, bytes]:
    listed = b"".join(struct.pack(">BH", kind, len(name)) + name for name in names)
    return 0, struct.pack(">H", len(listed)) + listed


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_a_real_client_is_understood(version: ssl.TLSVersion) -> None:
    assert server_name(hello("api.example.com", maximum_version=version)) == "api.example.com"


def test_a_client_that_names_nobody_is_refused() -> None:
    with pytest.raises(BadHello, match="SNI"):
        server_name(hello(None))


def test_an_encrypted_hello_beside_the_plain_one_is_left_alone() -> None:
    assert server_name(made(named(b"a.b"), (0xFE0D, b"x" * 50))) == "a.b"


def test_a_browser_is_understood(tmp_path: Path) -> None:
    """It sends the show of an encrypted hello to every server."""
    if shutil.which("chromium") is None:
        pytest.skip("no chromium here; on Debian: apt install chromium")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"a.test:{listening.getsockname()[1]}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
        browser = subprocess.Popen(
            ["chromium", *options, "--host-resolver-rules=MAP a.test 127.0.0.1", f"https://{address}/"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            listening.settimeout(60)
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as stream:
                head = stream.read(5)
                said = head + stream.read(int.from_bytes(head[3:], "big"))
        finally:
            browser.kill()
            browser.wait()
    assert b"\xfe\x0d" in said
    assert server_name(said) == "a.test"


def test_every_beginning_of_a_hello_is_incomplete() -> None:
    whole = hello("example.com")
    for end in range(len(whole)):
        with pytest.raises(Incomplete):
            server_name(whole[:end])


def test_what_follows_the_hello_is_not_looked_at() -> None:
    assert server_name(hello("example.com") + b"\x17\x03\x03\x00\x05early") == "example.com"


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_hello_in_small_records_is_put_together(size: int) -> None:
    assert server_name(made(named(b"a.example"), record=size)) == "a.example"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"SSH-2.0-x\r\n", id="ssh"),
        pytest.param(made(named(b"a.b"), kind=2), id="not-a-client-hello"),
        pytest.param(made((0xFE0D, b"x" * 50)), id="only-an-encrypted-name"),
        pytest.param(made(named(b"a.b", b"c.d")), id="two-names"),
        pytest.param(made(named(b"a.b"), named(b"c.d")), id="two-extensions"),
        pytest.param(made(named(b"a.b", kind=1)), id="other-kind-of-name"),
        pytest.param(made(named("b\u00fccher".encode())), id="not-ascii"),
        pytest.param(made((0, b"\x00\x09\x00\x00\x03a.b")), id="lengths-that-lie"),
        pytest.param(made((0, b"")), id="empty-extension"),
        pytest.param(made(), id="no-extensions"),
        pytest.param(b"\x16\x03\x01\x00\x00", id="empty-record"),
        pytest.param(b"\x16\x03\x01\xff\xff", id="record-too-long"),
        pytest.param(b"\x16\x02\x00\x00\x10", id="not-a-version"),
        pytest.param(b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", id="message-too-long"),
    ],
)
def test_what_is_not_an_honest_hello_is_refused(data: bytes) -> None:
    with pytest.raises(BadHello):
        server_name(data)


def test_two_messages_in_one_record_are_refused() -> None:
    message = made(named(b"a.b"))[5:]
    with pytest.raises(BadHello, match="follows"):
        server_name(b"\x16\x03\x01" + struct.pack(">H", 2 * len(message)) + 2 * message)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for text in (data, b"\x16\x03\x01" + struct.pack(">H", len(data)) + data):
        try:
            assert server_name(text).isascii()
        except (BadHello, Incomplete):
            pass
