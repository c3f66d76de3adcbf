"""How fast the embedded engine is, against doing the same without it.

hello       a fresh jar for `print('hi')` and its like, against the bare interpreter
throughput  eight of them at once
output      a program that writes a gigabyte, against writing it to /dev/null
preload     heavy imports, preloaded and not
soak        thousands of runs in a row: does anything grow?
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from belljar.engines.base import Area
from belljar.engines.jail.engine import JailEngine
from belljar.execution.requests import plan
from belljar.execution.runs import run
from belljar.models import Grant, Language, Limits, RunRequest, Start, Started, Verdict
from measuring import (
    Case,
    Job,
    Promise,
    Report,
    Row,
    at_least,
    at_most,
    in_turn,
    quantile,
    rate,
    trend,
)

HELLO = {
    Language.PYTHON: "print('hi')",
    Language.BASH: "echo hi",
    Language.JAVASCRIPT: "console.log('hi')",
}
AT_ONCE = 8
OUTPUT = {
    "lines of 100 bytes": "line = 'x' * 99\nfor _ in range({bytes} // 100):\n    print(line)\n",
    "blocks of 64 KiB": (
        "import sys\n"
        "block = b'x' * 65536\n"
        "for _ in range({bytes} // 65536):\n"
        "    sys.stdout.buffer.write(block)\n"
    ),
}
HEAVY = ("asyncio", "email.message", "http.client", "xml.dom.minidom", "unittest", "decimal")
GRANT = Grant(accept_weaker_limits=True, limits=Limits(timeout_s=600.0))
"""The defaults, but for a program that writes a gigabyte on a slow machine."""
ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
"""Of bare programs: what a program in a jar has, and nothing that a person's shell adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    hello: int
    others: int
    """Rounds of the starts that are not promised to be fast."""
    block: int
    """Runs of one block of throughput."""
    blocks: int
    output_mb: int
    output_rounds: int
    preload: int
    warm_up: int
    soak: int
    sample_every: int
    calls: int
    """Of the service, in each pattern."""


FULL = Size(
    hello=300,
    others=50,
    block=160,
    blocks=5,
    output_mb=1024,
    output_rounds=3,
    preload=50,
    warm_up=500,
    soak=10_000,
    sample_every=250,
    calls=100,
)
QUICK = Size(
    hello=50,
    others=10,
    block=40,
    blocks=3,
    output_mb=128,
    output_rounds=1,
    preload=10,
    warm_up=50,
    soak=200,
    sample_every=10,
    calls=25,
)
SMOKE = Size(
    hello=2,
    others=1,
    block=8,
    blocks=1,
    output_mb=2,
    output_rounds=1,
    preload=1,
    warm_up=2,
    soak=16,
    sample_every=2,
    calls=3,
)
SIZES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}


# The things that are compared


def jailed(engine: JailEngine, request: RunRequest, printed: bytes | None) -> Job:
    """One run from request to result, with everything cleaned up. `printed` None: any output will do."""

    async def once() -> None:
        result = await run(engine, GRANT, request)
        if result.verdict is not Verdict.EXITED or result.exit_code != 0:
            raise RuntimeError(f"a run ended with {result.verdict} {result.exit_code}: {result.stderr!r}")
        if printed is not None and result.stdout != printed:
            raise RuntimeError(f"a run printed {result.stdout!r}")

    return once


def hello(engine: JailEngine, language: Language, start: Start = Start.FORK) -> Job:
    request = RunRequest(language=language, code=HELLO[language], start=start)
    return jailed(engine, request, b"hi\n")


def bare(*argv: str) -> Case:
    def once() -> None:
        done = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, check=True)
        if done.stdout != b"hi\n":
            raise RuntimeError(f"{argv[0]} printed {done.stdout!r}")

    return once


def pythons() -> dict[str, str]:
    """The interpreter that jars run, and the system's where that is another."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    found = {"bare python3, the jars' own": own}
    system = os.path.realpath("/usr/bin/python3")
    if os.path.exists(system) and system != own:
        found["bare python3, the system's"] = system
    return found


def compared(times: dict[str, list[float]], pairs: list[tuple[str, str]]) -> list[Row]:
    rows: list[Row] = []
    for case, against in pairs:
        p50, p99 = quantile(times[case], 0.5), quantile(times[case], 0.99)
        base50, base99 = quantile(times[against], 0.5), quantile(times[against], 0.99)
        rows.append(
            {
                "case": case,
                "against": against,
                "p50_ratio": p50 / base50,
                "p99_ratio": p99 / base99,
                "p99_to_bare_p50": p99 / base50,
                "p50_ms": 1000 * p50,
                "p99_ms": 1000 * p99,
                "bare_p50_ms": 1000 * base50,
                "bare_p99_ms": 1000 * base99,
                "rounds": len(times[case]),
            }
        )
    return rows


# hello


async def bench_hello(size: Size) -> Report:
    engine = JailEngine()
    try:
        bare_pythons = {name: bare(path, "-c", HELLO[Language.PYTHON]) for name, path in pythons().items()}
        fork = "jar, fork start"
        times = await in_turn({fork: hello(engine, Language.PYTHON), **bare_pythons}, size.hello)
        rows = compared(times, [(fork, name) for name in bare_pythons])
        promises: list[Promise] = []
        for row in rows:
            name = row["against"]
            promises += [
                at_most(f"p50 to p50 of {name}", float(row["p50_ratio"]), 1.0),
                at_most(f"p99 to p50 of {name}", float(row["p99_to_bare_p50"]), 4.0),
            ]
        return Report(
            tables={
                "A fresh jar for print('hi'), from request to result with everything cleaned up": rows,
                "Other ways to say hi": await _other_starts(engine, size.others),
                **await _breakdown(engine, size.hello),
            },
            promises=promises,
        )
    finally:
        await engine.close()


async def _other_starts(engine: JailEngine, rounds: int) -> list[Row]:
    name, python = next(iter(pythons().items()))
    cases: dict[str, Case] = {
        "jar, exec start": hello(engine, Language.PYTHON, Start.EXEC),
        name: bare(python, "-c", HELLO[Language.PYTHON]),
    }
    pairs = [("jar, exec start", name)]
    for language, program, flag in ((Language.BASH, "bash", "-c"), (Language.JAVASCRIPT, "node", "-e")):
        if language in engine.interpreters():
            cases[f"jar, {program}"] = hello(engine, language)
            cases[f"bare {program}"] = bare(program, flag, HELLO[language])
            pairs.append((f"jar, {program}", f"bare {program}"))
    return compared(await in_turn(cases, rounds), pairs)


async def _breakdown(engine: JailEngine, rounds: int) -> dict[str, list[Row]]:
    """Medians: of what a caller waits for, and of what making a jar takes, most of it ahead of time."""
    request = RunRequest(language=Language.PYTHON, code=HELLO[Language.PYTHON])
    waited: dict[str, list[float]] = {}
    making: dict[str, list[float]] = {}
    for _ in range(rounds):
        phases, timings = await _phases(engine, request)
        for parts, seconds in ((waited, phases), (making, timings)):
            for part, time in seconds.items():
                parts.setdefault(part, []).append(time)
    making.pop("wait", None)  # of a jar made ahead of time, until it is needed
    whole = statistics.median(waited["whole"])
    return {
        title: [
            {"part": part, "p50_ms": 1000 * (p50 := statistics.median(times)), "of_whole": p50 / whole}
            for part, times in parts.items()
        ]
        for title, parts in (
            ("Where the time of a fork start goes", waited),
            ("What making a jar takes, in the launcher and in the jar", making),
        )
    }


async def _phases(engine: JailEngine, request: RunRequest) -> tuple[Mapping[str, float], Mapping[str, float]]:
    begin = mark = perf_counter()
    seconds: dict[str, float] = {}

    def done(part: str) -> None:
        nonlocal mark
        now = perf_counter()
        seconds[part] = now - mark
        mark = now

    work = plan(request, GRANT, engine.interpreters(), engine.name)
    done("plan")
    jar = await engine.create(GRANT)
    done("create")
    await jar.put(Area.WORK, work.files)
    done("put")
    async for event in jar.exec(work.command):
        if isinstance(event, Started):
            done("exec, until started")
    done("run, until ended")
    await jar.collect(None)
    done("collect")
    await jar.destroy()
    done("destroy")
    seconds["whole"] = perf_counter() - begin
    return seconds, jar.timings


# throughput


async def bench_throughput(size: Size) -> Report:
    if sys.version_info < (3, 12):  # newer ones do this by themselves: no thread per bare process
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)
    engine = JailEngine()
    try:
        jar = "jar, fork start"
        jobs = {jar: hello(engine, Language.PYTHON)}
        jobs |= {name: _bare_job(path) for name, path in pythons().items()}
        rates: dict[str, list[float]] = {name: [] for name in jobs}
        for job in jobs.values():
            await rate(job, AT_ONCE, AT_ONCE)
        for _ in range(size.blocks):
            for name, job in jobs.items():
                rates[name].append(await rate(job, size.block, AT_ONCE))
    finally:
        await engine.close()
    rows: list[Row] = [
        {
            "case": jar,
            "against": name,
            "ratio": statistics.median(rates[jar]) / statistics.median(rates[name]),
            "runs_per_s": statistics.median(rates[jar]),
            "bare_runs_per_s": statistics.median(rates[name]),
            "at_once": AT_ONCE,
            "rounds": size.blocks * size.block,
        }
        for name in pythons()
    ]
    promises = [at_least(f"runs per second to {row['against']}", float(row["ratio"]), 1.0) for row in rows]
    return Report(tables={f"Runs per second, {AT_ONCE} at once": rows}, promises=promises)


def _bare_job(python: str) -> Job:
    async def job() -> None:
        process = await asyncio.create_subprocess_exec(
            python,
            "-c",
            HELLO[Language.PYTHON],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        stdout, _ = await process.communicate()
        if stdout != b"hi\n":
            raise RuntimeError(f"{python} printed {stdout!r}")

    return job


# output


async def bench_output(size: Size) -> Report:
    engine = JailEngine()
    python = next(iter(pythons().values()))
    rows: list[Row] = []
    promises: list[Promise] = []
    try:
        for shape, text in OUTPUT.items():
            code = text.format(bytes=size.output_mb << 20)
            jar = jailed(engine, RunRequest(language=Language.PYTHON, code=code), None)
            before_kb = _forget_peak_kb()
            await jar()
            grown_mb = (_memory_kb("VmHWM") - before_kb) / 1024
            times = await in_turn(
                {
                    "jar": jar,
                    "null": _writes_to(subprocess.DEVNULL, python, code),
                    "pipe": _writes_to(subprocess.PIPE, python, code),
                },
                size.output_rounds,
            )
            wall = {case: statistics.median(samples) for case, samples in times.items()}
            rows.append(
                {
                    "case": shape,
                    "to_dev_null": wall["jar"] / wall["null"],
                    "to_a_pipe": wall["jar"] / wall["pipe"],
                    "jar_s": wall["jar"],
                    "bare_dev_null_s": wall["null"],
                    "bare_pipe_s": wall["pipe"],
                    "host_peak_growth_mb": grown_mb,
                    "mb": size.output_mb,
                }
            )
            promises += [
                at_most(f"{shape}: time to that of writing to /dev/null", wall["jar"] / wall["null"], 3.0),
                at_most(f"{shape}: MB that the host grew by", grown_mb, 16.0),
            ]
    finally:
        await engine.close()
    return Report(tables={f"A program that writes {size.output_mb} MB": rows}, promises=promises)


def _writes_to(where: int, python: str, code: str) -> Case:
    """To /dev/null, or into a pipe that is read and thrown away as fast as this process can."""

    def once() -> None:
        with subprocess.Popen([python, "-c", code], env=ENVIRONMENT, stdout=where) as process:
            if process.stdout is not None:
                while os.read(process.stdout.fileno(), 1 << 20):
                    pass
        if process.returncode:
            raise RuntimeError(f"{python} ended with {process.returncode}")

    return once


def _memory_kb(field: str) -> int:
    for line in _text("/proc/self/status").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def _forget_peak_kb() -> int:
    """Memory now, and from now on the peak (VmHWM) is counted anew. proc(5), clear_refs"""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory_kb("VmHWM")


# preload


async def bench_preload(size: Size) -> Report:
    tables = {f"import {', '.join(HEAVY)}": await _preloaded(HEAVY, size, pythons())}
    promises = []
    name, own = next(iter(pythons().items()))
    if await asyncio.to_thread(_has_pandas, own):
        rows = tables["import pandas"] = await _preloaded(("pandas",), size, {name: own})
        ratio = next(float(row["p50_ratio"]) for row in rows if row["against"] == name)
        promises.append(at_most(f"import pandas, preloaded: p50 to p50 of {name}", ratio, 0.1))
    return Report(tables=tables, promises=promises)


def _has_pandas(python: str) -> bool:
    return subprocess.run([python, "-c", "import pandas"], capture_output=True, check=False).returncode == 0


async def _preloaded(modules: tuple[str, ...], size: Size, against: Mapping[str, str]) -> list[Row]:
    code = f"import {', '.join(modules)}\nprint('hi')"
    request = RunRequest(language=Language.PYTHON, code=code)
    plain, warm = JailEngine(), JailEngine(preload=modules)
    try:
        cases: dict[str, Case] = {
            "jar, preloaded": jailed(warm, request, b"hi\n"),
            "jar, not preloaded": jailed(plain, request, b"hi\n"),
            **{name: bare(path, "-c", code) for name, path in against.items()},
        }
        times = await in_turn(cases, size.preload)
    finally:
        await warm.close()
        await plain.close()
    others = [name for name in cases if name != "jar, preloaded"]
    return compared(times, [("jar, preloaded", name) for name in others])


# soak


async def bench_soak(size: Size) -> Report:
    engine = JailEngine()
    job = hello(engine, Language.PYTHON)
    runs: list[int] = []
    samples: dict[str, list[float]] = {}
    try:
        for count in range(-size.warm_up, size.soak + 1):
            if count >= 0 and count % size.sample_every == 0:
                gc.collect()  # what waits for the collector is no growth
                runs.append(count)
                for what, value in _possessions().items():
                    samples.setdefault(what, []).append(value)
            await job()
    finally:
        await engine.close()
    rows: list[Row] = []
    for what, values in samples.items():
        line = trend(runs, values)
        rows.append(
            {
                "what": what,
                "per_1000_runs": line.slope,
                "plus_minus": line.margin,
                "first": values[0],
                "last": values[-1],
                "verdict": "GROWS" if line.grows else "flat",
            }
        )
    growing = sum(row["verdict"] == "GROWS" for row in rows)
    return Report(
        tables={f"{size.soak} runs in a row, after {size.warm_up}; sampled every {size.sample_every}": rows},
        promises=[at_most("things that grow", growing, 0)],
    )


def _possessions() -> dict[str, float]:
    """All that a run could leave behind in us, in our children and in the kernel, between two runs.

    The children are the launcher and what it has made ahead of time.
    """
    children = list(_descendants(os.getpid()))
    ours = f"/belljar-{os.getpid()}-"
    return {
        "host descriptors": _count("/proc/self/fd"),
        "host threads": _count("/proc/self/task"),
        "host memory, kB": _own_kb(os.getpid()),
        "children": len(children),
        "children's descriptors": sum(_count(f"/proc/{pid}/fd") for pid in children),
        "children's memory, kB": sum(map(_own_kb, children)),
        "mounts": sum(len(_text(f"/proc/{pid}/mountinfo").splitlines()) for pid in (os.getpid(), *children)),
        "cgroups": sum(ours in folder for folder, _, _ in os.walk("/sys/fs/cgroup")),
    }


def _descendants(pid: int) -> Iterator[int]:
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in _text(f"/proc/{pid}/task/{task}/children").split():
            yield int(child)
            with suppress(OSError):  # it has just ended
                yield from _descendants(int(child))


def _own_kb(pid: int) -> int:
    """Without what it shares with its forks, counted once for all of them, and without files."""
    for line in _text(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1])
    return 0


def _count(folder: str) -> int:
    with suppress(OSError):
        return len(os.listdir(folder))
    return 0


def _text(path: str) -> str:
    with suppress(OSError):  # of a process that has just ended
        return Path(path).read_text()
    return ""


BENCHMARKS: dict[str, Callable[[Size], Awaitable[Report]]] = {
    "hello": bench_hello,
    "throughput": bench_throughput,
    "output": bench_output,
    "preload": bench_preload,
    "soak": bench_soak,
}
