"""The way out: what was not granted is not reached through it, whatever a program says to its proxy.

Each attack is shown to be one: where the host it is after is granted, the same program gets there.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from tests.egress.jars import jail, run
from tests.egress.places import Seen, answered, egress, network, server

from belljar.engines.base import Area, Command, Engine
from belljar.engines.jail.engine import JailEngine
from belljar.engines.kept import KeptJar
from belljar.errors import GrantNotEnforceable
from belljar.models import Ended, Grant, InputFile, Language, Limits, Network, NetworkRules, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = {"public.test": ["127.0.0.2"], "service.test": ["127.0.0.1"], "six.test": ["::1"]}
"""What stands for the world is at 127.0.0.2; 127.0.0.1 is the host itself."""
ROOMY = Limits(timeout_s=60, nofile=4096, pids=256)
TOKEN = b"the-hosts-own"

ASK = """
import socket

def ask(*said, port=3128):
    "Says it all, piece after piece, each when the last was answered; returns what was heard."
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as one:
            for piece in said:
                one.sendall(piece)
                heard += one.recv(65536)
            one.settimeout(5)
            while data := one.recv(65536):
                heard += data
    except OSError as error:
        heard += str(error).encode()
    return heard
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[JailEngine]:
    engine = jail(egress(NAMES))
    probe = await engine.probe()
    if not probe.usable:
        pytest.skip(f"the jail cannot be used here: {probe.missing}")
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def service() -> AsyncIterator[tuple[int, Seen]]:
    """A service of the host, on every address that it has."""
    async with server(answered(TOKEN), address="127.0.0.1") as (port, seen):
        async with server(answered(TOKEN), address="::1", port=port):
            yield port, seen


def world(*ports: int) -> Network:
    return network(*ports, hosts=("*.test",), addresses=("127.0.0.2/32",))


def everything(*ports: int) -> Network:
    return network(*ports, hosts=("*.test",), addresses=("127.0.0.0/8", "::1/128"))


async def attack(engine: Engine, allowed: Network, code: str, limits: Limits | None = None) -> bytes:
    result, _ = await run(
        engine, allowed, code, Language.PYTHON, limits=limits, files=(InputFile("asking.py", ASK.encode()),)
    )
    assert (result.verdict, result.exit_code) == (Verdict.EXITED, 0), result
    return result.stdout


WAYS = """
    from asking import ask
    for host in {hosts!r}:
        at = host + ":{port}"
        print(ask(f"GET http://{{at}}/ HTTP/1.1\\r\\nHost: {{at}}\\r\\n\\r\\n".encode()))
        print(ask(f"CONNECT {{at}} HTTP/1.1\\r\\nHost: {{at}}\\r\\n\\r\\n".encode(), b"GET / HTTP/1.1\\r\\n\\r\\n"))
        name = host.encode()
        request = b"\\5\\1\\0\\3" + bytes([len(name)]) + name + ({port}).to_bytes(2, "big")
        print(ask(b"\\5\\1\\0", request, b"GET / HTTP/1.1\\r\\n\\r\\n"))
    """


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(["service.test"], id="name-of-a-private-address"),
        pytest.param(["six.test"], id="name-of-a-private-address-v6"),
    ],
)
async def test_the_host_is_not_reached_by_name(
    engine: Engine, service: tuple[int, Seen], hosts: list[str]
) -> None:
    port, seen = service
    code = WAYS.format(hosts=hosts, port=port)
    said = await attack(engine, world(port), code)
    assert TOKEN not in said
    assert seen.connections == 0
    assert TOKEN in await attack(engine, everything(port), code), "not an attack"


async def test_the_host_is_not_reached_by_address_even_where_its_range_is_granted(
    engine: Engine, service: tuple[int, Seen]
) -> None:
    port, seen = service
    hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::1%lo]",
        "0",
        "localhost",
        "belljar",
        "\uff11\uff12\uff17.0.0.1",
    ]
    assert TOKEN not in await attack(engine, everything(port), WAYS.format(hosts=hosts, port=port))
    assert seen.connections == 0


async def test_no_port_is_reached_that_was_not_granted(engine: Engine, service: tuple[int, Seen]) -> None:
    port, seen = service
    said = await attack(engine, everything(80, 443), WAYS.format(hosts=["service.test"], port=port))
    assert TOKEN not in said
    assert seen.connections == 0


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            "GET http://public.test:{p}/ HTTP/1.1\r\nHost: service.test:{p}\r\n\r\n", id="host-mismatch"
        ),
        pytest.param(
            "GET http://public.test:{p}/ HTTP/1.1\r\nHost: public.test:{p}\r\nHost: service.test\r\n\r\n",
            id="two-hosts",
        ),
        pytest.param(
            "POST http://public.test:{p}/ HTTP/1.1\r\nHost: public.test:{p}\r\nContent-Length: 5\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: service.test\r\n\r\n",
            id="two-framings",
        ),
        pytest.param(
            "GET http://public.test:{p}/ HTTP/1.1\r\nHost: public.test:{p}\r\n\r\n"
            "GET /smuggled HTTP/1.1\r\nHost: service.test\r\n\r\n",
            id="pipelined",
        ),
        pytest.param(
            "GET http://public.test:{p}/ HTTP/1.1\r\nHost: public.test:{p}\r\nX: a\n\nGET /smuggled HTTP/1.1\r\n\r\n",
            id="bare-line-feeds",
        ),
        pytest.param(
            "GET http://public.test:{p}/ HTTP/1.1\r\nHost: public.test:{p}\r\nConnection: upgrade\r\nUpgrade: x\r\n"
            "\r\nGET /smuggled HTTP/1.1\r\nHost: service.test\r\n\r\n",
            id="pretended-upgrade",
        ),
    ],
)
async def test_nothing_is_smuggled_past_the_check(engine: Engine, request_: str) -> None:
    async with server(answered(b"front"), address="127.0.0.2") as (port, seen):
        await attack(
            engine, world(port), f"from asking import ask\nprint(ask({request_.format(p=port).encode()!r}))"
        )
    assert b"smuggled" not in seen.text
    assert b"service.test" not in seen.text
    assert seen.connections <= 1


NOTE = b"a-note-for-the-next-run"
LEAVE = """
    from asking import ask
    at, note = "public.test:{port}", "{note}"
    def tell(method, *lines, body=""):
        head = (f"{{method}} http://{{at}}/board HTTP/1.1", f"Host: {{at}}", *lines, "", body)
        print(ask("\\r\\n".join(head).encode()))

    for method in ("PUT", "POST", "DELETE", "PATCH", "MKCOL", "put"):
        tell(method, f"Content-Length: {{len(note)}}", body=note)
    for lines, body in (
        ((f"Content-Length: {{len(note)}}",), note),
        (("Transfer-Encoding: chunked",), f"{{len(note):x}}\\r\\n{{note}}\\r\\n0\\r\\n\\r\\n"),
        (("Connection: upgrade", "Upgrade: websocket"), note),
        (("X-HTTP-Method-Override: PUT", "X-Note: " + note), ""),
    ):
        tell("GET", *lines, body=body)
    """


@pytest.mark.parametrize("read_only", [False, True], ids=["open", "read-only"])
async def test_a_mirror_carries_no_note_from_one_run_to_the_next(engine: Engine, read_only: bool) -> None:
    """A mirror that keeps what is written to its board, and shows it to whoever asks."""
    board = bytearray()

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/board" in head.partition(b"\r\n")[0]:
            board.extend(head)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    while data := await reader.read(4096):
                        board.extend(data)
        writer.write(answered(bytes(board)))

    async with server(mirror, address="127.0.0.2") as (port, _):
        allowed = network(
            port, hosts=("*.test",), addresses=("127.0.0.2/32",), read_only=("*",) if read_only else ()
        )
        await attack(engine, allowed, LEAVE.format(port=port, note=NOTE.decode()))
        read = "from asking import ask; print(ask(b'GET http://public.test:{0}/ HTTP/1.1\\r\\nHost: public.test:{0}\\r\\n\\r\\n'))"
        found = await attack(engine, allowed, read.format(port))
    assert b"200 OK" in found
    assert (NOTE in found) is not read_only


async def test_a_redirect_to_the_host_is_a_request_like_any_other(
    engine: Engine, service: tuple[int, Seen]
) -> None:
    port, seen = service
    redirect = f"HTTP/1.1 302 Found\r\nlocation: http://service.test:{port}/\r\ncontent-length: 0\r\n\r\n"
    async with server(redirect.encode(), address="127.0.0.2") as (front, _):
        code = f"""
            import urllib.request
            try:
                print(urllib.request.urlopen("http://public.test:{front}/").read())
            except OSError as error:
                print(error)
            """
        assert TOKEN not in await attack(engine, world(front, port), code)
        assert seen.connections == 0
        assert TOKEN in await attack(engine, everything(front, port), code), "not an attack"


async def test_there_is_no_way_beside_the_proxy(engine: Engine, service: tuple[int, Seen]) -> None:
    """Without the proxy's variables, with none for anything, and through a relay of the program's own."""
    port, seen = service
    said = await attack(
        engine,
        everything(port),
        f"""
        import socket
        for family, address in ((2, "127.0.0.1"), (2, "127.0.0.2"), (10, "::1"), (2, "93.184.216.34")):
            one = socket.socket(family)
            one.settimeout(2)
            print(one.connect_ex((address, {port})))
        try:
            print(socket.getaddrinfo("service.test", {port}))
        except OSError as error:
            print(error)
        """,
    )
    assert TOKEN not in said
    assert seen.connections == 0


async def test_a_jar_without_network_has_no_proxy(engine: Engine) -> None:
    result, contacts = await run(
        engine,
        Network(),
        """
        import os, socket
        print(socket.socket().connect_ex(("127.0.0.1", 3128)), [name for name in os.environ if "proxy" in name.lower()])
        print(os.path.exists("/tmp/.belljar"))
        """,
        Language.PYTHON,
    )
    assert result.stdout == b"111 []\nFalse\n"
    assert not contacts


async def test_the_proxy_of_one_jar_is_not_there_for_another(engine: Engine) -> None:
    """The other has no network; its loopback is its own."""
    async with server(answered(b"world"), address="127.0.0.2") as (port, seen):
        asking = asyncio.create_task(run(engine, world(port), "import time; time.sleep(1)", Language.PYTHON))
        result, _ = await run(
            engine,
            Network(),
            "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)))",
            Language.PYTHON,
        )
        await asking
    assert result.stdout == b"111\n"
    assert seen.connections == 0


async def test_the_port_of_the_proxy_cannot_be_taken_over(engine: Engine) -> None:
    said = await attack(
        engine,
        world(80),
        """
        import errno, socket
        for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,)):
            one = socket.socket()
            for option in options:
                one.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                one.bind(("127.0.0.1", 3128))
                one.listen()
                print("taken")
            except OSError as error:
                print(errno.errorcode[error.errno])
        """,
    )
    assert said == b"EADDRINUSE\n" * 3


async def test_an_engine_without_egress_refuses_a_network() -> None:
    engine = jail(None)
    with pytest.raises(GrantNotEnforceable, match="egress"):
        await engine.create(Grant(network=world(80), accept_weaker_limits=True))
    await engine.close()


async def test_a_flood_of_connections_harms_only_its_own_jar(engine: Engine) -> None:
    """As many as there can be, half of them never saying what they want; a neighbour asks meanwhile."""
    flooding = asyncio.Event()

    async def notice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flooding.set()
        await reader.read()

    descriptors = len(os.listdir("/proc/self/fd"))
    async with (
        server(notice, address="127.0.0.2") as (port, seen),
        server(answered(b"through"), address="127.0.0.2") as (other, _),
    ):
        flood = asyncio.create_task(
            run(
                engine,
                world(port),
                f"""
                import socket, time
                kept = []
                for number in range(2000):
                    one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", 3128))
                    kept.append(one)
                    if number == 50:
                        time.sleep(0.2)
                    if number < 50:
                        one.setblocking(True)
                        one.sendall(b"CONNECT public.test:{port} HTTP/1.1\\r\\n\\r\\n")
                time.sleep(1)
                """,
                Language.PYTHON,
                limits=ROOMY,
            )
        )
        await asyncio.wait_for(flooding.wait(), 30)
        said = await attack(engine, world(other), WAYS.format(hosts=["public.test"], port=other))
        assert said.count(b"through") == 3
        result, _ = await flood
        assert result.verdict is Verdict.EXITED
        assert seen.connections <= 128
        async with asyncio.timeout(30):
            # Servers of this test, jars forked ahead.
            while len(os.listdir("/proc/self/fd")) > descriptors + 16:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_what_is_not_read_is_not_taken_from_the_server_either(engine: Engine) -> None:
    """A program that asks for much on many connections, and reads none of it."""
    written = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()
            written += 1 << 16

    before = _resident_mb()
    async with server(endless, address="127.0.0.2") as (port, seen):
        await attack(
            engine,
            world(port),
            f"""
            import socket, time
            kept = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(30)]
            for one in kept:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.sendall(b"GET http://public.test:{port}/ HTTP/1.1\\r\\nHost: public.test:{port}\\r\\n\\r\\n")
            for one in kept:
                one.recv(1, socket.MSG_PEEK)  # it is answered
            time.sleep(1.5)
            """,
            ROOMY,
        )
    assert seen.connections == 30
    # What sockets of the kernel hold on the way, and a window each.
    assert written < 30 * (12 << 20)
    assert _resident_mb() - before < 200


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


async def test_what_a_session_left_running_has_no_way_out_between_runs(engine: JailEngine) -> None:
    async with server(answered(b"world"), address="127.0.0.2") as (port, seen):
        grant = Grant(network=world(port), accept_weaker_limits=True)
        kept = KeptJar(await engine.create(grant))
        try:
            await kept.put(Area.WORK, [InputFile("asking.py", ASK.encode())])
            ask = f"ask(b'GET http://public.test:{port}/ HTTP/1.1\\r\\nHost: public.test:{port}\\r\\n\\r\\n')"
            later = f"""
                import os, time
                from asking import ask
                print({ask}.endswith(b"world"), flush=True)
                if os.fork() == 0:
                    os.setsid()
                    while not os.path.exists("over"):
                        time.sleep(0.01)
                    open("saying", "wb").write({ask} or b"nothing")
                    os.rename("saying", "said")
                    os._exit(0)
                """
            assert await _in_session(kept, grant, later) == b"True\n"
            await kept.put(Area.WORK, [InputFile("over", b"")])
            async with asyncio.timeout(60):
                while "said" not in [entry.path for entry in await kept.listing(Area.WORK)]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert b"world" not in (await kept.read(Area.WORK, "said", length=1000))[0]
            assert seen.connections == 1
            assert (
                await _in_session(kept, grant, f"from asking import ask\nprint({ask}[-5:])") == b"b'world'\n"
            )
        finally:
            await kept.destroy()


async def _in_session(kept: KeptJar, grant: Grant, code: str) -> bytes:
    await kept.put(Area.WORK, [InputFile("main.py", textwrap.dedent(code).encode())])
    seat = kept.seat(grant)
    said = b""
    async for event in seat.exec(Command(argv=("/workspace/work/main.py",), warm=True)):
        said += getattr(event, "data", b"")
        if isinstance(event, Ended):
            assert event.verdict is Verdict.EXITED
    return said


async def test_a_layer_that_denies_wins_in_the_jar_too(engine: Engine) -> None:
    async with server(answered(b"world"), address="127.0.0.2") as (port, seen):
        allowed = world(port)
        denied = replace(
            allowed, rules=(*allowed.rules, NetworkRules("request", denied_hosts=("public.test",)))
        )
        assert b"world" not in await attack(engine, denied, WAYS.format(hosts=["public.test"], port=port))
        assert seen.connections == 0
        assert b"world" in await attack(engine, allowed, WAYS.format(hosts=["public.test"], port=port))
