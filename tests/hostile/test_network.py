"""Network: a jar has a loopback of its own and no other way to anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import Attack, Control, answers, small

from belljar.models import Language, Limits

if TYPE_CHECKING:
    from tests.hostile.glass import Glass


@pytest.mark.parametrize(
    ("name", "family", "kind", "address"),
    [
        pytest.param("TCP4", "AF_INET", "SOCK_STREAM", "127.0.0.1", id="tcp-v4"),
        pytest.param("TCP6", "AF_INET6", "SOCK_STREAM", "::1", id="tcp-v6"),
        pytest.param("UDP4", "AF_INET", "SOCK_DGRAM", "127.0.0.1", id="udp-v4"),
        pytest.param("UDP6", "AF_INET6", "SOCK_DGRAM", "::1", id="udp-v6"),
        pytest.param("TCP4", "AF_INET6", "SOCK_STREAM", "::ffff:127.0.0.1", id="tcp-v4-mapped"),
    ],
)
def test_listener_of_the_host_is_not_reached(
    glass: Glass, name: str, family: str, kind: str, address: str
) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code=f"""
            import socket
            from tactics import *
            port = int(os.environ["HOST_{name}"])
            one = socket.socket(socket.{family}, socket.{kind})
            attempt("connect", one.connect, ("{address}", port))
            attempt("send", one.send, b"hello")
            """,
            goal="nothing that is said counts, only what arrives",
        )
    )
    said = answers(result.stdout)
    if kind == "SOCK_STREAM":
        assert said == {"connect": "ECONNREFUSED", "send": "EPIPE"}


@pytest.mark.every_engine
def test_neighbour_is_not_reached(glass: Glass) -> None:
    """It listens on every address it has, and on a name that needs no file."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            from tactics import *
            port = int(os.environ["NEIGHBOUR_PORT"])
            for address in ("127.0.0.1", "0.0.0.0", "127.0.1.1", "localhost", "belljar"):
                attempt(address, socket.create_connection, (address, port), 1)
            unix = socket.socket(socket.AF_UNIX)
            attempt("abstract", unix.connect, "\\0" + os.environ["NEIGHBOUR_ABSTRACT"])
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"ECONNREFUSED"}


def test_abstract_socket_of_the_host_is_not_reached(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import socket
            from tactics import *
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
                one = socket.socket(socket.AF_UNIX, kind)
                try:
                    one.connect("\\0" + os.environ["HOST_ABSTRACT"])
                except OSError as error:
                    say(kind.name, errno.errorcode[error.errno])
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"ECONNREFUSED"}
    assert len(answers(result.stdout)) == 3


def test_vsock_is_refused(glass: Glass) -> None:
    """It knows no namespaces: with it a program would reach the host's listeners, or its hypervisor's."""
    reachable = "HOST_VSOCK" in glass.canaries.whereabouts
    result = glass.contains(
        Attack(
            control=Control.UNFILTERED if reachable else Control.PROBE,
            code="""
            import socket
            from tactics import *
            attempt("vsock", socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)
            """,
        )
    )
    assert answers(result.stdout)["vsock"] in ("EPERM", "EAFNOSUPPORT")  # gVisor has none


@pytest.mark.every_engine
def test_there_is_no_route_out(glass: Glass) -> None:
    """Addresses that are nobody's (RFC 5737, RFC 3849), of metadata services, and of networks nearby."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            from tactics import *
            addresses = ("192.0.2.1", "169.254.169.254", "172.17.0.1", "10.0.0.1", "192.168.0.1",
                         "255.255.255.255", "2001:db8::1", "fe80::1", "fd00:ec2::254", "ff02::1")
            for address in addresses:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                attempt("tcp_" + address, socket.socket(family).connect, (address, 443))
                datagram = socket.socket(family, socket.SOCK_DGRAM)
                try:
                    datagram.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                except OSError:
                    pass
                attempt("udp_" + address, datagram.sendto, b"x", (address, 53))
            """,
        )
    )
    said = set(answers(result.stdout).values())
    assert said <= {"ENETUNREACH", "EADDRNOTAVAIL", "EINVAL", "EHOSTUNREACH"}
    assert "ENETUNREACH" in said


@pytest.mark.shared_kernel("it lets everybody ping, and there is nothing but its own loopback")
def test_raw_sockets_are_refused(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            from tactics import *
            attempt("icmp", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            attempt("icmp6", socket.socket, socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
            attempt("ping", socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
            attempt("packet", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
            attempt("packet_old", socket.socket, socket.AF_INET, 10, 0)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EPERM", "EACCES", "ENOSYS", "EINVAL"}


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param(
            Language.PYTHON,
            """
            import socket
            for name in ("host.docker.internal", "metadata.google.internal", "one.example"):
                try:
                    print(name, socket.getaddrinfo(name, 80))
                except socket.gaierror:
                    print(name, "unknown")
            """,
            id="python",
        ),
        pytest.param(
            Language.BASH,
            """
            for name in host.docker.internal metadata.google.internal one.example; do
                echo $name $(getent hosts $name || echo unknown)
            done
            """,
            id="bash",
        ),
        pytest.param(
            Language.JAVASCRIPT,
            """
            const dns = require("dns");
            for (const name of ["host.docker.internal", "metadata.google.internal", "one.example"])
                dns.lookup(name, (error, address) => console.log(name, error ? "unknown" : address));
            """,
            id="javascript",
        ),
    ],
)
def test_names_are_unknown_at_once(glass: Glass, language: Language, code: str) -> None:
    if language not in glass.engine.interpreters():
        pytest.skip(f"this host has no interpreter for {language}")
    result = glass.contains(
        Attack(control=Control.PROBE, language=language, code=code, limits=_room_for_node())
    )
    assert set(answers(result.stdout).values()) == {"unknown"}
    assert len(answers(result.stdout)) == 3


def test_network_of_the_jar_cannot_be_changed(glass: Glass) -> None:
    """An address, a link and a route, asked of the kernel in its own words; rtnetlink(7)."""
    result = glass.contains(
        Attack(
            control=Control.ROOT,
            code="""
            import socket, struct
            from tactics import *
            def ask(kind, body):
                netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
                netlink.bind((0, 0))
                netlink.send(struct.pack("IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)
                code = struct.unpack_from("i", netlink.recv(4096), 16)[0]
                if code:
                    raise OSError(-code, "")
            address = struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7]))
            attempt("address", ask, 20, struct.pack("BBBBI", 2, 24, 0, 0, 1) + address)
            attempt("link", ask, 16, struct.pack("BxHiII", 0, 0, 1, 1, 1))
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EPERM", "EACCES"}


def test_own_loopback_works_and_nothing_else_is_there(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            from tactics import *
            server = socket.create_server(("127.0.0.1", 0))
            socket.create_connection(server.getsockname()).send(b"x")
            say("loopback", server.accept()[0].recv(1) == b"x")
            say("interfaces", [name for _, name in socket.if_nameindex()])
            """,
        )
    )
    assert answers(result.stdout) == {"loopback": "True", "interfaces": "['lo']"}


def _room_for_node() -> Limits:
    return small(memory_mb=256)
