"""Images without python3: the command runs by itself, files go through a helper, the results are the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engines.docker.conftest import WITHOUT_PYTHON

from belljar.egress.gate import Egress
from belljar.engines.base import WORK, Area, Command
from belljar.engines.docker.api import Api
from belljar.engines.docker.engine import DockerEngine
from belljar.engines.docker.plain import PlainJar
from belljar.errors import EngineUnavailable, GrantNotEnforceable
from belljar.models import (
    Ended,
    Event,
    Grant,
    InputFile,
    Limits,
    Network,
    OnOutputLimit,
    Output,
    Started,
    Stream,
    Verdict,
)


async def make(engine: DockerEngine, **limits: Any) -> PlainJar:
    on_limit = limits.pop("on_output_limit", OnOutputLimit.TRUNCATE)
    grant = Grant(image=WITHOUT_PYTHON, limits=Limits(**limits), on_output_limit=on_limit)
    jar = await engine.create(grant)
    assert isinstance(jar, PlainJar)
    return jar


async def run(jar: PlainJar, script: str, **fields: Any) -> tuple[list[Event], Ended, bytes, bytes]:
    events = [event async for event in jar.exec(Command(argv=("bash", "-c", script), **fields))]
    texts = {
        stream: b"".join(e.data for e in events if isinstance(e, Output) and e.stream is stream)
        for stream in Stream
    }
    assert isinstance(events[-1], Ended)
    return events, events[-1], texts[Stream.STDOUT], texts[Stream.STDERR]


async def test_a_command_runs_with_files_in_and_out(engine: DockerEngine) -> None:
    jar = await make(engine)
    await jar.put(Area.WORK, [InputFile("data/a", b"A\n"), InputFile("same", b"s")])
    await jar.put(Area.INPUTS, [InputFile("b", b"B\n")])
    script = (
        "cat data/a /workspace/inputs/b -; echo c > made; echo d > /workspace/artifacts/d; echo e >&2; exit 3"
    )
    events, ended, out, err = await run(jar, script, stdin=b"in\n")
    assert isinstance(events[0], Started)
    assert (out, err) == (b"A\nB\nin\n", b"e\n")
    assert (ended.verdict, ended.exit_code) == (Verdict.EXITED, 3)
    left = {artifact.path: artifact.content for artifact in (await jar.collect(None)).artifacts}
    assert left == {"made": b"c\n", "artifacts/d": b"d\n"}
    await jar.destroy()


async def test_inputs_are_read_only(engine: DockerEngine) -> None:
    jar = await make(engine)
    await jar.put(Area.INPUTS, [InputFile("b", b"B")])
    script = "echo x > /workspace/inputs/b; rm /workspace/inputs/b; chmod 777 /workspace/inputs; cat /workspace/inputs/b"
    _, _, out, err = await run(jar, script)
    assert out == b"B"
    assert err.count(b"Read-only file system") == 3
    await jar.destroy()


async def test_a_missing_command_is_127(engine: DockerEngine) -> None:
    jar = await make(engine)
    events = [event async for event in jar.exec(Command(argv=("no-such-program",)))]
    assert isinstance(events[-1], Ended)
    assert (events[-1].verdict, events[-1].exit_code) == (Verdict.EXITED, 127)
    await jar.destroy()


async def test_a_missing_working_directory_is_made(engine: DockerEngine) -> None:
    jar = await make(engine)
    _, _, out, _ = await run(jar, "pwd; touch here", cwd=f"{WORK}/a/b")
    assert out == b"/workspace/work/a/b\n"
    assert [artifact.path for artifact in (await jar.collect(None)).artifacts] == ["a/b/here"]
    await jar.destroy()


async def test_the_clock_stops_it(engine: DockerEngine) -> None:
    jar = await make(engine, timeout_s=3, grace_s=0.2)
    _, ended, out, _ = await run(jar, "echo before; sleep 60")
    assert (ended.verdict, out) == (Verdict.TIMEOUT, b"before\n")
    await jar.destroy()


async def test_a_program_that_listens_may_say_goodbye(engine: DockerEngine) -> None:
    jar = await make(engine, timeout_s=3, grace_s=30)
    _, ended, out, _ = await run(jar, "trap 'echo bye; exit 4' TERM; while :; do sleep 0.05; done")
    assert (ended.verdict, ended.exit_code, out) == (Verdict.TIMEOUT, 4, b"bye\n")
    await jar.destroy()


async def test_output_past_the_cap_is_counted(engine: DockerEngine) -> None:
    jar = await make(engine, stdout_kb=2)
    _, ended, out, _ = await run(jar, "head -c 5000001 /dev/zero; exit 7")
    assert (len(out), ended.stdout_bytes, ended.exit_code) == (2048, 5_000_001, 7)
    await jar.destroy()


async def test_too_much_output_ends_it_where_the_grant_says_so(engine: DockerEngine) -> None:
    jar = await make(engine, stdout_kb=2, on_output_limit=OnOutputLimit.KILL)
    assert (await run(jar, "yes"))[1].verdict is Verdict.OUTPUT_LIMIT
    await jar.destroy()


@pytest.mark.parametrize(
    ("script", "limits", "verdict"),
    [
        pytest.param("x=$(yes | head -c 300000000)", {"memory_mb": 48}, Verdict.OOM, id="memory"),
        pytest.param("head -c 3000000 /dev/zero > big", {"workspace_mb": 1}, Verdict.DISK_FULL, id="disk"),
    ],
)
async def test_a_limit_is_the_verdict(
    engine: DockerEngine, script: str, limits: dict[str, int], verdict: Verdict
) -> None:
    jar = await make(engine, **limits)
    assert (await run(jar, script))[1].verdict is verdict
    await jar.destroy()


async def test_a_caller_that_stops_listening_leaves_nothing(engine: DockerEngine) -> None:
    """The engine fixture looks for what is left."""
    jar = await make(engine)
    task = asyncio.create_task(run(jar, "trap '' TERM; sleep 60 & sleep 60"))
    await asyncio.sleep(0.4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not jar.alive
    with pytest.raises(EngineUnavailable):
        await run(jar, "true")


async def test_a_network_is_refused(api: Api) -> None:
    """The way out leads through the guest, which is not in the program's container."""
    engine = DockerEngine(way_out=Egress())
    network = Network(enabled=True)
    with pytest.raises(GrantNotEnforceable, match="install python3") as caught:
        await engine.create(Grant(image=WITHOUT_PYTHON, network=network))
    assert caught.value.field == "network"
    await engine.close()


async def test_cancel_ends_it(engine: DockerEngine) -> None:
    jar = await make(engine, grace_s=0.2)
    events = jar.exec(Command(argv=("sleep", "60")))
    assert isinstance(await anext(events), Started)
    await asyncio.sleep(0.3)
    jar.cancel()
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.CANCELLED
    await jar.destroy()
