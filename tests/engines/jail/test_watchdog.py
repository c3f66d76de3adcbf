"""Limits of an ordinary user without a cgroup: weaker layers hold them, and the result says so."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from belljar.engines.jail.watchdog import INTERVAL_S, Watchdog, _descendants

RUN = """
import asyncio, json, sys
from belljar.engines.jail.engine import JailEngine
from belljar.execution import runs
from belljar.models import Grant, Limits, RunRequest

async def main():
    engine = JailEngine()
    grant = Grant(limits=Limits(**json.loads(sys.argv[2])), accept_weaker_limits=True)
    try:
        result = await runs.run(engine, grant, RunRequest(code=sys.argv[1]))
    finally:
        await engine.close()
    usage = result.usage
    print(json.dumps({
        "verdict": result.verdict, "stdout": result.stdout.decode(), "stderr": result.stderr.decode(),
        "exit_code": result.exit_code, "held_by": dict(usage.held_by), "oom_kills": usage.oom_kills,
        "memory_peak_mb": usage.memory_peak_mb, "pids_peak": usage.pids_peak, "cpu_s": usage.cpu_s,
    }))

asyncio.run(main())
"""

RunProgram = Callable[..., dict[str, Any]]


@pytest.fixture
def run_program(run_as_nobody: Callable[..., subprocess.CompletedProcess[str]]) -> RunProgram:
    """One program of nobody's, who has no cgroup; its result."""

    def run(code: str, **limits: float) -> dict[str, Any]:
        done = run_as_nobody(RUN, code, json.dumps(limits))
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        if "cgroup" in result["held_by"]["memory"]:
            pytest.skip("this user was given a cgroup; run the tests as root, which tries it as nobody")
        return result

    return run


def test_the_weaker_layers_are_named_in_the_result(run_program: RunProgram) -> None:
    # It stays for a while, so that it is looked at.
    result = run_program("import time\nwhile time.process_time() < 0.2: pass\ntime.sleep(3)")
    assert result["verdict"] == "exited"
    assert result["held_by"] == {"memory": "rlimit and watchdog", "pids": "rlimit", "cpu": "affinity"}
    assert result["cpu_s"] >= 0.1
    assert result["memory_peak_mb"] > 0
    assert result["pids_peak"] >= 1


def test_one_process_is_refused_memory_by_its_rlimit(run_program: RunProgram) -> None:
    code = "try: bytearray(200 << 20)\nexcept MemoryError: print('refused')"
    result = run_program(code, memory_mb=64)
    assert (result["verdict"], result["stdout"]) == ("exited", "refused\n")


def test_processes_that_are_too_much_together_are_ended_as_oom(run_program: RunProgram) -> None:
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        memory = bytearray(os.urandom(1 << 20) * 24)
        time.sleep(20)
time.sleep(20)
"""
    result = run_program(code, memory_mb=64, timeout_s=15)
    assert result["verdict"] == "oom"
    assert result["oom_kills"] >= 1
    assert result["memory_peak_mb"] > 64


@pytest.mark.parametrize("folder", ["/workspace/work", "/tmp", "/dev/shm"])
def test_files_in_memory_count(run_program: RunProgram, folder: str) -> None:
    code = f"""
import time
with open("{folder}/large", "wb") as file:
    for _ in range(48):
        file.write(bytes(1 << 20))
time.sleep(20)
"""
    assert run_program(code, memory_mb=40, timeout_s=15, grace_s=0)["verdict"] == "oom"


def test_forks_beyond_the_limit_are_refused(run_program: RunProgram) -> None:
    code = """
import os, time
children = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(20)
        children += 1
except BlockingIOError:
    print(children)
"""
    assert int(run_program(code, pids=6)["stdout"]) == 5


@pytest.mark.parametrize(("cores", "cpus"), [(0.5, 1), (1.0, 1), (1.5, 2)])
def test_cpus_are_held_by_affinity(run_program: RunProgram, cores: float, cpus: int) -> None:
    result = run_program("import os; print(len(os.sched_getaffinity(0)))", cpu_cores=cores)
    assert int(result["stdout"]) == min(cpus, len(os.sched_getaffinity(0)))


async def test_a_watchdog_of_a_dead_process_counts_nothing_and_does_not_fail(dead_pid: int) -> None:
    ended: list[None] = []
    watchdog = Watchdog(dead_pid, 1 << 20, lambda: ended.append(None))
    assert watchdog.counters()["cpu_us"] == 0
    await asyncio.sleep(3 * INTERVAL_S)
    watchdog.close()
    assert ended == []
    with pytest.raises(asyncio.CancelledError):
        await watchdog._task


def test_a_chain_of_forks_deeper_than_python_recurses_is_seen() -> None:
    code = """
import os, signal
for _ in range(100):
    if os.fork():
        os.wait()
        os._exit(0)
print("ready", flush=True)
signal.pause()
"""
    usual = sys.getrecursionlimit()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sys.setrecursionlimit(len(inspect.stack(0)) + 90)
        try:
            found = list(_descendants(process.pid))
        finally:
            sys.setrecursionlimit(usual)
            os.kill(list(_descendants(process.pid))[-1], 9)  # the others end when their child does
    assert len(found) == 101


def test_children_of_every_thread_are_seen() -> None:
    code = """
import subprocess, threading
def start(): processes.append(subprocess.Popen(["sleep", "60"]))
processes = []
start()
thread = threading.Thread(target=lambda: (start(), print("ready", flush=True), processes[1].wait()))
thread.start()
thread.join()
processes[0].wait()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = list(_descendants(process.pid))
        for pid in reversed(found):
            os.kill(pid, 9)
    assert len(found) == 3
