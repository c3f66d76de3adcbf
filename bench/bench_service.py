"""How fast the service is: a real `belljar serve` over HTTP, with a record and a receipt for every run.

    service     `POST /run` for `print('hi')`, one after the other, against the bare interpreter
    sustained   16 clients, against the same engine in this process
    patterns    one after the other, one every 200 ms, all at once: how long, and how many succeed

The client here is a socket and a JSON parser: what a client library costs is its user's affair.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

from belljar.engines.jail.engine import JailEngine
from belljar.models import Language
from bench_jail import HELLO, Size, bare, compared, hello, pythons
from measuring import Job, Promise, Report, Row, at_least, at_most, in_turn, quantile, rate

CLIENTS = 16
STAGGER_S = 0.2
_BODY = json.dumps({"language": "python", "code": HELLO[Language.PYTHON]}).encode()


class Client:
    """One connection that is kept open."""

    def __init__(self, url: str, token: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        head = (
            f"POST /run HTTP/1.1\r\nHost: {self._host}:{port}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(_BODY)}\r\n\r\n"
        )
        self._request = head.encode() + _BODY
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        """RuntimeError or OSError when that did not work."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(self._request)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        length = next(line.split(":")[1] for line in headers if line.lower().startswith("content-length"))
        answer = json.loads(await reader.readexactly(int(length)))
        if answer.get("stdout") != "hi\n":
            raise RuntimeError(f"{status}: {answer}")

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


@asynccontextmanager
async def serving() -> AsyncIterator[Callable[[], Client]]:
    """A service of its own, with records and a token of its own; gives new clients of it."""
    with tempfile.TemporaryDirectory() as data_dir:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from belljar.cli import main; main()"),
            *("serve", "--json", "--port", "0", "--engine", "jail", "--data-dir", data_dir),
            env={**_without_settings(), "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always"},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            where = json.loads(await process.stdout.readline() or b"{}")
            if "url" not in where:
                raise RuntimeError("the service did not start")
            token = _text(where["token_file"]).strip()
            yield lambda: Client(where["url"], token)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()


def _text(path: str) -> str:
    return Path(path).read_text()


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}


async def bench_service(size: Size) -> Report:
    case = "POST /run"
    async with serving() as new_client:
        client = new_client()
        others = {name: bare(path, "-c", HELLO[Language.PYTHON]) for name, path in pythons().items()}
        times = await in_turn({case: client.run, **others}, size.hello)
        await client.close()
    rows = compared(times, [(case, name) for name in others])
    return Report(
        tables={"POST /run of print('hi'), one after the other, with record and receipt": rows},
        promises=[at_most(f"p50 to p50 of {row['against']}", float(row["p50_ratio"]), 1.0) for row in rows],
    )


async def bench_sustained(size: Size) -> Report:
    engine = JailEngine()
    rates: dict[str, list[float]] = {"service": [], "engine": []}
    try:
        async with serving() as new_client:
            clients = [new_client() for _ in range(CLIENTS)]
            jobs: dict[str, Job] = {"service": _by_turns(clients), "engine": hello(engine, Language.PYTHON)}
            for job in jobs.values():
                await rate(job, 2 * CLIENTS, CLIENTS)
            for _ in range(size.blocks):
                for name, job in jobs.items():
                    rates[name].append(await rate(job, size.block, CLIENTS))
            for client in clients:
                await client.close()
    finally:
        await engine.close()
    of_service, of_engine = (statistics.median(rates[name]) for name in ("service", "engine"))
    row: Row = {
        "case": "POST /run",
        "against": "the engine in this process",
        "ratio": of_service / of_engine,
        "runs_per_s": of_service,
        "engine_runs_per_s": of_engine,
        "clients": CLIENTS,
        "rounds": size.blocks * size.block,
    }
    return Report(
        tables={f"Runs per second, {CLIENTS} clients": [row]},
        promises=[at_least("runs per second to the engine's", of_service / of_engine, 0.7)],
    )


def _by_turns(clients: list[Client]) -> Job:
    """Each call by a client that is not busy; there are as many as calls at once."""

    async def once() -> None:
        client = clients.pop()
        try:
            await client.run()
        finally:
            clients.append(client)

    return once


async def bench_patterns(size: Size) -> Report:
    rows: list[Row] = []
    promises: list[Promise] = []
    async with serving() as new_client:

        async def call() -> float | None:
            """Seconds from connecting to the answer; None when it failed."""
            client = new_client()
            start = perf_counter()
            try:
                await client.run()
                return perf_counter() - start
            except (OSError, EOFError, RuntimeError):
                return None
            finally:
                await client.close()

        async def after(delay_s: float) -> float | None:
            await asyncio.sleep(delay_s)
            return await call()

        await call()
        for pattern, found in (
            ("sequential", [await call() for _ in range(size.calls)]),
            ("staggered", await asyncio.gather(*(after(STAGGER_S * turn) for turn in range(size.calls)))),
            ("burst", await asyncio.gather(*(call() for _ in range(size.calls)))),
        ):
            times = [seconds for seconds in found if seconds is not None]
            success = len(times) / size.calls
            rows.append(
                {
                    "pattern": pattern,
                    **{
                        name: 1000 * quantile(times, share) if times else 0.0
                        for name, share in (("median_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))
                    },
                    "success_rate": success,
                    "calls": size.calls,
                }
            )
            promises.append(at_least(f"{pattern}: share of calls that succeed", success, 1.0))
    title = (
        f"POST /run from connecting to the answer: in a row, one every {STAGGER_S * 1000:.0f} ms, all at once"
    )
    return Report(tables={title: rows}, promises=promises)


BENCHMARKS: dict[str, Callable[[Size], Awaitable[Report]]] = {
    "service": bench_service,
    "sustained": bench_sustained,
    "patterns": bench_patterns,
}
