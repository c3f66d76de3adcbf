"""What the way out costs: the same client in a jar through egress, and outside directly, to one server.

    egress   a new connection, an echo over one that is open, bytes in both directions; then the echo again,
             while a neighbour's jar moves as much as it can

The client times itself, so that neither a jar nor an interpreter is counted that had to be started.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from belljar.egress.gate import Egress, Quota
from belljar.engines.base import Area, Command, Engine
from belljar.engines.docker.engine import DockerEngine
from belljar.engines.jail.engine import JailEngine
from belljar.models import Ended, Grant, InputFile, Limits, Network, NetworkRules, Output
from bench_jail import Size
from measuring import Promise, Report, Row, at_least, at_most

HOST = "server.test"
CLIENT = """
import json, socket, sys, time

way, port, opens, echoes, megabytes = sys.argv[1], *map(int, sys.argv[2:])

def connect(order):
    if way == "direct":
        one = socket.create_connection(("127.0.0.1", port))
    else:
        one = socket.create_connection(("127.0.0.1", 3128))
        one.sendall(b"CONNECT server.test:%d HTTP/1.1\\r\\n\\r\\n" % port)
        assert b" 200 " in one.recv(4096)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.sendall(order)
    return one

def median_us(deed, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        deed()
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e6

def opened():
    with connect(b"E") as one:
        one.sendall(b"x" * 64)
        one.recv(64)

def echoed():
    kept.sendall(b"x" * 64)
    kept.recv(64)

def megabytes_per_s(deed):
    start = time.perf_counter()
    deed()
    return megabytes / (time.perf_counter() - start)

def down():
    left = megabytes << 20
    with connect(b"D" + left.to_bytes(8, "big")) as one:
        while left:
            left -= len(one.recv(1 << 18))

def up():
    with connect(b"U") as one:
        for _ in range(megabytes):
            one.sendall(bytes(1 << 20))
        one.shutdown(socket.SHUT_WR)
        one.recv(1)

with connect(b"E") as kept:
    found = {"open_us": median_us(opened, opens), "echo_us": median_us(echoed, echoes)}
if megabytes:
    found.update(down_mb_s=megabytes_per_s(down), up_mb_s=megabytes_per_s(up))
print(json.dumps(found))
"""


def _serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        try:
            order = connection.recv(1)
            if order == b"D":
                left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
                while left > 0:
                    left -= connection.send(bytes(min(left, 1 << 18)))
            elif order == b"U":
                while connection.recv(1 << 18):
                    pass
                connection.sendall(b".")
            else:
                while data := connection.recv(64):
                    connection.sendall(data)
        except OSError:
            pass  # the client has gone


def _listen() -> None:
    """The server's process: says its port, and serves until it is killed."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


@contextmanager
def _server() -> Iterator[int]:
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


async def _resolve(host: str) -> Sequence[str]:
    return ["127.0.0.1"]


async def _in_jar(engine: Engine, port: int, *arguments: int) -> dict[str, float]:
    rules = NetworkRules("settings", hosts=(HOST,), ports=(port,), addresses=("127.0.0.0/8",))
    limits = Limits(timeout_s=600)
    jar = await engine.create(
        Grant(limits=limits, network=Network(True, (rules,)), accept_weaker_limits=True)
    )
    said = b""
    try:
        await jar.put(Area.WORK, [InputFile("client.py", CLIENT.encode())])
        argv = ("/workspace/work/client.py", "proxy", *map(str, (port, *arguments)))
        async for event in jar.exec(Command(argv=argv, warm=True)):
            if isinstance(event, Output):
                said += event.data
            elif isinstance(event, Ended) and event.exit_code:
                raise RuntimeError(said.decode())
    finally:
        await jar.destroy()
    found: dict[str, float] = json.loads(said)
    return found


async def _directly(port: int, *arguments: int) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, "direct", *map(str, (port, *arguments)), stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads((await process.communicate())[0])
    return found


async def _usable(engines: Sequence[Engine]) -> list[Engine]:
    return [engine for engine in engines if (await engine.probe()).usable]


async def egress(size: Size) -> Report:
    opens, echoes, megabytes = size.calls * 2, size.calls * 20, size.output_mb // 2
    way_out = Egress(resolve=_resolve, quota=Quota(1_000_000, 1 << 20))
    jail = JailEngine(way_out=way_out)
    engines: list[Engine] = [
        jail,
        DockerEngine(way_out=way_out),
        DockerEngine(name="gvisor", runtime="runsc", way_out=way_out),
    ]
    rows: list[Row] = []
    try:
        with _server() as port:
            direct = await _directly(port, opens, echoes, megabytes)
            for engine in await _usable(engines):
                tunnel = await _in_jar(engine, port, opens, echoes, megabytes)
                rows += [
                    {
                        "engine": engine.name,
                        "what": name,
                        "direct": direct[name],
                        "through_egress": tunnel[name],
                        "ratio": tunnel[name] / direct[name],
                    }
                    for name in direct
                ]
            alone = await _in_jar(jail, port, 1, echoes, 0)
            noise = asyncio.create_task(_in_jar(jail, port, 1, 1, 20 * megabytes))
            beside = await _in_jar(jail, port, 1, echoes, 0)
            noise.cancel()
            await asyncio.wait({noise})
    finally:
        for engine in engines:
            await engine.close()
    starved = beside["echo_us"] / alone["echo_us"]
    neighbours: list[Row] = [
        {"echo_us": "alone", "p50": alone["echo_us"], "ratio": 1.0},
        {"echo_us": "beside a neighbour that moves all it can", "p50": beside["echo_us"], "ratio": starved},
    ]
    ratios = {row["what"]: float(row["ratio"]) for row in rows if row["engine"] == jail.name}
    added_ms = (ratios["echo_us"] - 1) * direct["echo_us"] / 1000
    promises: list[Promise] = [
        at_most("in a jail an echo takes so many ms more than directly", added_ms, 1.0),
        at_least(
            "in a jail bytes pass at this share of a direct connection's speed",
            min(ratios["down_mb_s"], ratios["up_mb_s"]),
            0.04,
        ),
        at_most("an echo beside a noisy neighbour takes so many times as long", starved, 10.0),
    ]
    return Report(tables={"One client": rows, "Two jars": neighbours}, promises=promises)


BENCHMARKS = {"egress": egress}

if __name__ == "__main__":
    _listen()
