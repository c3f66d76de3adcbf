from __future__ import annotations

import asyncio
import hashlib

import pytest

from belljar.engines.base import Area, Collected, Jar
from belljar.engines.fake import FakeEngine, Process
from belljar.engines.guestjar import GuestJar
from belljar.errors import BadRequest, EngineUnavailable, GrantNotEnforceable, LimitExceeded
from belljar.execution.runs import run, stream
from belljar.models import (
    Artifact,
    Ended,
    Grant,
    InputFile,
    Language,
    Limits,
    Network,
    Output,
    RunRequest,
    RunResult,
    Skipped,
    SkipReason,
    Started,
    Verdict,
)


class Engine(FakeEngine):
    """Remembers the jars it made, and whether its one Python program has begun and come to its end."""

    def __init__(self) -> None:
        super().__init__(programs={"python3": self._python3})
        self.made: list[GuestJar] = []
        self.begun = asyncio.Event()
        self.ended = False

    async def create(self, grant: Grant) -> GuestJar:
        self.made.append(await super().create(grant))
        return self.made[-1]

    async def _python3(self, process: Process) -> int:
        try:
            await process.out(b"running")
            self.begun.set()
            await asyncio.sleep(60)
        finally:
            self.ended = True
        return 0


@pytest.fixture
def engine() -> Engine:
    return Engine()


def bash(code: str, **fields: object) -> RunRequest:
    return RunRequest(language=Language.BASH, code=code, **fields)  # type: ignore[arg-type]


FOREVER = RunRequest(code="")


async def is_gone(jar: Jar) -> bool:
    try:
        await jar.put(Area.WORK, [InputFile("x", b"")])
    except EngineUnavailable:
        return True
    return False


async def test_a_result_is_everything_about_a_run(engine: Engine) -> None:
    request = bash(
        "cat data.txt /workspace/inputs/more.txt\necho $NAME >&2\ncat > made.txt\nln -s x link\nexit 3",
        files=(InputFile("data.txt", b"1"),),
        inputs=(InputFile("more.txt", b"2"),),
        env={"NAME": "value"},
        stdin=b"3",
    )
    result = await run(engine, Grant(), request)
    assert result.verdict is Verdict.EXITED
    assert (result.exit_code, result.signal, result.timed_out) == (3, None, False)
    assert (result.stdout, result.stderr) == (b"12", b"value\n")
    assert (result.stdout_bytes, result.stderr_bytes) == (2, 6)
    assert result.artifacts == (
        Artifact("made.txt", 1, hashlib.sha256(b"3").hexdigest(), "text/plain", b"3"),
    )
    assert result.skipped == (Skipped("link", SkipReason.SYMLINK),)
    assert result.engine == "fake"
    assert result.posture
    assert result.usage.wall_s > 0


async def test_events_come_as_they_happen_and_the_result_last(engine: Engine) -> None:
    events = [event async for event in stream(engine, Grant(), bash("echo x"))]
    assert [type(event) for event in events] == [Started, Output, Ended, RunResult]


async def test_the_jar_is_gone_when_the_result_is_there(engine: Engine) -> None:
    await run(engine, Grant(), bash("true"))
    (jar,) = engine.made
    assert await is_gone(jar)


async def test_only_listed_files_come_back(engine: Engine) -> None:
    request = bash("echo a > a\necho b > b", output_files=("a", "missing"))
    result = await run(engine, Grant(), request)
    assert [artifact.path for artifact in result.artifacts] == ["a"]
    assert result.skipped == (Skipped("missing", SkipReason.MISSING),)


GIVEN = tuple(InputFile(path, b"1") for path in ("kept", "gone", "d/moved", "replaced"))
CHANGES = "rm gone\nrm d\necho 1 > elsewhere\nrm replaced\nln -s kept replaced\n"


async def removed(engine: FakeEngine, request: RunRequest, grant: Grant | None = None) -> tuple[str, ...]:
    events = [event async for event in stream(engine, grant or Grant(), request, keeping=True)]
    assert isinstance(events[-1], RunResult)
    return events[-1].removed


async def test_where_work_is_kept_the_result_says_what_is_gone(engine: Engine) -> None:
    assert await removed(engine, bash(CHANGES, files=GIVEN)) == ("gone", "d/moved", "replaced")
    assert (await run(engine, Grant(), bash(CHANGES, files=GIVEN))).removed == ()


async def test_a_guest_can_call_nothing_gone_that_was_not_given() -> None:
    class Lying(FakeEngine):
        async def create(self, grant: Grant) -> GuestJar:
            jar = await super().create(grant)

            async def collect(paths: object) -> Collected:
                names = ("kept", "another", "../../x") if paths else ()
                return Collected((), tuple(Skipped(name, SkipReason.MISSING) for name in names))

            jar.collect = collect  # type: ignore[method-assign]
            return jar

    assert await removed(Lying(), bash("true", files=GIVEN)) == ("kept",)


async def test_however_many_files_there_are_all_are_looked_for(engine: Engine) -> None:
    files = tuple(InputFile(f"d/{number}", b"") for number in range(2001))
    grant = Grant(limits=Limits(input_files=3000, artifact_files=1))
    assert len(await removed(engine, bash("rm d", files=files), grant)) == 2001


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        pytest.param(bash(CHANGES + "kill -KILL $$\nsleep 60", files=GIVEN), Limits(), id="it was killed"),
        pytest.param(bash(CHANGES + "sleep 60", files=GIVEN), Limits(timeout_s=0.1), id="it took too long"),
        pytest.param(
            bash(CHANGES, files=GIVEN, output_files=("kept",)), Limits(), id="only some was to come back"
        ),
        pytest.param(bash(CHANGES, files=GIVEN), Limits(artifact_files=0), id="not all came back"),
    ],
)
async def test_nothing_is_called_gone_where_that_is_not_certain(
    engine: Engine, request_: RunRequest, limits: Limits
) -> None:
    assert await removed(engine, request_, Grant(limits=limits)) == ()


async def test_an_empty_list_brings_nothing_back(engine: Engine) -> None:
    result = await run(engine, Grant(), bash("echo a > a", output_files=()))
    assert (result.artifacts, result.skipped) == ((), ())


async def test_the_program_starts_in_its_working_directory(engine: Engine) -> None:
    result = await run(engine, Grant(), bash("pwd\necho x > here", working_dir="a/b"))
    assert result.stdout == b"/workspace/work/a/b\n"
    assert [artifact.path for artifact in result.artifacts] == ["a/b/here"]


async def test_output_past_its_cap_is_marked(engine: Engine) -> None:
    grant = Grant(limits=Limits(stdout_kb=1))
    result = await run(engine, grant, bash("head -c 5000 /dev/zero\necho whole >&2"))
    assert (len(result.stdout), result.stdout_bytes, result.stdout_truncated) == (1024, 5000, True)
    assert not result.stderr_truncated


async def test_a_run_that_takes_too_long_is_a_result(engine: Engine) -> None:
    result = await run(engine, Grant(limits=Limits(timeout_s=2)), FOREVER)
    assert (result.verdict, result.timed_out, result.stdout) == (Verdict.TIMEOUT, True, b"running")
    assert engine.ended


async def test_a_jar_that_is_lost_is_a_result(engine: Engine) -> None:
    events = stream(engine, Grant(), FOREVER)
    async for event in events:
        if isinstance(event, Output):
            await engine.made[0].destroy()
        last = event
    assert isinstance(last, RunResult)
    assert (last.verdict, last.exit_code, last.artifacts) == (Verdict.LOST, None, ())
    assert last.stdout == b"running"


async def test_the_jar_is_told_to_whoever_wants_to_cancel(engine: Engine) -> None:
    jars: list[Jar] = []
    async for event in stream(engine, Grant(), FOREVER, jars.append):
        if isinstance(event, Output):
            jars[0].cancel()
        last = event
    assert isinstance(last, RunResult)
    assert last.verdict is Verdict.CANCELLED
    assert engine.ended


async def test_a_caller_that_stops_listening_leaves_nothing_running(engine: Engine) -> None:
    events = stream(engine, Grant(), FOREVER)
    async for event in events:
        if isinstance(event, Output):
            break
    await events.aclose()
    assert engine.ended
    assert await is_gone(engine.made[0])


async def test_a_caller_that_is_cancelled_leaves_nothing_running(engine: Engine) -> None:
    task = asyncio.create_task(run(engine, Grant(), FOREVER))
    await engine.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.ended
    assert await is_gone(engine.made[0])


async def test_a_request_at_fault_makes_no_jar(engine: Engine) -> None:
    with pytest.raises(BadRequest):
        await run(engine, Grant(), RunRequest())
    assert not engine.made


async def test_a_grant_that_cannot_be_held_is_an_error(engine: Engine) -> None:
    with pytest.raises(GrantNotEnforceable):
        await run(engine, Grant(network=Network(enabled=True)), bash("true"))


async def test_files_that_do_not_fit_take_the_jar_away_again(engine: Engine) -> None:
    grant = Grant(limits=Limits(workspace_mb=1))
    with pytest.raises(LimitExceeded):
        await run(engine, grant, bash("true", files=(InputFile("big", bytes(2 << 20)),)))
    assert await is_gone(engine.made[0])


async def test_runs_do_not_know_of_each_other(engine: Engine) -> None:
    requests = [bash(f"echo {number} > f\nsleep 0.05\ncat f") for number in range(10)]
    results = await asyncio.gather(*(run(engine, Grant(), request) for request in requests))
    assert [result.stdout for result in results] == [f"{number}\n".encode() for number in range(10)]
