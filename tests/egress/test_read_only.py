"""Hosts that are read from and sent nothing, whatever carries the request."""

from __future__ import annotations

import pytest
from tests.egress.jars import jail, run
from tests.egress.places import HOST, answered, certified, egress, network, own_address, program, server

from belljar.egress import rules
from belljar.egress.heads import parse
from belljar.egress.secrets import Secret
from belljar.models import Language, Network, NetworkRules

RULE = f"settings: read_only_domains {HOST}, and this is not a plain GET or HEAD"


@pytest.mark.parametrize(
    ("head", "reads"),
    [
        pytest.param("GET / HTTP/1.1", True, id="get"),
        pytest.param("HEAD / HTTP/1.1", True, id="head"),
        pytest.param("GET / HTTP/1.1\r\ncontent-length: 0", True, id="an-empty-body"),
        pytest.param("get / HTTP/1.1", False, id="another-case-is-another-method"),
        pytest.param("POST / HTTP/1.1", False, id="post"),
        pytest.param("PUT / HTTP/1.1\r\ncontent-length: 3", False, id="put"),
        pytest.param("DELETE / HTTP/1.1", False, id="delete"),
        pytest.param("PROPFIND / HTTP/1.1", False, id="propfind"),
        pytest.param("OPTIONS * HTTP/1.1", False, id="options"),
        pytest.param("GET / HTTP/1.1\r\ncontent-length: 3", False, id="a-body"),
        pytest.param("GET / HTTP/1.1\r\ntransfer-encoding: chunked", False, id="chunks"),
        pytest.param("GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket", False, id="websocket"),
        pytest.param("GET / HTTP/1.1\r\nX-HTTP-Method-Override: PUT", False, id="a-method-in-disguise"),
    ],
)
def test_only_a_plain_get_or_head_reads(head: str, reads: bool) -> None:
    assert parse(f"{head}\r\n\r\n".encode()).only_reads is reads


def test_any_layer_may_call_a_host_read_only() -> None:
    open_to = NetworkRules("settings", hosts=("*.test",))
    asked = NetworkRules("request", read_only_hosts=("*.a.test",))
    assert (
        rules.read_only(Network(True, (open_to, asked)), "x.a.test") == "request: read_only_domains *.a.test"
    )
    assert rules.read_only(Network(True, (open_to, asked)), "a.test") == ""


@pytest.mark.parametrize("way", ["by-address", "in-a-tunnel"])
async def test_plain_http_is_read_and_nothing_is_written(way: str) -> None:
    address = own_address()
    way_out = egress({HOST: [address]})
    async with server(answered(b"fine"), address=address, port=80) as (_, seen):
        for method, answer in (("GET", b"200 OK"), ("PUT", b"403 Forbidden")):
            async with program(way_out, network(80, read_only=(HOST,))) as one:
                target = "/"
                if way == "in-a-tunnel":
                    await one.connect(80)
                else:
                    target = f"http://{HOST}/"
                await one.say(f"{method} {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                assert answer in await one.hear()
        assert one.contacts[-1].rule == RULE
        assert seen.text.startswith(b"GET / ")
        assert b"PUT" not in seen.text


async def test_plain_http_by_its_address_is_plain_on_every_port() -> None:
    async with server(answered(b"fine")) as (port, _):
        async with program(egress(), network(port, read_only=(HOST,))) as one:
            await one.say(f"GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert (await one.hear()).endswith(b"fine")


async def test_tls_on_port_80_is_not_passed_on_unread() -> None:
    address = own_address()
    async with server(answered(b"fine"), address=address, port=80) as (_, seen):
        async with program(egress({HOST: [address]}), network(80, read_only=(HOST,))) as one:
            await one.connect(80)
            await one.say(b"\x16\x03\x01" + b"PUT / HTTP/1.1\r\n\r\n")
            assert b"400 Bad Request" in await one.hear()
        assert not seen.text


async def test_a_tunnel_that_is_not_tls_is_not_passed_on_unread() -> None:
    identities, trust = certified(HOST)
    async with server(answered(b"fine"), identity=identities[HOST]) as (port, seen):
        async with program(egress(trust=trust), network(port, read_only=(HOST,))) as one:
            await one.connect(port)
            await one.say(f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            await one.hear()
        assert not seen.text
    assert not one.contacts[-1].allowed


async def test_a_secret_goes_along_with_what_only_reads() -> None:
    async with server(answered(b"fine")) as (port, seen):
        secret = Secret(name="token", host=HOST, port=port, value="word", header="X-Key")
        way_out = egress(secrets=(secret,))
        for method in ("GET", "POST"):
            async with program(way_out, network(port, read_only=("*",), hosts=("*",))) as one:
                await one.connect(port)
                await one.say(f"{method} / HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
                await one.hear()
        assert seen.text.count(b"x-key: word") == 1


async def test_programs_in_a_jar_read_over_tls_and_cannot_upload() -> None:
    identities, trust = certified(HOST)
    async with server(answered(b"sealed"), identity=identities[HOST]) as (port, seen):
        engine = jail(egress(trust=trust))
        if not (await engine.probe()).usable:
            pytest.skip("the jail cannot be used here")
        allowed = network(port, read_only=(HOST,))
        url = f"https://{HOST}:{port}/a"
        try:
            read, _ = await run(engine, allowed, f"curl -sS {url}")
            written, contacts = await run(
                engine, allowed, f"curl -sS -T /etc/hostname {url}; curl -sS {url} -d x=1"
            )
            python, _ = await run(
                engine,
                allowed,
                f"""
                import urllib.error, urllib.request
                print(urllib.request.urlopen("{url}").read().decode())
                try:
                    urllib.request.urlopen("{url}", data=b"x")
                except urllib.error.HTTPError as error:
                    print(error.code, error.reason)
                """,
                Language.PYTHON,
            )
        finally:
            await engine.close()
    assert read.stdout == b"sealed", read
    assert written.stdout.decode() == 2 * f"belljar: {HOST}:{port} is refused ({RULE})\n"
    assert [(one.allowed, one.rule) for one in contacts if not one.allowed] == 2 * [(False, RULE)]
    assert python.stdout.decode() == f"sealed\n403 Forbidden: {HOST}:{port} is refused ({RULE})\n"
    assert seen.text.count(b"HTTP/1.1") == seen.text.count(b"GET /a") == 2
