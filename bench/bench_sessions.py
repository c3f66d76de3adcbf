"""What is gained by keeping jars: ready ones in the pool, used ones in a session; and what an idle one costs.

pool       a run from a warm pool against one in a jar made on the spot
sessions   a session's further runs and cells against a run in a jar of its own
idle       so many sessions that nobody uses: memory of each (PSS), and whether all still answer
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from belljar.config import load_here
from belljar.engines.base import Engine
from belljar.engines.jail.engine import JailEngine
from belljar.execution.live import LiveRun
from belljar.execution.pool import Pool
from belljar.execution.runs import run
from belljar.execution.session import Session
from belljar.execution.submissions import Submission
from belljar.models import Language, RunRequest
from belljar.service import Service
from belljar.settings import WeakerLimits
from bench_jail import GRANT, HELLO, Size, compared
from measuring import Case, Report, at_least, at_most, in_turn

FULL_IDLE = 500
FULL_ROUNDS = 300


@asynccontextmanager
async def opened(**settings: object) -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as folder:
        config = replace(
            load_here(),
            data_dir=Path(folder),
            jail_accept_weaker_limits=WeakerLimits.ALWAYS,
            **settings,  # type: ignore[arg-type]
        )
        async with Service.open(config) as service:
            yield service


async def pool(size: Size) -> Report:
    request = RunRequest(language=Language.PYTHON, code=HELLO[Language.PYTHON])
    warm, cold = Pool(JailEngine(), min_idle=4, max_idle=4), JailEngine()
    warm.keep(GRANT)

    engines: dict[str, Engine] = {"warm pool": warm, "jar made on the spot": cold}
    times: dict[str, list[float]] = {name: [] for name in engines}
    try:
        for _ in range(size.others):
            for name, engine in engines.items():
                while warm.state.idle < warm.state.max_idle:  # noqa: ASYNC110  # it has the time to fill
                    await asyncio.sleep(0.01)
                start = perf_counter()
                if (await run(engine, GRANT, request)).stdout != b"hi\n":
                    raise RuntimeError("a run that says something else")
                times[name].append(perf_counter() - start)
    finally:
        await warm.close()
        await cold.close()
    rows = compared(times, [("warm pool", "jar made on the spot")])
    return Report(tables={"A run, from the jar to its result": rows})


async def sessions(size: Size) -> Report:
    async with opened() as service:
        session = await service.sessions.start("bench")
        code = HELLO[Language.PYTHON]

        async def fresh() -> None:
            await _said(await service.lifecycle.submit(Submission(request=_request(code))))

        async def again() -> None:
            await _said(await service.sessions.submit(session, Submission(request=_request(code))))

        async def cell() -> None:
            await _say(service, session, code, context="main")

        cases: dict[str, Case] = {"a run of its own": fresh, "in a session": again, "in a context": cell}
        times = await in_turn(cases, size.others)
    rows = compared(times, [(name, "a run of its own") for name in ("in a session", "in a context")])
    ratio = float(rows[0]["p50_ratio"])
    return Report(
        tables={"`print('hi')` with a record and a receipt": rows},
        promises=[at_most("a session's further run against a run of its own", ratio, 1.1)],
    )


async def idle(size: Size) -> Report:
    count = FULL_IDLE if size.hello >= FULL_ROUNDS else max(4, size.hello // 5)
    async with opened(session_per_project=count, pool_min_idle=0, pool_max_idle=0) as service:
        first = await service.sessions.start("bench")
        await _say(service, first, "print('hi')")
        before = _pss_kb()
        start = perf_counter()
        held = [await service.sessions.start("bench") for _ in range(count - 1)]
        seconds = perf_counter() - start
        each_kb = (_pss_kb() - before) / max(1, len(held))
        answered = 0
        for session in held:
            await _say(service, session, "print('hi')")
            answered += 1
    row = {
        "sessions": count,
        "pss_kb_each": each_kb,
        "start_ms_each": 1000 * seconds / max(1, len(held)),
        "answered": answered + 1,
    }
    return Report(
        tables={"Idle sessions": [row]},
        promises=[at_least("sessions that still answer, of all", (answered + 1) / count, 1.0)],
    )


def _request(code: str, context: str | None = None) -> RunRequest:
    return RunRequest(language=Language.PYTHON, code=code, context=context)


async def _say(service: Service, session: Session, code: str, context: str | None = None) -> None:
    await _said(await service.sessions.submit(session, Submission(request=_request(code, context))))


async def _said(taken: object) -> None:
    assert isinstance(taken, LiveRun)
    result = (await taken.outcome()).result
    if result is None or result.stdout != b"hi\n":
        raise RuntimeError("a run that says something else")


def _pss_kb() -> int:
    """Of all that this process has started, the launcher and every jar."""
    total = 0
    for pid in _below(os.getpid()):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended, or is not ours to look at
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total


def _below(pid: int) -> Iterator[int]:
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            if os.path.isdir(f"/proc/{child}"):
                yield from _below(child)


BENCHMARKS = {"pool": pool, "sessions": sessions, "idle": idle}
