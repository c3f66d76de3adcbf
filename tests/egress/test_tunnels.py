"""A program's conversation with its way out, against real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.egress.places import (
    HOST,
    answered,
    certified,
    egress,
    network,
    own_address,
    program,
    server,
)
from tests.egress.test_sni import made, named

from belljar.egress import addresses, tunnels
from belljar.egress.gate import LOOKUPS_AT_ONCE, Quota
from belljar.egress.sockets import Sockets
from belljar.egress.streams import CHUNK
from belljar.models import Carried, Contacted, Network


def get(port: int, host: str = HOST, *lines: str, method: str = "GET", path: str = "/x") -> bytes:
    return "\r\n".join(
        (f"{method} http://{host}:{port}{path} HTTP/1.1", f"Host: {host}:{port}", *lines, "", "")
    ).encode()


async def test_a_plain_request_reaches_the_host_it_names() -> None:
    async with server(answered(b"hello")) as (port, seen), program(egress(), network(port)) as one:
        await one.say(get(port))
        assert (await one.hear()).endswith(b"hello")
    assert seen.text.startswith(b"GET /x HTTP/1.1\r\nhost: a.test:%d\r\n" % port)
    assert one.contacts == [
        Contacted(
            number=1,
            at="",
            host=HOST,
            port=port,
            allowed=True,
            rule="settings: allowed_domains a.test",
            address="127.0.0.1",
        )
    ]
    assert (one.gate.sent, one.gate.received) == (len(seen.text), len(answered(b"hello")))


@pytest.mark.parametrize(
    ("asked", "host"),
    [
        pytest.param(get(80, "b.test"), "b.test", id="plain"),
        pytest.param(b"CONNECT b.test:80 HTTP/1.1\r\nHost: b.test\r\n\r\n", "b.test", id="connect"),
        pytest.param(get(80, "1.2.3.4"), "1.2.3.4", id="address"),
        pytest.param(b"CONNECT 0x7f.1:80 HTTP/1.1\r\n\r\n", "0x7f.1", id="hexadecimal"),
        pytest.param(b"CONNECT 2130706433:80 HTTP/1.1\r\n\r\n", "2130706433", id="decimal"),
        pytest.param(b"CONNECT 0177.0.0.1:80 HTTP/1.1\r\n\r\n", "0177.0.0.1", id="octal"),
        pytest.param(b"CONNECT [::1]:80 HTTP/1.1\r\n\r\n", "[::1]", id="ipv6"),
        pytest.param(
            b"CONNECT [::ffff:169.254.169.254]:80 HTTP/1.1\r\n\r\n", "[::ffff:169.254.169.254]", id="mapped"
        ),
        pytest.param(b"CONNECT [fe80::1%25eth0]:80 HTTP/1.1\r\n\r\n", "[fe80::1%25eth0]", id="zone"),
        pytest.param(b"CONNECT a.test:22 HTTP/1.1\r\n\r\n", "a.test", id="port"),
    ],
)
async def test_a_refusal_is_fast_readable_and_written_down(asked: bytes, host: str) -> None:
    async with program(egress(), network(80)) as one:
        await one.say(asked)
        told = await one.hear()
    head, _, body = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden: ")
    assert host.encode() in body
    [contact] = one.contacts
    assert (contact.host, contact.allowed, contact.address) == (host, False, "")
    assert contact.rule.encode() in body


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(get(80).replace(b"Host: a.test:80", b"Host: b.test"), id="another-host"),
        pytest.param(get(80, HOST, "Host: a.test"), id="two-hosts"),
        pytest.param(get(80, HOST, "Content-Length: 4", "Transfer-Encoding: chunked"), id="both-framings"),
        pytest.param(get(80, HOST, " folded: 1"), id="folding"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", id="not-for-a-proxy"),
        pytest.param(get(80).replace(b"http://", b"https://"), id="https"),
        pytest.param(b"CONNECT a.test HTTP/1.1\r\n\r\n", id="connect-without-port"),
        pytest.param(b"CONNECT u@a.test:80 HTTP/1.1\r\n\r\n", id="connect-with-user"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http-2"),
        pytest.param(b"\x16\x03\x01\x00\x05hello\r\n\r\n", id="tls-to-the-proxy"),
        pytest.param(b"GET http://a.test/ HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", id="too-long"),
    ],
)
async def test_what_is_not_plainly_meant_is_a_bad_request_and_goes_nowhere(asked: bytes) -> None:
    async with server(answered(b"")) as (port, seen):
        async with program(egress(), network(80, port)) as one:
            await one.say(asked.replace(b":80", b":%d" % port))
            assert (await one.hear()).startswith(b"HTTP/1.1 400 Bad Request: ")
        assert seen.connections == 0


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
async def test_methods_that_are_not_for_servers_are_refused(method: str) -> None:
    async with server(answered(b"")) as (port, seen), program(egress(), network(port)) as one:
        await one.say(get(port, method=method))
        assert b" 400 " in await one.hear()
        assert not seen.text


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx",
            id="one-that-would-go-on",
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
            id="after-an-interim-answer",
        ),
        pytest.param(b"no head at all", b"no head at all", id="not-http"),
        pytest.param(
            b"HTTP/1.1 200\n\n" + bytes(100_000), b"HTTP/1.1 200\n\n" + bytes(100_000), id="bare-lf"
        ),
        pytest.param(b"", b"", id="nothing"),
    ],
)
async def test_an_answer_says_that_the_connection_ends_with_it(answer: bytes, told: bytes) -> None:
    async with server(answer) as (port, _), program(egress(), network(port)) as one:
        await one.say(get(port))
        assert await one.hear() == told


async def test_what_a_connection_moved_is_told_when_it_is_over() -> None:
    async with server(answered(b"hello")) as (port, seen), program(egress(), network(port)) as one:
        await one.say(get(port))
        heard = await one.hear()
    sent = Carried(number=1, sent=len(seen.text), received=len(answered(b"hello")))
    assert one.carried == [sent]
    assert (one.gate.sent, one.gate.received) == (sent.sent, sent.received)
    assert heard.endswith(b"hello")


async def test_what_an_open_connection_moved_is_told_when_the_run_is_over() -> None:
    async with server(echo) as (port, _), program(egress(), network(port)) as one:
        await one.connect(port)
        await one.say(b"12345")
        await one.reader.readexactly(5)
        one.gate.shut()
        assert one.carried == [Carried(number=1, sent=5, received=5)]
    assert len(one.carried) == 1


async def test_a_refusal_moves_nothing() -> None:
    async with program(egress(), network(80)) as one:
        await one.connect(81)
        assert [(contact.number, contact.allowed) for contact in one.contacts] == [(1, False)]
    assert not one.carried


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)


async def test_a_second_request_on_the_same_connection_is_not_sent_on() -> None:
    async with server(answered(b"first")) as (port, seen), program(egress(), network(port)) as one:
        await one.say(get(port) + get(port, path="/smuggled"))
        assert (await one.hear()).endswith(b"first")
    assert b"smuggled" not in seen.text


async def whole_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        piece = await reader.read(1 << 16)
        if not piece:
            break
        data += piece
    writer.write(answered(data.partition(b"\r\n\r\n")[2]))
    await writer.drain()


async def test_a_body_of_a_length_is_sent_on_to_its_last_byte() -> None:
    async with (
        server(lambda reader, writer: whole_request(reader, writer, b"end")) as (port, _),
        program(egress(), network(port)) as one,
    ):
        await one.say(get(port, HOST, "Content-Length: 7", method="POST") + b"the")
        await asyncio.sleep(0)
        await one.say(b" endX: 1\r\n\r\n")
        assert (await one.hear()).endswith(b"\r\n\r\nthe end")


async def test_a_body_in_chunks_is_sent_on_in_plain_ones() -> None:
    chunks = b"3\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    async with (
        server(lambda reader, writer: whole_request(reader, writer, b"0\r\n\r\n")) as (port, _),
        program(egress(), network(port)) as one,
    ):
        await one.say(get(port, HOST, "Transfer-Encoding: chunked", method="POST") + chunks)
        assert (await one.hear()).endswith(b"\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(b"3;x=1\r\nabc\r\n0\r\n\r\n", id="extension"),
        pytest.param(b"+3\r\nabc\r\n0\r\n\r\n", id="sign"),
        pytest.param(b"3\nabc\n0\n\n", id="bare-lf"),
        pytest.param(b"2\r\nabc\r\n0\r\n\r\n", id="longer-than-it-says"),
        pytest.param(b"fffffffff\r\n", id="huge"),
    ],
)
async def test_chunks_that_could_be_read_in_two_ways_end_the_connection(chunks: bytes) -> None:
    async with (
        server(lambda reader, writer: whole_request(reader, writer, b"0\r\n\r\n")) as (port, _),
        program(egress(), network(port)) as one,
    ):
        await one.say(get(port, HOST, "Transfer-Encoding: chunked", method="POST") + chunks)
        one.writer.write_eof()
        assert b"200 OK" not in await one.hear()


# Names and addresses


async def test_an_address_that_is_not_public_is_refused_whatever_its_name() -> None:
    async with server(answered(b"metadata")) as (port, seen):
        way_out = egress({HOST: ["127.0.0.1"]})
        async with program(way_out, network(port, addresses=())) as one:
            await one.say(get(port))
            assert b"403" in await one.hear()
    assert seen.connections == 0
    assert one.contacts[0].rule == "settings: 127.0.0.1 is not a public address, nor in allowed_ips"


async def test_one_forbidden_address_among_several_is_enough() -> None:
    async with program(egress({HOST: ["93.184.216.34", "169.254.169.254"]}), network(80)) as one:
        await one.say(get(80))
        assert b"169.254.169.254" in await one.hear()


async def test_a_name_is_resolved_once_and_that_answer_connected_to() -> None:
    """Rebinding: the second answer would be another host's."""
    async with (
        server(answered(b"meant"), address="127.0.0.2") as (port, meant),
        server(answered(b"evil"), address="127.0.0.3", port=port) as (_, evil),
    ):
        answers = iter([["127.0.0.2"], ["127.0.0.3"]])
        way_out = egress()

        async def alternating(host: str) -> list[str]:
            return next(answers)

        way_out.resolve = alternating
        async with program(way_out, network(port, addresses=("127.0.0.2/32",))) as one:
            await one.say(get(port))
            assert (await one.hear()).endswith(b"meant")
        async with program(way_out, network(port, addresses=("127.0.0.2/32",))) as one:
            await one.say(get(port))
            assert b"403" in await one.hear()
        assert (meant.connections, evil.connections) == (1, 0)


async def test_a_name_without_address_is_said_to_have_none() -> None:
    async with program(egress({}), network(80)) as one:
        await one.say(get(80))
        assert b"502 Bad Gateway: a.test: there is no such name" in await one.hear()
    assert (one.contacts[0].allowed, one.contacts[0].address) == (True, "")


async def test_the_next_address_is_tried_when_nobody_answers_at_the_first() -> None:
    async with server(answered(b"second"), address="127.0.0.3") as (port, _):
        async with program(egress({HOST: ["127.0.0.2", "127.0.0.3"]}), network(port)) as one:
            await one.say(get(port))
            assert (await one.hear()).endswith(b"second")


async def test_a_redirect_is_the_programs_to_follow() -> None:
    async with server(b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\n\r\n") as (port, seen):
        async with program(egress(), network(port)) as one:
            await one.say(get(port))
            assert b"302" in await one.hear()
    assert len(one.contacts) == seen.connections == 1


# Inside a tunnel


async def tls_through(way_out_port: int, name: str, trust: ssl.SSLContext, allowed: Network) -> bytes:
    async with program(egress(), allowed) as one:
        assert b" 200 " in await one.connect(way_out_port)
        transport = await asyncio.get_running_loop().start_tls(
            one.writer.transport, one.writer.transport.get_protocol(), trust, server_hostname=name
        )
        assert transport is not None
        transport.write(b"GET / HTTP/1.1\r\n\r\n")
        return await one.hear()


async def test_tls_whose_server_name_is_the_host_goes_through() -> None:
    identities, trust = certified(HOST)
    async with server(answered(b"secret"), identity=identities[HOST]) as (port, _):
        assert (await tls_through(port, HOST, trust, network(port))).endswith(b"secret")


async def test_tls_for_another_server_is_cut_with_an_alert() -> None:
    identities, trust = certified(HOST, "evil.test")
    async with server(answered(b"secret"), identity=identities["evil.test"]) as (port, seen):
        async with program(egress(), network(port)) as one:
            await one.connect(port)
            with pytest.raises(ssl.SSLError, match="(?i)unrecognized.name"):
                await asyncio.get_running_loop().start_tls(
                    one.writer.transport,
                    one.writer.transport.get_protocol(),
                    trust,
                    server_hostname="evil.test",
                )
        assert not seen.text
    assert [contact.allowed for contact in one.contacts] == [True, False]
    assert "evil.test" in one.contacts[1].rule


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(b"a.test", b"HTTP", id="its-plain-name-is-the-host"),
        pytest.param(b"front.test", b"\x15\x03", id="its-plain-name-is-another"),
        pytest.param(None, b"\x15\x03", id="it-has-no-plain-name"),
    ],
)
async def test_of_a_hello_with_an_encrypted_one_the_plain_name_counts(
    name: bytes | None, answer: bytes
) -> None:
    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(hello))
        writer.write(b"HTTP")

    encrypted = (0xFE0D, b"\x00" * 50)
    hello = made(named(name), encrypted) if name else made(encrypted)
    async with server(hear) as (port, _), program(egress(), network(port)) as one:
        await one.connect(port)
        await one.say(hello)
        assert (await one.hear()).startswith(answer)


async def test_tls_that_names_no_server_is_cut_with_an_alert() -> None:
    identities, trust = certified(HOST)
    trust.check_hostname = False
    async with server(answered(b"secret"), identity=identities[HOST]) as (port, seen):
        async with program(egress(), network(port)) as one:
            await one.connect(port)
            with pytest.raises(ssl.SSLError, match="(?i)unrecognized.name"):
                await asyncio.get_running_loop().start_tls(
                    one.writer.transport, one.writer.transport.get_protocol(), trust
                )
        assert not seen.text
    assert one.contacts[-1].rule.endswith("it names no server (SNI)")


@pytest.fixture
def well_known() -> str:
    """An address of our own, on which the ports of the web can be listened on."""
    address = own_address()
    try:
        for port in (80, 443):
            with socket.create_server((address, port)):
                pass
    except PermissionError:
        pytest.skip("only root may listen on ports 80 and 443")
    return address


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", id="http"),
        pytest.param(b"SSH-2.0-x\r\n", id="ssh"),
    ],
)
async def test_only_tls_is_spoken_on_its_port(well_known: str, said: bytes) -> None:
    async with server(answered(b""), address=well_known, port=443) as (port, seen):
        async with program(egress({HOST: [well_known]}), network(port)) as one:
            await one.connect(port)
            await one.say(said)
            assert b"200 OK" not in await one.hear()
        assert not seen.text
    assert not one.contacts[-1].allowed


@pytest.mark.parametrize(
    ("host", "answer"),
    [pytest.param("A.test", b"fine", id="its-own"), pytest.param("b.test", b"", id="another")],
)
async def test_plain_http_inside_a_tunnel_must_be_for_its_host(
    well_known: str, host: str, answer: bytes
) -> None:
    async with server(answered(b"fine"), address=well_known, port=80) as (port, seen):
        async with program(egress({HOST: [well_known]}), network(port)) as one:
            await one.connect(port)
            await one.say(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            heard = await one.hear()
    if answer:
        assert heard.endswith(answer)
    else:
        assert b"403" in heard
        assert not seen.text
        assert one.contacts[-1].host == "b.test"


async def upgraded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    agreed = b"upgrade: websocket" in head and b"connection: upgrade" in head
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" if agreed else answered(b"no"))
    while data := await reader.read(100):
        writer.write(data.upper())


async def test_a_connection_is_upgraded_when_the_server_agrees() -> None:
    async with server(upgraded) as (port, _), program(egress(), network(port)) as one:
        await one.say(get(port, HOST, "Connection: keep-alive, Upgrade", "Upgrade: websocket"))
        assert b" 101 " in await one.reader.readuntil(b"\r\n\r\n")
        await one.say(b"hello")
        assert await one.reader.readexactly(5) == b"HELLO"


async def test_nothing_more_is_sent_to_a_server_that_does_not_agree_to_upgrade() -> None:
    async with server(answered(b"no")) as (port, seen), program(egress(), network(port)) as one:
        await one.say(get(port, HOST, "Connection: Upgrade", "Upgrade: websocket") + b"GET /smuggled")
        assert (await one.hear()).endswith(b"no")
        assert b"smuggled" not in seen.text


async def test_other_granted_ports_carry_whatever_they_were_granted_for() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        writer.write((await reader.readline()).upper())

    async with server(greet) as (port, _), program(egress(), network(port)) as one:
        await one.connect(port)
        assert await one.reader.readline() == b"220 ready\r\n"
        await one.say(b"helo\r\n")
        assert await one.reader.readline() == b"HELO\r\n"


async def test_a_program_may_only_listen() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        writer.write(b"220 ready\r\n")

    async with server(greet) as (port, _), program(egress(), network(port)) as one:
        await one.connect(port)
        one.writer.write_eof()
        assert await one.hear() == b"220 ready\r\n"


# SOCKS5


def socks(kind: int, host: bytes, port: int, command: int = 1) -> bytes:
    return bytes((5, command, 0, kind)) + host + port.to_bytes(2, "big")


async def test_socks_reaches_a_host_by_name() -> None:
    async with server(answered(b"hello")) as (port, _), program(egress(), network(port)) as one:
        await one.say(b"\x05\x01\x00")
        assert await one.reader.readexactly(2) == b"\x05\x00"
        await one.say(socks(3, b"\x06a.test", port))
        assert (await one.reader.readexactly(10))[:2] == b"\x05\x00"
        await one.say(b"GET / HTTP/1.1\r\n\r\n")
        assert (await one.hear()).endswith(b"hello")


@pytest.mark.parametrize(
    ("request_", "code", "host"),
    [
        pytest.param(socks(3, b"\x06b.test", 80), 2, "b.test", id="not-allowed"),
        pytest.param(socks(1, bytes((127, 0, 0, 1)), 80), 2, "127.0.0.1", id="ipv4"),
        pytest.param(
            socks(4, bytes(15) + b"\x01", 80), 2, "[0000:0000:0000:0000:0000:0000:0000:0001]", id="ipv6"
        ),
        pytest.param(socks(3, b"\x090x7f.0.01", 80), 2, "0x7f.0.01", id="address-as-name"),
        pytest.param(socks(3, b"\x06a.test", 80, command=2), 7, None, id="bind"),
        pytest.param(socks(3, b"\x06a.test", 80, command=3), 7, None, id="udp"),
    ],
)
async def test_socks_refuses_with_its_own_codes(request_: bytes, code: int, host: str | None) -> None:
    async with program(egress({}), network(80)) as one:
        await one.say(b"\x05\x01\x00" + request_)
        assert (await one.hear())[2:4] == bytes((5, code))
    assert [contact.host for contact in one.contacts] == ([host] if host else [])


async def test_socks_with_a_password_is_not_offered() -> None:
    async with program(egress(), network(80)) as one:
        await one.say(b"\x05\x01\x02")
        assert await one.hear() == b"\x05\xff"


# What one run may use


async def test_a_run_makes_so_many_connections_and_no_more() -> None:
    way_out = egress(quota=Quota(connections=2))
    async with server(answered(b"x")) as (port, seen), program(way_out, network(port)) as first:
        answers = []
        for _ in range(4):
            async with program(way_out, network(port), gate=first.gate) as one:
                await one.say(get(port))
                answers.append((await one.hear())[9:12])
    assert answers == [b"200", b"200", b"403", b"403"]
    assert seen.connections == 2
    assert [contact.allowed for contact in first.contacts] == [True, True, False]


async def test_a_run_moves_so_many_bytes_and_no_more() -> None:
    async with server(answered(bytes(3 << 20))) as (port, _):
        async with program(egress(quota=Quota(megabytes=1)), network(port)) as one:
            await one.say(get(port))
            heard = await one.hear()
            assert len(heard) <= 1 << 20
            assert b"403" not in heard
        async with program(egress(), network(port), gate=one.gate) as next_one:
            await next_one.say(get(port))
            assert b"403 Forbidden: a.test:%d is refused (quota" % port in await next_one.hear()
    assert [contact.rule for contact in one.contacts[1:]] == ["quota: a run may move 1 MB"] * 2


async def test_what_is_sent_counts_as_well() -> None:
    async with (
        server(lambda reader, writer: whole_request(reader, writer, b"end")) as (port, _),
        program(egress(quota=Quota(megabytes=1)), network(port)) as one,
    ):
        await one.say(get(port, HOST, f"Content-Length: {2 << 20}", method="POST"))
        one.writer.write(bytes(2 << 20))
        assert await one.hear() == b""


async def keep_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_no_jar_holds_more_connections_than_are_left_for_the_others() -> None:
    way_out = egress(sockets=Sockets(most=6))
    answers: list[bytes] = []
    async with AsyncExitStack() as stack, server(keep_open) as (port, _):
        for number_of_tries in (4, 3, 2):
            first = await stack.enter_async_context(program(way_out, network(port)))
            answers.append(b"")
            for _ in range(number_of_tries):
                one = await stack.enter_async_context(program(way_out, network(port), gate=first.gate))
                answers[-1] += (await one.connect(port))[9:13]
    assert answers == [b"200 200 200 503 ", b"200 200 503 ", b"200 503 "]
    async with server(answered(b"again")) as (port, _), program(way_out, network(port)) as one:
        await one.say(get(port))
        assert (await one.hear()).endswith(b"again"), "those that were closed count no more"


async def test_connections_that_fail_are_given_back() -> None:
    way_out = egress(sockets=Sockets(most=2))
    for _ in range(5):
        async with program(way_out, network(1)) as one:
            assert b"502" in await one.connect(1)
    assert way_out.sockets.left == 2


async def test_slow_lookups_of_one_jar_are_few_however_soon_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "LOOKUP_S", 0.02)
    under_way = 0
    answer = asyncio.Event()
    way_out = egress()

    async def slow(host: str) -> list[str]:
        nonlocal under_way
        under_way += 1
        await answer.wait()
        return ["127.0.0.1"]

    way_out.resolve = slow
    async with program(way_out, network(80)) as first:
        for _ in range(10):
            async with program(way_out, network(80), gate=first.gate) as one:
                await one.say(get(80))
                assert b"do not answer" in await one.hear()
        assert under_way == LOOKUPS_AT_ONCE
        answer.set()


async def test_nothing_gets_through_when_no_run_is_under_way() -> None:
    async with server(answered(b"x")) as (port, seen):
        gate = egress().gate(network(port))
        async with program(egress(), network(port), gate=gate) as one:
            await one.say(get(port))
            assert b"403" in await one.hear()
        assert seen.connections == 0


async def test_a_program_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "HEAD_S", 0.05)
    async with program(egress(), network(80)) as one:
        await one.say(b"GET http://a.te")
        assert await one.hear() == b""


async def test_a_tunnel_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "IDLE_S", 0.1)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(silent) as (port, _), program(egress(), network(port)) as one:
        await one.connect(port)
        assert await one.hear() == b""


async def test_a_server_that_resets_ends_the_tunnel() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    async with server(reset) as (port, _), program(egress(), network(port)) as one:
        await one.connect(port)
        await one.say(b"x")
        assert await one.hear() == b""


_PIECES = (
    b"CONNECT ",
    b"GET ",
    b"http://",
    b"a.test",
    b":80",
    b"/",
    b" HTTP/1.1\r\n",
    b"Host: ",
    b"\r\n",
    b"\r\n\r\n",
    b"\x05\x01\x00",
    b"\x05\x01\x00\x03\x06",
    b"\x00P",
    b"\x16\x03\x01\x00\x10",
    b"[::1]",
    b"\xff",
)


@given(st.lists(st.sampled_from(_PIECES) | st.binary(max_size=20), max_size=15))
def test_whatever_a_program_says_is_no_fault_of_ours(pieces: list[bytes]) -> None:
    async def say() -> list[Contacted]:
        async with program(egress({}), network(80)) as one:
            await one.say(b"".join(pieces))
            one.writer.write_eof()
            await one.hear()
            return one.contacts

    faults: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tunnels.logger, "exception", faults.append)
        contacts = asyncio.run(say())
    assert not faults
    assert all(contact.host.isprintable() for contact in contacts)
