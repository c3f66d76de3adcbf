"""Secrets: put into requests on their way out, told to nobody."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.egress.jars import jail, run
from tests.egress.places import HOST, answered, certified, egress, network, program, server

from belljar.egress.secrets import Secret, load, usable
from belljar.errors import BadConfig
from belljar.models import Language, Owner

VALUE = "s3cr3t-w0rd"


def secret(port: int, *, header: str = "", query: str = "", form: str = "{}", tls: bool = False) -> Secret:
    return Secret(
        name="token", host=HOST, port=port, value=VALUE, header=header, query=query, form=form, tls=tls
    )


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        pytest.param("/", f"/?key={VALUE}", id="no-query"),
        pytest.param("/x?a=1", f"/x?a=1&key={VALUE}", id="beside-another"),
        pytest.param("/x?key=mine&a=1", f"/x?a=1&key={VALUE}", id="in-place-of-the-programs"),
        pytest.param("/x?k%65y=mine", f"/x?key={VALUE}", id="in-place-of-a-disguised-one"),
    ],
)
def test_a_secret_goes_into_the_query(path: str, sent: str) -> None:
    assert secret(80, query="key").into(path) == (sent, ())


async def test_a_header_is_put_into_plain_requests_to_its_host_and_no_other() -> None:
    async with server(answered(b"fine")) as (port, seen):
        way_out = egress(secrets=(secret(port, header="Authorization", form="Bearer {}"),))
        async with program(way_out, network(port, hosts=(HOST, "b.test"))) as one:
            await one.say(
                f"GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: {HOST}:{port}\r\nauthorization: no\r\n\r\n".encode()
            )
            heard = await one.hear()
        assert seen.text.count(b"uthorization: ") == 1
        assert f"authorization: Bearer {VALUE}\r\n".encode() in seen.text
        assert VALUE.encode() not in heard
        assert (one.contacts[0].secret, VALUE in repr(one.contacts)) == ("token", False)
        seen.text.clear()
        async with program(way_out, network(port, hosts=(HOST, "b.test"))) as other:
            await other.say(f"GET http://b.test:{port}/ HTTP/1.1\r\nHost: b.test:{port}\r\n\r\n".encode())
            await other.hear()
        assert VALUE.encode() not in seen.text


async def test_a_secret_is_put_into_requests_inside_a_tunnel_too() -> None:
    async with server(answered(b"fine")) as (port, seen):
        way_out = egress(secrets=(secret(port, header="X-Key"),))
        async with program(way_out, network(port)) as one:
            await one.connect(port)
            await one.say(f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert (await one.hear()).endswith(b"fine")
        assert f"x-key: {VALUE}\r\n".encode() in seen.text


async def test_a_secret_is_put_into_tls_that_programs_were_told_to_trust() -> None:
    identities, trust = certified(HOST)
    async with server(answered(b"sealed"), identity=identities[HOST]) as (port, seen):
        engine = jail(egress(secrets=(secret(port, header="X-Key", tls=True),), trust=trust))
        if not (await engine.probe()).usable:
            pytest.skip("the jail cannot be used here")
        try:
            results = [
                await run(engine, network(port), f"curl -sS https://{HOST}:{port}/a"),
                await run(
                    engine,
                    network(port),
                    f"""
                    from urllib.request import urlopen
                    print(urlopen("https://{HOST}:{port}/b").read().decode())
                    """,
                    Language.PYTHON,
                ),
                await run(
                    engine,
                    network(port),
                    f"console.log(await (await fetch('https://{HOST}:{port}/c')).text())",
                    Language.JAVASCRIPT,
                ),
            ]
        finally:
            await engine.close()
    for result, contacts in results:
        assert result.stdout.strip() == b"sealed", result
        assert contacts[0].secret == "token"
        assert VALUE not in repr((result, contacts))
    assert seen.text.count(f"x-key: {VALUE}\r\n".encode()) == 3


async def test_an_opened_tls_still_has_to_name_its_host() -> None:
    identities, trust = certified(HOST)
    async with server(answered(b"sealed"), identity=identities[HOST]) as (port, seen):
        way_out = egress(secrets=(secret(port, header="X-Key", tls=True),), trust=trust)
        async with program(way_out, network(port)) as one:
            await one.connect(port)
            await one.say(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
            await one.hear()
        assert not seen.text
    assert not one.contacts[-1].allowed


async def test_a_server_that_is_not_believed_gets_no_secret() -> None:
    """A certificate of somebody else's: the name servers lied, or the host is not who it was."""
    identities, _ = certified(HOST)
    _, trust = certified(HOST)
    async with server(answered(b"mine"), identity=identities[HOST]) as (port, seen):
        way_out = egress(secrets=(secret(port, header="X-Key", tls=True),), trust=trust)
        async with program(way_out, network(port)) as one:
            assert b"502 Bad Gateway" in await one.connect(port)
        assert not seen.text


# Whose it is

SHOP, BANK = Owner("shop", "clerk"), Owner("bank", "clerk")


@pytest.mark.parametrize(
    ("projects", "roles", "owner", "may"),
    [
        pytest.param(None, None, None, True, id="anybodys-nobody"),
        pytest.param(None, None, SHOP, True, id="anybodys"),
        pytest.param(frozenset({"shop"}), None, SHOP, True, id="its-project"),
        pytest.param(frozenset({"shop"}), None, BANK, False, id="another-project"),
        pytest.param(frozenset({"shop"}), None, Owner("Shop"), False, id="a-project-like-it"),
        pytest.param(frozenset({"shop"}), None, None, False, id="no-project"),
        pytest.param(None, frozenset({"clerk"}), SHOP, True, id="its-role"),
        pytest.param(None, frozenset({"clerk"}), Owner("shop", "boss"), False, id="another-role"),
        pytest.param(None, frozenset({"clerk"}), Owner("shop"), False, id="no-role"),
        pytest.param(frozenset({"shop"}), frozenset({"boss"}), SHOP, False, id="only-one-of-both"),
    ],
)
async def test_a_secret_is_for_its_projects_and_roles(
    projects: frozenset[str] | None, roles: frozenset[str] | None, owner: Owner | None, may: bool
) -> None:
    async with server(answered(b"fine")) as (port, seen):
        kept = replace(
            secret(port, header="X-Key"),
            projects=projects,
            roles=roles,
        )
        way_out = egress(secrets=(kept,))
        async with program(way_out, network(port)) as one:
            one.gate.owners = frozenset({owner})
            await one.say(f"GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert (await one.hear()).endswith(b"fine")
    assert (VALUE.encode() in seen.text) is may
    assert one.contacts[0].secret == ("token" if may else "")


def test_what_is_not_for_all_who_are_under_way_is_for_none() -> None:
    way_out = egress(secrets=(replace(secret(80, header="X"), projects=frozenset({"shop"})),))
    assert way_out.secret_for(HOST, 80, {SHOP}) is not None
    assert way_out.secret_for(HOST, 80, {SHOP, BANK}) is None
    assert way_out.secret_for(HOST, 80, ()) is None


def test_the_secrets_of_a_run_are_its_owners_for_hosts_it_may_reach() -> None:
    shops = (replace(secret(80, header="X"), projects=frozenset({"shop"})),)
    assert usable(shops, network(80), SHOP) == ("token",)
    assert usable(shops, network(80), BANK) == ()
    assert usable(shops, network(81), SHOP) == ()


def test_two_projects_have_a_secret_each_for_one_host(tmp_path: Path) -> None:
    text = f"secrets: {{a: {{{GOOD}, projects: [shop]}}, b: {{{GOOD}, projects: [bank]}}}}"
    way_out = egress(secrets=load(written(tmp_path, text)))
    found = [way_out.secret_for(HOST, 80, {owner}) for owner in (SHOP, BANK, Owner("else"))]
    assert [one and one.name for one in found] == ["a", "b", None]


async def test_tls_is_not_opened_for_those_whose_secret_it_is_not() -> None:
    identities, trust = certified(HOST)
    async with server(answered(b"sealed"), identity=identities[HOST]) as (port, _):
        kept = replace(secret(port, header="X", tls=True), projects=frozenset({"shop"}))
        async with program(egress(secrets=(kept,), trust=trust), network(port)) as one:
            one.gate.owners = frozenset({BANK})
            await one.connect(port)
            transport = await asyncio.get_running_loop().start_tls(
                one.writer.transport, one.writer.transport.get_protocol(), trust, server_hostname=HOST
            )
            assert transport is not None
            assert transport.get_extra_info("peercert")["subject"] == ((("commonName", HOST),),)


def test_a_secret_does_not_show_its_value() -> None:
    assert VALUE not in repr(secret(80, header="X"))


# The file


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secrets.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secrets_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(VALUE + "\n")
    (tmp_path / "token").chmod(0o600)
    found = load(
        written(
            tmp_path,
            """
            secrets:
              github: {host: api.github.com, header: Authorization, form: "Bearer {}", file: token, tls: true}
              maps: {host: Maps.example., query: key, value: "123"}
            """,
        )
    )
    assert found == (
        Secret(
            name="github",
            host="api.github.com",
            port=443,
            header="Authorization",
            form="Bearer {}",
            value=VALUE,
            tls=True,
        ),
        Secret(name="maps", host="maps.example", port=80, query="key", value="123"),
    )


GOOD = "host: a.test, header: X-Key, value: s3cr3t-w0rd"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("secrets: [x]", id="list"),
        pytest.param(f"other: {{}}\nsecrets: {{a: {{{GOOD}}}}}", id="something-else"),
        pytest.param(f"secrets: {{a: {{{GOOD}, colour: red}}}}", id="unknown-key"),
        pytest.param(f"secrets: {{a: {{{GOOD}, query: key}}}}", id="header-and-query"),
        pytest.param(f"secrets: {{a: {{{GOOD}, file: x}}}}", id="value-and-file"),
        pytest.param("secrets: {a: {host: a.test, header: X, file: absent}}", id="no-such-file"),
        pytest.param(f"secrets: {{a: {{{GOOD}, tls: maybe}}}}", id="tls"),
        pytest.param(f"secrets: {{a: {{{GOOD}, port: 0}}}}", id="port"),
        pytest.param(f"secrets: {{a: {{{GOOD}, form: plain}}}}", id="form-without-place"),
        pytest.param("secrets: {a: {host: 1.2.3.4, header: X, value: s3cr3t-w0rd}}", id="address"),
        pytest.param("secrets: {a: {host: '*.test', header: X, value: s3cr3t-w0rd}}", id="pattern"),
        pytest.param("secrets: {a: {host: a.test, header: Host, value: s3cr3t-w0rd}}", id="framing-header"),
        pytest.param("secrets: {a: {host: a.test, header: 'X: y', value: s3cr3t-w0rd}}", id="not-a-header"),
        pytest.param(
            'secrets: {a: {host: a.test, header: X, value: "s3cr3t-w0rd\\r\\nEvil: 1"}}', id="lines"
        ),
        pytest.param("secrets: {a: {host: a.test, header: X, value: 1234}}", id="number"),
        pytest.param("secrets: {a: {host: a.test, header: X, value: " + "7" * 40 + "}}", id="huge-number"),
        pytest.param(f"secrets: {{a: {{{GOOD}}}, b: {{{GOOD}}}}}", id="one-host-twice"),
        pytest.param(f"secrets: {{a: {{{GOOD}, projects: shop}}}}", id="projects-that-are-no-list"),
        pytest.param(f"secrets: {{a: {{{GOOD}, roles: []}}}}", id="for-nobody"),
        pytest.param(f"secrets: {{a: {{{GOOD}, roles: [x, x]}}}}", id="a-name-twice"),
        pytest.param(f"secrets: {{a: {{{GOOD}, projects: [1]}}}}", id="a-number-for-a-name"),
        pytest.param(
            f"secrets: {{a: {{{GOOD}, projects: [x]}}, b: {{{GOOD}, roles: [y]}}}}", id="two-for-one-run"
        ),
        pytest.param("secrets: {a: s3cr3t-w0rd", id="not-yaml"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_without_telling_a_value(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfig) as refused:
        load(written(tmp_path, text))
    assert VALUE not in refused.value.message
    assert "7777" not in refused.value.message


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="chmod 600"):
        load(written(tmp_path, f"secrets: {{a: {{{GOOD}}}}}", 0o640))
