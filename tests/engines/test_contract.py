"""The contract of every engine (`engines/base.py`), on every engine.

Programs are bash scripts in the subset that the fake engine knows. What needs a kernel or an interpreter
is marked `real`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import textwrap
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from belljar.engines.base import WORK, Area, Collected, Command
from belljar.errors import EngineUnavailable, GrantNotEnforceable, LimitExceeded, PathNotAllowed
from belljar.models import (
    Artifact,
    Ended,
    Event,
    Grant,
    InputFile,
    Language,
    Limits,
    Network,
    OnOutputLimit,
    Output,
    SkipReason,
    Started,
    Stream,
    Verdict,
)

if TYPE_CHECKING:
    from belljar.engines.base import Engine, Jar

    MakeJar = Callable[..., Awaitable[Jar]]
    Footprints = Callable[[], Any]
    Another = Callable[..., Engine]

pytestmark = pytest.mark.asyncio(loop_scope="module")

real = pytest.mark.parametrize("engine", ["docker", "gvisor", "jail"], indirect=True)
"""Only for engines with a kernel and a Python."""

SOON_S = 30.0
"""Much longer than anything takes, much shorter than the programs that have to be stopped."""
ENOUGH_S = 3.0
"""For a program that has something to do before its clock rings, on a machine that puts it aside for a while."""
FOREVER = "sleep 600"


@dataclass(frozen=True)
class Run:
    events: tuple[Event, ...]
    stdout: bytes
    stderr: bytes
    ended: Ended

    @property
    def how(self) -> tuple[Verdict, int | None]:
        """The verdict, and the exit code or signal that goes with it."""
        return self.ended.verdict, self.ended.signal if self.ended.exit_code is None else self.ended.exit_code


def bash(script: str, **fields: Any) -> Command:
    return Command(argv=("bash", "-c", script), **fields)


async def run(jar: Jar, program: Command | str) -> Run:
    command = bash(program) if isinstance(program, str) else program
    events = [event async for event in jar.exec(command)]
    texts = {
        stream: b"".join(e.data for e in events if isinstance(e, Output) and e.stream is stream)
        for stream in Stream
    }
    assert isinstance(events[-1], Ended)
    return Run(tuple(events), texts[Stream.STDOUT], texts[Stream.STDERR], events[-1])


async def started(jar: Jar, script: str, until: bytes = b"") -> Any:
    """The stream of a program that runs and, where asked for, has said so."""
    events = jar.exec(bash(script))
    heard = b""
    async for event in events:
        heard += event.data if isinstance(event, Output) else b""
        if isinstance(event, Started | Output) and until in heard:
            break
    return events


def running(footprint: Footprints) -> set[str]:
    """Programs of these tests that are still alive somewhere below us."""
    return {name for _, name in footprint().processes} & {"bash", "sleep"}


def contents(collected: Collected) -> dict[str, bytes]:
    return {artifact.path: artifact.content for artifact in collected.artifacts}


def reasons(collected: Collected) -> dict[str, SkipReason]:
    return {skipped.path: skipped.reason for skipped in collected.skipped}


def file(path: str, content: bytes | str = b"") -> InputFile:
    return InputFile(path, content.encode() if isinstance(content, str) else content)


# How it ends


@pytest.mark.essential
async def test_a_program_starts_speaks_and_ends(jar: Jar) -> None:
    result = await run(jar, "echo hello")
    kinds = [type(event) for event in result.events]
    assert kinds == [Started, Output, Ended]
    assert result.stdout == b"hello\n"
    assert result.how == (Verdict.EXITED, 0)
    assert (result.ended.stdout_bytes, result.ended.stderr_bytes) == (6, 0)
    assert 0 < result.ended.usage.wall_s < SOON_S


async def test_the_posture_is_told_before_anything_runs(jar: Jar) -> None:
    first = (await run(jar, "true")).events[0]
    assert isinstance(first, Started)
    assert len(bytes.fromhex(first.posture)) == 32


async def test_every_limit_says_what_held_it(jar: Jar) -> None:
    held_by = (await run(jar, "true")).ended.usage.held_by
    assert {"memory", "pids", "cpu"} <= held_by.keys()
    assert all(held_by.values())


@pytest.mark.parametrize("code", [0, 1, 42, 126, 255])
async def test_the_exit_code_is_the_programs(jar: Jar, code: int) -> None:
    assert (await run(jar, f"exit {code}")).how == (Verdict.EXITED, code)


async def test_the_last_command_decides_the_exit_code(jar: Jar) -> None:
    assert (await run(jar, "true && false || false\nfalse ; true\nfalse && true")).how == (Verdict.EXITED, 1)


@pytest.mark.essential
@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("USR1", 10)])
async def test_a_signal_of_its_own_is_reported(jar: Jar, name: str, number: int) -> None:
    result = await run(jar, f"kill -{name} $$\n{FOREVER}")
    assert result.how == (Verdict.SIGNALED, number)
    assert result.ended.exit_code is None


async def test_a_command_that_does_not_exist_is_127(jar: Jar) -> None:
    result = await run(jar, Command(argv=("no-such-program", "x")))
    assert result.how == (Verdict.EXITED, 127)
    assert b"no-such-program" in result.stderr


async def test_a_command_that_does_not_exist_in_a_script_is_127(jar: Jar) -> None:
    result = await run(jar, "no-such-program x")
    assert result.how == (Verdict.EXITED, 127)
    assert b"no-such-program" in result.stderr


async def test_a_script_is_run_by_the_interpreter_the_engine_names(engine: Engine, jar: Jar) -> None:
    await jar.put(Area.WORK, [file("main.sh", "echo from a file\n")])
    command = Command(argv=(*engine.interpreters()[Language.BASH], f"{WORK}/main.sh"))
    assert (await run(jar, command)).stdout == b"from a file\n"


# What it is given


async def test_the_environment_is_passed(jar: Jar) -> None:
    command = bash("echo $GREETING; echo $HOME", env={"GREETING": "hi  there", "HOME": "/elsewhere"})
    assert (await run(jar, command)).stdout.split() == [b"hi", b"there", b"/elsewhere"]


@pytest.mark.essential
async def test_nothing_of_the_hosts_environment_is_passed(jar: Jar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", secrets.token_hex())
    result = await run(jar, Command(argv=("env",), env={"GIVEN": "x"}))
    names = {line.split("=")[0] for line in result.stdout.decode().splitlines()}
    documented = {
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "TMPDIR",
    }
    assert "GIVEN" in names
    assert {name for name in names if not name.endswith("_NUM_THREADS")} <= {"GIVEN", *documented}


async def test_it_starts_in_work(jar: Jar) -> None:
    assert (await run(jar, "pwd")).stdout == b"/workspace/work\n"


async def test_a_missing_working_directory_is_made(jar: Jar) -> None:
    result = await run(jar, bash("pwd\necho x > here", cwd=f"{WORK}/a/b"))
    assert result.stdout == b"/workspace/work/a/b\n"
    assert contents(await jar.collect(None)) == {"a/b/here": b"x\n"}


async def test_a_working_directory_that_is_a_file_is_a_result(jar: Jar) -> None:
    await jar.put(Area.WORK, [file("data")])
    result = await run(jar, bash("pwd", cwd=f"{WORK}/data"))
    assert result.how == (Verdict.EXITED, 126)
    assert result.stderr


@pytest.mark.essential
async def test_stdin_is_delivered_whole(jar: Jar) -> None:
    text = os.urandom(700_001)
    assert (await run(jar, bash("cat", stdin=text))).stdout == text


async def test_stdin_ends_where_none_is_given(jar: Jar) -> None:
    assert (await run(jar, "cat\necho after")).stdout == b"after\n"


async def test_stdin_that_nobody_reads_holds_nothing_up(jar: Jar) -> None:
    result = await run(jar, bash("echo done", stdin=bytes(10 << 20)))
    assert result.how == (Verdict.EXITED, 0)
    assert result.ended.usage.wall_s < SOON_S


async def test_stdin_may_be_read_in_part(jar: Jar) -> None:
    result = await run(jar, bash("head -c 3", stdin=b"abc" + bytes(1 << 20)))
    assert (result.how, result.stdout) == ((Verdict.EXITED, 0), b"abc")


# What it says


async def test_streams_are_kept_apart(jar: Jar) -> None:
    result = await run(jar, "echo out\necho err >&2")
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


async def test_any_byte_comes_through(jar: Jar) -> None:
    every_byte = bytes(range(256)) * 300
    await jar.put(Area.WORK, [file("bytes", every_byte)])
    assert (await run(jar, "cat bytes")).stdout == every_byte


async def test_output_is_heard_while_the_program_runs(jar: Jar) -> None:
    events = await started(jar, f"echo now\n{FOREVER}", until=b"now")
    jar.cancel()
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.CANCELLED


@pytest.mark.essential
async def test_output_past_the_cap_is_counted_and_the_program_goes_on(make_jar: MakeJar) -> None:
    jar = await make_jar(stdout_kb=2)
    result = await run(jar, "head -c 5000001 /dev/zero\necho still here >&2\nexit 7")
    assert result.how == (Verdict.EXITED, 7)
    assert (len(result.stdout), result.ended.stdout_bytes) == (2048, 5_000_001)
    assert result.stderr == b"still here\n"


async def test_each_stream_has_its_own_cap(make_jar: MakeJar) -> None:
    jar = await make_jar(stdout_kb=3, stderr_kb=1)
    result = await run(jar, "head -c 4000 /dev/zero\nhead -c 4000 /dev/zero >&2")
    assert (len(result.stdout), len(result.stderr)) == (3072, 1024)
    assert (result.ended.stdout_bytes, result.ended.stderr_bytes) == (4000, 4000)


async def test_a_cap_of_nothing_keeps_nothing(make_jar: MakeJar) -> None:
    result = await run(await make_jar(stdout_kb=0, stderr_kb=0), "echo 12345\necho 12 >&2")
    assert (result.stdout, result.stderr) == (b"", b"")
    assert (result.ended.stdout_bytes, result.ended.stderr_bytes) == (6, 3)


async def test_large_output_on_both_streams_at_once(jar: Jar) -> None:
    script = "head -c 900000 /dev/zero &\nhead -c 900000 /dev/zero >&2\nwait"
    result = await run(jar, script)
    assert (len(result.stdout), len(result.stderr)) == (900_000, 900_000)


@pytest.mark.parametrize("stream", ["", " >&2"], ids=["stdout", "stderr"])
async def test_too_much_output_ends_it_where_the_grant_says_so(make_jar: MakeJar, stream: str) -> None:
    jar = await make_jar(OnOutputLimit.KILL, stdout_kb=4, stderr_kb=4)
    result = await run(jar, f"yes{stream}")
    assert result.ended.verdict is Verdict.OUTPUT_LIMIT
    assert len(result.stdout + result.stderr) == 4096
    assert result.ended.usage.wall_s < SOON_S


async def test_output_of_exactly_the_cap_ends_nothing(make_jar: MakeJar) -> None:
    jar = await make_jar(OnOutputLimit.KILL, stdout_kb=1)
    result = await run(jar, "head -c 1024 /dev/zero\nsleep 0.3\necho whole >&2")
    assert (result.how, len(result.stdout), result.stderr) == ((Verdict.EXITED, 0), 1024, b"whole\n")


async def test_too_much_output_is_the_verdict_however_quickly_it_ended(make_jar: MakeJar) -> None:
    jar = await make_jar(OnOutputLimit.KILL, stdout_kb=1)
    assert (await run(jar, "head -c 1025 /dev/zero")).ended.verdict is Verdict.OUTPUT_LIMIT


# When it is stopped


async def test_the_clock_stops_it_and_keeps_what_it_said(make_jar: MakeJar) -> None:
    jar = await make_jar(timeout_s=ENOUGH_S, grace_s=SOON_S)
    result = await run(jar, f"echo before\n{FOREVER}\necho after")
    assert result.how == (Verdict.TIMEOUT, 15)
    assert result.stdout == b"before\n"
    assert ENOUGH_S <= result.ended.usage.wall_s < SOON_S


async def test_it_may_say_goodbye_at_the_deadline(make_jar: MakeJar) -> None:
    script = f"trap 'echo bye; exit 3' TERM\necho ready\n{FOREVER}\necho after"
    result = await run(await make_jar(timeout_s=ENOUGH_S, grace_s=SOON_S), script)
    assert result.how == (Verdict.TIMEOUT, 3)
    assert result.stdout == b"ready\nbye\n"


@pytest.mark.essential
async def test_it_is_killed_when_it_ignores_the_deadline(make_jar: MakeJar) -> None:
    jar = await make_jar(timeout_s=ENOUGH_S, grace_s=0.4)
    result = await run(jar, f"trap '' TERM\necho kept > file\n{FOREVER}")
    assert result.how == (Verdict.TIMEOUT, 9)
    assert ENOUGH_S + 0.4 <= result.ended.usage.wall_s < SOON_S
    assert contents(await jar.collect(None)) == {"file": b"kept\n"}  # who killed it lives


async def test_without_grace_it_is_killed_at_once(make_jar: MakeJar) -> None:
    result = await run(await make_jar(timeout_s=0.3, grace_s=0), f"trap 'exit 3' TERM\n{FOREVER}")
    assert result.how == (Verdict.TIMEOUT, 9)


async def test_a_program_in_time_is_left_alone(make_jar: MakeJar) -> None:
    result = await run(await make_jar(timeout_s=SOON_S, idle_timeout_s=SOON_S), "sleep 0.1\nexit 4")
    assert result.how == (Verdict.EXITED, 4)


async def test_silence_stops_it(make_jar: MakeJar) -> None:
    jar = await make_jar(idle_timeout_s=ENOUGH_S, grace_s=SOON_S)
    result = await run(jar, f"echo once\n{FOREVER}")
    assert result.how == (Verdict.IDLE_TIMEOUT, 15)
    assert result.stdout == b"once\n"


async def test_a_program_that_speaks_is_not_idle(make_jar: MakeJar) -> None:
    script = "\n".join(f"echo {number}{stream}\nsleep 0.5" for number in range(3) for stream in ("", " >&2"))
    result = await run(await make_jar(idle_timeout_s=2.5), script)
    assert result.how == (Verdict.EXITED, 0)
    assert result.ended.usage.wall_s > 2.5


async def test_a_program_that_speaks_past_its_cap_is_not_idle(make_jar: MakeJar) -> None:
    result = await run(await make_jar(stdout_kb=1, idle_timeout_s=2.5, timeout_s=4), "yes")
    assert result.ended.verdict is Verdict.TIMEOUT


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"timeout_s": ENOUGH_S}, id="timeout"),
        pytest.param({"idle_timeout_s": ENOUGH_S}, id="idle-timeout"),
    ],
)
async def test_a_slow_reader_makes_no_program_late(make_jar: MakeJar, limits: dict[str, float]) -> None:
    jar = await make_jar(**limits)
    events = jar.exec(bash("echo 1\nsleep 0.15\necho 2\nsleep 0.15\necho 3"))
    assert isinstance(await anext(events), Started)
    await asyncio.sleep(ENOUGH_S + 0.5)
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert (last.verdict, last.exit_code) == (Verdict.EXITED, 0)
    assert last.usage.wall_s < ENOUGH_S + 0.5


async def test_a_reader_that_does_not_read_delays_no_deadline(make_jar: MakeJar) -> None:
    jar = await make_jar(timeout_s=0.3, grace_s=SOON_S)
    events = jar.exec(bash(f"echo 1\n{FOREVER}"))
    assert isinstance(await anext(events), Started)
    await asyncio.sleep(0.8)
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert (last.verdict, last.signal) == (Verdict.TIMEOUT, 15)


async def test_cancel_ends_it_gently(make_jar: MakeJar) -> None:
    jar = await make_jar(grace_s=SOON_S)
    events = await started(jar, f"trap 'echo bye; exit 3' TERM\necho ready\n{FOREVER}", until=b"ready")
    jar.cancel()
    jar.cancel()
    rest = [event async for event in events]
    assert isinstance(rest[-1], Ended)
    assert (rest[-1].verdict, rest[-1].exit_code) == (Verdict.CANCELLED, 3)
    assert Output(Stream.STDOUT, b"bye\n") in rest


async def test_cancel_kills_what_ignores_it(make_jar: MakeJar) -> None:
    jar = await make_jar(grace_s=0.2)
    events = await started(jar, f"trap '' TERM\necho ready\n{FOREVER}", until=b"ready")
    jar.cancel()
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert (last.verdict, last.signal) == (Verdict.CANCELLED, 9)


async def test_cancel_at_once_is_heard(jar: Jar) -> None:
    events = jar.exec(bash(FOREVER))
    assert isinstance(await anext(events), Started)
    jar.cancel()
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.CANCELLED


async def test_cancel_of_nothing_does_nothing(jar: Jar) -> None:
    jar.cancel()
    result = await run(jar, "sleep 0.1\necho done")
    jar.cancel()
    assert (result.how, result.stdout) == ((Verdict.EXITED, 0), b"done\n")
    assert contents(await jar.collect(None)) == {}


async def test_a_caller_that_stops_listening_leaves_nothing_running(
    make_jar: MakeJar, footprint: Footprints
) -> None:
    script = f"trap '' TERM\n{FOREVER} &\necho ready\n{FOREVER}"
    events = await started(await make_jar(), script, until=b"ready")
    await events.aclose()
    assert not running(footprint)


@pytest.mark.essential
async def test_a_caller_that_is_cancelled_leaves_nothing_running(
    make_jar: MakeJar, footprint: Footprints
) -> None:
    task = asyncio.create_task(run(await make_jar(), f"trap '' TERM\n{FOREVER} &\n{FOREVER}"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running(footprint)


async def test_a_background_process_does_not_delay_the_end(jar: Jar) -> None:
    result = await run(jar, f"{FOREVER} &\necho done")
    assert (result.how, result.stdout) == ((Verdict.EXITED, 0), b"done\n")
    assert result.ended.usage.wall_s < SOON_S


@pytest.mark.parametrize(
    "engine", ["docker", "jail"], indirect=True
)  # gVisor hides them in a kernel of its own
async def test_a_program_that_runs_can_be_seen(jar: Jar, footprint: Footprints) -> None:
    """Otherwise the tests around this one would prove nothing."""
    events = await started(jar, f"{FOREVER} &\necho ready\n{FOREVER}", until=b"ready")
    # Not at the first look: the kernel's list of children may lack some while others come and go. proc(5)
    while not running(footprint):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await events.aclose()


async def test_every_process_is_dead_when_the_end_is_told(jar: Jar, footprint: Footprints) -> None:
    await run(jar, f"trap '' TERM\n{FOREVER} &\n{FOREVER} &\necho done")
    assert not running(footprint)


# What goes in


async def test_files_are_staged_where_the_program_runs(jar: Jar) -> None:
    await jar.put(Area.WORK, [file("a.txt", "A"), file("deep/er/b.txt", "B"), file("empty")])
    assert (await run(jar, "cat a.txt deep/er/b.txt empty")).stdout == b"AB"


@pytest.mark.essential
async def test_inputs_can_be_read_but_not_written(jar: Jar) -> None:
    await jar.put(Area.INPUTS, [file("data/a.txt", "A")])
    result = await run(
        jar,
        "cat /workspace/inputs/data/a.txt\n"
        "echo x > /workspace/inputs/data/a.txt || echo x > /workspace/inputs/new\n"
        "rm /workspace/inputs/data/a.txt\necho $?\ncat /workspace/inputs/data/a.txt",
    )
    assert result.stdout == b"A1\nA"
    refusals = (b"Read-only file system", b"Permission denied")  # gVisor needs both; see docs/engines.md
    assert sum(map(result.stderr.count, refusals)) == 3


@pytest.mark.essential
async def test_nothing_else_can_be_written(jar: Jar) -> None:
    result = await run(jar, "echo x > /usr/new || echo x > /new || echo x > /workspace/new || exit 9")
    assert result.how == (Verdict.EXITED, 9)


async def test_a_file_may_be_put_again(jar: Jar) -> None:
    await jar.put(Area.WORK, [file("a", "first, and longer")])
    await jar.put(Area.WORK, [file("a", "second")])
    assert (await run(jar, "cat a")).stdout == b"second"
    assert contents(await jar.collect(None)) == {}


async def test_a_large_file_goes_in_and_comes_out_unchanged(jar: Jar) -> None:
    content = os.urandom(9_000_001)
    await jar.put(Area.WORK, [file("in", content)])
    await run(jar, "cat in > out")
    (artifact,) = (await jar.collect(None)).artifacts
    assert artifact == Artifact(
        "out", len(content), hashlib.sha256(content).hexdigest(), "application/octet-stream", content
    )


async def test_inputs_that_do_not_fit_are_refused(make_jar: MakeJar) -> None:
    jar = await make_jar(workspace_mb=1)
    with pytest.raises(LimitExceeded, match="big") as caught:
        await jar.put(Area.WORK, [file("small", "x"), file("big", bytes(1 << 21))])
    assert caught.value.field == "input_files"


async def test_more_inputs_than_the_workspace_has_files_are_refused(make_jar: MakeJar) -> None:
    jar = await make_jar(workspace_files=16)
    with pytest.raises(LimitExceeded):
        await jar.put(Area.WORK, [file(f"f{number}", "x") for number in range(17)])


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("taken/below", id="below-a-file"),
        pytest.param("folder", id="a-folder"),
        pytest.param("../escape", id="parent"),
        pytest.param("/workspace/work/x", id="absolute"),
        pytest.param("a//b", id="empty-component"),
        pytest.param("", id="empty"),
        pytest.param("x" * 300, id="too-long"),
    ],
)
async def test_a_place_that_cannot_be_written_is_refused(jar: Jar, path: str) -> None:
    await jar.put(Area.WORK, [file("taken"), file("folder/file")])
    with pytest.raises(PathNotAllowed):
        await jar.put(Area.WORK, [file(path, "x")])


# What comes out


@pytest.mark.essential
async def test_what_was_made_or_changed_comes_back(jar: Jar) -> None:
    staged = [file("untouched", "1"), file("grown", "2"), file("same size", "3"), file("deep/untouched", "4")]
    await jar.put(Area.WORK, staged)
    await jar.put(Area.INPUTS, [file("input", "5")])
    await run(
        jar,
        "echo more >> grown\nprintf 6 > 'same size'\nmkdir -p deep/new\necho 7 > deep/new/made\n"
        "cat untouched deep/untouched\necho 8 > /workspace/artifacts/kept\necho 9 > /tmp/forgotten",
    )
    assert contents(await jar.collect(None)) == {
        "grown": b"2more\n",
        "same size": b"6",
        "deep/new/made": b"7\n",
        "artifacts/kept": b"8\n",
    }


async def test_a_file_that_is_also_an_input_is_still_untouched(jar: Jar) -> None:
    await jar.put(Area.WORK, [file("data.csv", "mine")])
    await jar.put(Area.INPUTS, [file("data.csv", "theirs")])
    await run(jar, "cat data.csv")
    assert contents(await jar.collect(None)) == {}


async def test_an_artifact_is_described(jar: Jar) -> None:
    await run(jar, "echo '{}' > data.json")
    (artifact,) = (await jar.collect(None)).artifacts
    digest = hashlib.sha256(b"{}\n").hexdigest()
    assert artifact == Artifact("data.json", 3, digest, "application/json", b"{}\n")


async def test_an_empty_file_is_a_file(jar: Jar) -> None:
    await run(jar, "> nothing")
    assert contents(await jar.collect(None)) == {"nothing": b""}


async def test_only_what_was_listed_comes_back(jar: Jar) -> None:
    await jar.put(Area.WORK, [file("staged", "1")])
    await run(jar, "echo 2 > made\necho 3 > unwanted\nmkdir -p folder\nln -s made link\nln -s folder way")
    collected = await jar.collect(["staged", "made", "absent", "folder", "link", "way/made", "made/below"])
    assert contents(collected) == {"staged": b"1", "made": b"2\n"}
    assert reasons(collected) == {
        "absent": SkipReason.MISSING,
        "folder": SkipReason.NOT_REGULAR,
        "link": SkipReason.SYMLINK,
        "way/made": SkipReason.SYMLINK,
        "made/below": SkipReason.MISSING,
    }


async def test_what_lies_in_artifacts_is_listed_by_the_name_it_comes_back_under(jar: Jar) -> None:
    await run(
        jar,
        "mkdir -p artifacts\necho 1 > artifacts/a\nmkdir -p /workspace/artifacts/d\n"
        "echo 2 > /workspace/artifacts/a\necho 3 > /workspace/artifacts/d/b\nln -s a /workspace/artifacts/link",
    )
    listed = ["artifacts/a", "artifacts/d/b", "artifacts/link", "artifacts/absent", "d/b"]
    collected = await jar.collect(listed)
    assert contents(collected) == {"artifacts/a": b"1\n", "artifacts/d/b": b"3\n"}
    assert reasons(collected) == {
        "artifacts/link": SkipReason.SYMLINK,
        "artifacts/absent": SkipReason.MISSING,
        "d/b": SkipReason.MISSING,
    }


@pytest.mark.parametrize(
    ("script", "first", "second"),
    [
        pytest.param(
            "mkdir -p artifacts\necho 1 > artifacts/a\necho 2 > /workspace/artifacts/a",
            "artifacts/a",
            "artifacts/a",
            id="file",
        ),
        pytest.param(
            "echo 1 > artifacts\necho 2 > /workspace/artifacts/a", "artifacts", "artifacts/a", id="folder"
        ),
        pytest.param(
            "mkdir -p artifacts/a\necho 1 > artifacts/a/b\necho 2 > /workspace/artifacts/a",
            "artifacts/a/b",
            "artifacts/a",
            id="file-where-a-folder-is",
        ),
    ],
)
async def test_two_files_never_come_back_under_one_name(
    jar: Jar, script: str, first: str, second: str
) -> None:
    await run(jar, script)
    collected = await jar.collect(None)
    assert contents(collected) == {first: b"1\n"}
    assert reasons(collected) == {second: SkipReason.SAME_NAME}


async def test_a_list_of_nothing_brings_nothing(jar: Jar) -> None:
    await run(jar, "echo x > made")
    assert await jar.collect([]) == Collected((), ())


async def test_a_path_out_of_work_is_never_collected(jar: Jar) -> None:
    await jar.put(Area.INPUTS, [file("secret", "x")])
    await run(jar, "true")
    collected = await jar.collect(["../inputs/secret"])
    assert contents(collected) == {}
    assert reasons(collected) == {"../inputs/secret": SkipReason.OUTSIDE}


@pytest.mark.essential
async def test_links_are_named_and_not_followed(jar: Jar) -> None:
    await run(
        jar,
        "mkdir -p real\necho x > real/file\nln -s /etc/passwd file\nln -s real folder\n"
        "ln -s nowhere dangling\nln -s / /workspace/artifacts/root",
    )
    collected = await jar.collect(None)
    assert contents(collected) == {"real/file": b"x\n"}
    assert set(reasons(collected)) == {"file", "folder", "dangling", "artifacts/root"}
    assert set(reasons(collected).values()) == {SkipReason.SYMLINK}


async def test_a_file_past_the_cap_is_left_out_and_others_are_not(make_jar: MakeJar) -> None:
    jar = await make_jar(artifact_mb=1)
    await run(jar, "head -c 1048577 /dev/zero > large\necho small > small")
    collected = await jar.collect(None)
    assert contents(collected) == {"small": b"small\n"}
    assert reasons(collected) == {"large": SkipReason.TOO_LARGE}


async def test_files_of_exactly_the_cap_come_back(make_jar: MakeJar) -> None:
    jar = await make_jar(artifact_mb=1)
    await run(
        jar,
        "head -c 1048575 /dev/zero > a\nprintf x > /workspace/artifacts/b\nprintf y > /workspace/artifacts/c",
    )
    collected = await jar.collect(["a"])
    assert len(contents(collected)["a"]) == (1 << 20) - 1
    collected = await jar.collect(None)
    assert sum(map(len, contents(collected).values())) == 1 << 20
    assert Counter(reasons(collected).values()) == {SkipReason.TOO_LARGE: 1}


@pytest.mark.parametrize(("made", "left_out"), [(3, 0), (4, 1), (6, 3)])
async def test_as_many_files_as_the_cap_come_back(make_jar: MakeJar, made: int, left_out: int) -> None:
    jar = await make_jar(artifact_files=3)
    await jar.put(Area.WORK, [file(f"staged{number}") for number in range(5)])
    await run(jar, "\n".join(f"echo x > made{number}" for number in range(made)))
    collected = await jar.collect(None)
    assert len(collected.artifacts) == 3
    assert Counter(reasons(collected).values()) == Counter({SkipReason.TOO_MANY: left_out})
    assert len({*contents(collected), *reasons(collected)}) == made


async def test_a_cap_of_no_files_brings_none(make_jar: MakeJar) -> None:
    jar = await make_jar(artifact_files=0)
    await run(jar, "echo x > a\necho y > /workspace/artifacts/b")
    collected = await jar.collect(None)
    assert not collected.artifacts
    assert reasons(collected) == {"a": SkipReason.TOO_MANY, "artifacts/b": SkipReason.TOO_MANY}


async def test_folders_that_are_too_deep_are_left_out(jar: Jar) -> None:
    deepest = "/".join(["d"] * 63)
    await run(jar, f"mkdir -p {deepest}/d/d\necho x > {deepest}/file\necho x > {deepest}/d/file")
    collected = await jar.collect(None)
    assert contents(collected) == {f"{deepest}/file": b"x\n"}
    assert reasons(collected) == {f"{deepest}/d": SkipReason.TOO_DEEP}


async def test_what_a_stopped_program_left_comes_back(jar: Jar) -> None:
    events = await started(jar, f"echo half > done\necho ready\n{FOREVER}", until=b"ready")
    jar.cancel()
    assert isinstance([event async for event in events][-1], Ended)
    assert contents(await jar.collect(None)) == {"done": b"half\n"}


async def test_collecting_twice_gives_the_same(jar: Jar) -> None:
    await run(jar, "echo x > a\nln -s a b")
    assert await jar.collect(None) == await jar.collect(None)


@pytest.mark.essential
async def test_failing_with_a_full_workspace_is_the_verdict(make_jar: MakeJar) -> None:
    jar = await make_jar(workspace_mb=1)
    result = await run(jar, "head -c 3000000 /dev/zero > big")
    assert result.how == (Verdict.DISK_FULL, 1)
    assert result.ended.usage.disk_full
    assert b"No space left on device" in result.stderr
    assert len(contents(await jar.collect(None))["big"]) == 1 << 20


async def test_coping_with_a_full_workspace_is_fine(make_jar: MakeJar) -> None:
    result = await run(await make_jar(workspace_mb=1), "head -c 3000000 /dev/zero > big || echo full")
    assert (result.how, result.stdout) == ((Verdict.EXITED, 0), b"full\n")
    assert result.ended.usage.disk_full


@pytest.mark.essential
async def test_failing_with_no_files_left_is_the_verdict(make_jar: MakeJar) -> None:
    jar = await make_jar(workspace_files=12)
    script = "\n".join(f"> f{number} || exit 1" for number in range(13))
    assert (await run(jar, script)).ended.verdict is Verdict.DISK_FULL


# The life of jars and engines


@pytest.mark.essential
async def test_a_jar_knows_nothing_of_another(make_jar: MakeJar) -> None:
    first, second = await make_jar(), await make_jar()
    await first.put(Area.WORK, [file("mine", "x")])
    await run(first, "echo x > made\necho x > /tmp/made")
    result = await run(second, "cat mine || cat made || cat /tmp/made || exit 9")
    assert result.how == (Verdict.EXITED, 9)


async def test_many_jars_run_at_once(make_jar: MakeJar) -> None:
    async def one(number: int) -> tuple[bytes, dict[str, bytes]]:
        jar = await make_jar()
        await jar.put(Area.WORK, [file("number", str(number))])
        result = await run(jar, "cat number\nsleep 0.2\ncat number > copy")
        return result.stdout, contents(await jar.collect(None))

    results = await asyncio.gather(*(one(number) for number in range(20)))
    assert results == [(str(n).encode(), {"copy": str(n).encode()}) for n in range(20)]


async def test_an_unused_jar_can_be_destroyed_twice(jar: Jar) -> None:
    await jar.destroy()
    await jar.destroy()


async def test_a_jar_can_be_destroyed_twice_at_once(jar: Jar) -> None:
    await run(jar, "true")
    await asyncio.gather(jar.destroy(), jar.destroy())


async def test_destroying_a_running_jar_ends_the_program(make_jar: MakeJar, footprint: Footprints) -> None:
    jar = await make_jar()
    events = await started(jar, f"trap '' TERM\necho ready\n{FOREVER}", until=b"ready")
    await jar.destroy()
    assert not running(footprint)
    last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert (last.verdict, last.exit_code, last.stdout_bytes) == (Verdict.LOST, None, 6)


async def test_a_destroyed_jar_refuses_everything(jar: Jar) -> None:
    await jar.destroy()
    with pytest.raises(EngineUnavailable):
        await run(jar, "true")
    with pytest.raises(EngineUnavailable):
        await jar.put(Area.WORK, [file("a", bytes(1 << 20))])
    with pytest.raises(EngineUnavailable):
        await jar.collect(None)
    jar.cancel()


async def test_a_network_cannot_be_had_yet(engine: Engine) -> None:
    with pytest.raises(GrantNotEnforceable) as caught:
        await engine.create(Grant(network=Network(enabled=True), accept_weaker_limits=True))
    assert caught.value.field == "network"


async def test_a_probe_says_what_it_looked_at(engine: Engine) -> None:
    probe = await engine.probe()
    assert probe.engine == engine.name
    assert probe.usable
    assert probe.checks
    assert all(check.name and check.detail for check in probe.checks)
    assert all(check.fix for check in probe.missing)


async def test_a_probe_disturbs_no_run(engine: Engine, jar: Jar) -> None:
    running = asyncio.create_task(run(jar, "sleep 0.5\necho done"))
    await asyncio.sleep(0.1)
    await engine.probe()
    assert (await running).how == (Verdict.EXITED, 0)
    await (await engine.create(Grant(accept_weaker_limits=True))).destroy()


async def test_a_caller_that_is_cancelled_while_a_jar_is_made_leaves_nothing(
    engine: Engine, idle: Any
) -> None:
    for turns in range(12):
        making = asyncio.create_task(engine.create(Grant(accept_weaker_limits=True)))
        for _ in range(turns):
            await asyncio.sleep(0)
        making.cancel()
        if (jar := (await asyncio.gather(making, return_exceptions=True))[0]) and not isinstance(
            jar, BaseException
        ):
            await jar.destroy()
    await idle.restored()


@pytest.mark.parametrize("after_s", [0, 0.001, 0.01, 0.05, 0.1, 0.2])
async def test_a_caller_that_is_cancelled_while_an_engine_starts_leaves_nothing(
    another: Another, idle: Any, after_s: float
) -> None:
    other = another()
    making = asyncio.create_task(other.create(Grant(accept_weaker_limits=True)))
    await asyncio.sleep(after_s)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await other.close()
    await idle.restored()


@pytest.mark.essential
async def test_closing_an_engine_ends_its_jars(another: Another, idle: Any) -> None:
    other = another()
    jars = [await other.create(Grant(accept_weaker_limits=True)) for _ in range(3)]
    running = asyncio.create_task(run(jars[0], FOREVER))
    await asyncio.sleep(0.1)
    await other.close()
    await other.close()
    assert (await running).ended.verdict is Verdict.LOST
    await idle.restored()
    for jar in jars:
        with pytest.raises(EngineUnavailable):
            await run(jar, "true")
        await jar.destroy()


async def test_a_closed_engine_may_be_used_again(another: Another, idle: Any) -> None:
    other = another()
    for _ in range(2):
        jar = await other.create(Grant(accept_weaker_limits=True))
        assert (await run(jar, "echo x")).stdout == b"x\n"
        await jar.destroy()
        await other.close()
    await idle.restored()


async def test_two_engines_live_side_by_side(engine: Engine, jar: Jar, another: Another) -> None:
    other = another()
    running = asyncio.create_task(run(jar, "sleep 0.5\necho done"))
    assert (await run(await other.create(Grant(accept_weaker_limits=True)), "echo x")).stdout == b"x\n"
    await other.close()
    assert (await running).how == (Verdict.EXITED, 0)
    third = await engine.create(Grant(accept_weaker_limits=True))
    assert (await run(third, "echo x")).stdout == b"x\n"
    await third.destroy()


# Python


async def python(engine: Engine, code: str | bytes, *, warm: bool, **fields: Any) -> Run:
    """A fresh jar for one program; `warm` is the fork of a running interpreter, otherwise a new one."""
    jar = await engine.create(Grant(accept_weaker_limits=True))
    try:
        await jar.put(Area.WORK, [file("main.py", code), file("sibling.py", "NAME = __name__\n")])
        interpreter = () if warm else engine.interpreters()[Language.PYTHON]
        argv = (*interpreter, f"{WORK}/main.py", "one", "two words")
        return await run(jar, Command(argv=argv, warm=warm, **fields))
    finally:
        await jar.destroy()


SAME = {
    "nothing": "",
    "main": """
        import sys
        print(__name__, __file__, __doc__, __package__, __spec__, __builtins__, __annotations__)
        print(sorted(globals()), type(__loader__).__name__, __loader__.name, __loader__.path)
        print(sys.modules['__main__'].__dict__ is globals())
        """,
    "docstring": '"what it is"\nprint(__doc__)',
    "argv": "import sys; print(sys.argv, sys.path, sys.flags, sys.orig_argv[1:])",
    "path": "import sys; print(sys.path[0], sys.executable, sys.prefix, sys.base_prefix, sys.path_hooks)",
    "site": "import sys; print('site' in sys.modules, exit, quit, copyright, sys.dont_write_bytecode)",
    "no-module-of-ours": "import sys; print([name for name in sys.modules if 'belljar' in name])",
    "cannot-import-us": "import belljar",
    "meta-path": "import sys; print(sys.meta_path)",
    "sibling": "import sibling; print(sibling.NAME, sibling.__file__)",
    "environment": "import os; print(sorted(os.environ.items()))",
    "environment-of-children": "import subprocess; print(sorted(subprocess.getoutput('env').splitlines()))",
    "cwd": "import os; print(os.getcwd(), os.listdir())",
    "ids": "import os; print(os.getuid(), os.getgid(), os.getgroups(), os.umask(0), os.getppid())",
    "session": "import os; print(os.getsid(0) == os.getpgrp() == os.getpid())",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1])",
    "signals": """
        import signal
        print([(int(s), str(signal.getsignal(s))) for s in signal.valid_signals()])
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        """,
    "signals-of-children": """
        import subprocess
        print(subprocess.getoutput('grep Sig /proc/self/status'))
        """,
    "limits": """
        import resource
        for name in dir(resource):
            if name.startswith('RLIMIT'):
                print(name, resource.getrlimit(getattr(resource, name)))
        """,
    "streams": """
        import sys
        for name in ('stdin', 'stdout', 'stderr'):
            s = getattr(sys, name)
            print(s, s is getattr(sys, f'__{name}__'), s.errors, s.newlines, s.line_buffering)
            print(s.write_through, s.isatty(), s.fileno(), s.buffer, s.buffer.raw, s.closed)
            print(s.seekable(), s.readable(), s.writable())
        """,
    "defaults": """
        import sys, locale, gc, threading, time
        print(sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
        print(locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL))
        print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks)
        print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits(), sys.gettrace())
        print(threading.active_count(), threading.current_thread())
        print(threading.main_thread().ident == threading.get_ident())
        print(sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook)
        print(time.tzname, sys.warnoptions, sys._xoptions, sys.pycache_prefix, sys.platlibdir)
        """,
    "warnings": "import warnings; warnings.warn('careful'); warnings.warn('old', DeprecationWarning)",
    "syntax-warning": "x = 1\nif x is 1: print('one')",
    "traceback": """
        def f(x):
            return 1 / x
        def g():
            f(0)
        g()
        """,
    "chained-traceback": """
        try:
            {}['missing']
        except KeyError as error:
            raise ValueError('é ☃ \\udcff') from error
        """,
    "traceback-in-a-sibling": "import importlib\nimportlib.import_module('nowhere.at.all')",
    "exception-group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "syntax-error": "print('never')\nif True print(1)\n",
    "indentation-error": "if True:\nprint(1)\n",
    "unterminated": "x = '''never ends\n",
    "null-byte": b"print(1)\n\0\n",
    "latin-1": "# -*- coding: latin-1 -*-\nprint('é')\n".encode("latin-1"),
    "latin-1-undeclared": "print('é')\n".encode("latin-1"),
    "unknown-coding": "# coding: no-such-coding\nprint(1)\n",
    "byte-order-mark": b"\xef\xbb\xbfprint('marked')\n",
    "carriage-returns": b"print(1)\r\nprint('''a\r\nb''')\r\n",
    "no-newline-at-end": b"print(1)\n# end",
    "future": "from __future__ import annotations\ndef f(x: undefined): ...\nprint(f.__annotations__)",
    "no-future": "def f(x: int): ...\nprint(f.__annotations__)",
    "exit-nothing": "import sys; sys.exit()",
    "exit-none": "raise SystemExit(None)",
    "exit-zero": "print('flushed'); raise SystemExit(0)",
    "exit-three": "raise SystemExit(3)",
    "exit-300": "raise SystemExit(300)",
    "exit-minus-one": "raise SystemExit(-1)",
    "exit-huge": "raise SystemExit(2**70)",
    "exit-true": "raise SystemExit(True)",
    "exit-text": "raise SystemExit('goodbye é')",
    "exit-tuple": "raise SystemExit(1, 2)",
    "exit-float": "raise SystemExit(1.5)",
    "exit-unprintable": "class X:\n  def __str__(self): raise ValueError('no')\nraise SystemExit(X())",
    "exit-in-function": "def f(): exit(4)\ntry: f()\nfinally: print('finally')",
    "exit-at-once": "import os; print('lost'); os._exit(5)",
    "atexit": """
        import atexit
        for number in range(3):
            atexit.register(print, 'bye', number)
        @atexit.register
        def fails(): 1 / 0
        print('hello')
        """,
    "atexit-after-error": "import atexit; atexit.register(print, 'bye'); 1 / 0",
    "threads-are-joined": """
        import threading, time, atexit
        atexit.register(print, 'after')
        over = threading.Event()
        def work():
            over.wait(); time.sleep(0.1); print('worked', threading.current_thread().daemon)
        threading.Thread(target=work).start()
        print('main is over'); over.set()
        """,
    "daemon-threads-are-not": """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print('main is over')
        """,
    "error-in-a-thread": "import threading; threading.Thread(target=lambda: 1 / 0, name='T').start()",
    "exit-in-a-thread": "import threading, sys; threading.Thread(target=sys.exit, args=(9,)).start()",
    "executor": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(3)
        futures = [pool.submit(pow, 2, n) for n in range(5)]
        print([f.result() for f in futures])
        """,
    "del-at-exit": """
        class Noisy:
            def __init__(self, name): self.name = name
            def __del__(self): print('del', self.name)
        _private = Noisy('private'); public = Noisy('public'); loop = Noisy('loop'); loop.me = loop
        """,
    "del-sees-globals": "import os\nclass X:\n  def __del__(self): print(os is None, print)\nx = X()",
    "weakref-finalize": "import weakref\nclass X: pass\nx = X()\nweakref.finalize(x, print, 'finalized')",
    "generator-finally": "def g():\n  try: yield\n  finally: print('closed')\nx = g(); next(x)",
    "temporary-directory": "import tempfile\nt = tempfile.TemporaryDirectory(prefix='x')\nprint(t.name[:6])",
    "unclosed-file": "f = open('left', 'w'); f.write('buffered')\nprint(open('left').read())",
    "excepthook": "import sys\nsys.excepthook = lambda *x: print('hook', x[0], x[1], x[2].tb_lineno)\n1 / 0",
    "excepthook-exits": "import sys\nprint('kept')\nsys.excepthook = lambda *x: sys.exit(6)\n1 / 0",
    "excepthook-fails": "import sys\ndef hook(*x): raise KeyError(1)\nsys.excepthook = hook\n1 / 0",
    "no-excepthook": "import sys\ndel sys.excepthook\n1 / 0",
    "interrupted": "import os, time\nprint('kept')\nos.kill(os.getpid(), 2)\ntime.sleep(5)",
    "keyboard-interrupt": "raise KeyboardInterrupt('by hand')",
    "interrupt-handled": "import os\ntry: os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt: print('caught')",
    "killed": "import os\nprint('lost')\nos.kill(os.getpid(), 9)",
    "aborted": "import os; os.abort()",
    "fork": """
        import os
        print('before', flush=True)
        pid = os.fork()
        if pid == 0:
            print('child', flush=True)
            raise SystemExit(3)
        print(os.waitpid(pid, 0)[1], flush=True)
        """,
    "fork-child-fails": "import os\npid = os.fork()\nif not pid: 1 / 0\nos.waitpid(pid, 0)\nprint('parent')",
    "fork-shares-the-buffer": "import os\nprint('twice')\npid = os.fork()\nif pid: os.waitpid(pid, 0)",
    "subprocess": """
        import subprocess, sys
        print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True))
        """,
    "pool-fork": """
        from multiprocessing import get_context
        def double(x): return 2 * x
        if __name__ == '__main__':
            with get_context('fork').Pool(2) as pool: print(pool.map(double, range(5)))
        """,
    "pool-spawn": """
        from multiprocessing import get_context
        def double(x): return 2 * x
        if __name__ == '__main__':
            with get_context('spawn').Pool(2) as pool: print(pool.map(double, range(5)))
        """,
    "process-spawn": """
        import multiprocessing as m, sys
        def show(): print(__name__, sys.argv, sys.modules['__main__'].__file__, flush=True)
        if __name__ == '__main__':
            p = m.get_context('spawn').Process(target=show); p.start(); p.join(); print(p.exitcode)
        """,
    "process-forkserver": """
        import multiprocessing as m
        def show(q): q.put(__name__)
        if __name__ == '__main__':
            c = m.get_context('forkserver'); q = c.Queue(); p = c.Process(target=show, args=(q,)); p.start()
            print(q.get()); p.join()
        """,
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0.01); print('slept')\nasyncio.run(f())",
    "asyncio-subprocess": """
        import asyncio
        async def f():
            p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)
            print(await p.communicate(), p.returncode)
        asyncio.run(f())
        """,
    "stdin-lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "stdin-input": "print(input('prompt> ')); print(input()); print(input())",
    "stdin-bytes": "import sys; print(sys.stdin.buffer.read())",
    "stdin-exhausted": "import sys; sys.stdin.read(); input()",
    "order": """
        import sys
        for number in range(3):
            print('out', number); sys.stderr.write(f'err {number} ')
        """,
    "order-on-one-stream": """
        import os, sys
        os.dup2(1, 2)
        print('out 1'); print('err 1', file=sys.stderr); print('out 2'); os.write(1, b'raw\\n')
        """,
    "unicode": "import sys; print('é ☃ 😀'); print('\\udcff'); print('é \\udcff', file=sys.stderr)",
    "unencodable": "print('\\ud800')",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "stdout-closed": "import sys; print('before'); sys.stdout.close(); sys.exit(2)",
    "stdout-descriptor-closed": "import os; print('lost'); os.close(1)",
    "stdout-full": "import sys; sys.stdout = open('/dev/full', 'w'); print('lost')",
    "stdout-replaced": "import io, sys; sys.stdout = io.StringIO(); print('captured')",
    "stdout-none": "import sys; sys.stdout = None; print('nowhere')",
    "stderr-closed": "import os\nos.close(2)\n1 / 0",
    "inspect": "import inspect\ndef f(): pass\nprint(inspect.getsource(f), inspect.stack()[0].filename)",
    "frame": "import sys\nf = sys._getframe()\nprint(f.f_code, f.f_lineno, f.f_globals is f.f_locals)",
    "trace": "import sys\nsys.settrace(lambda *x: None)\nprint('traced')",
    "pickle": "import pickle\nclass X: pass\nprint(type(pickle.loads(pickle.dumps(X()))).__module__)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P: x: int\nprint(P(1))",
    "typing": "import typing\nclass A: x: 'int'\nprint(typing.get_type_hints(A))",
    "runpy": "import runpy; print(sorted(runpy.run_path('sibling.py')))",
    "doctest": "def f():\n  '''\n  >>> f()\n  1\n  '''\n  return 1\nimport doctest; print(doctest.testmod())",
    "help": "help(len)",
    "import-main": "import __main__; print(__main__.__file__)",
    "comm": "print(open('/proc/self/comm').read())",
    "proc": "import os; print(sum(p.isdigit() for p in os.listdir('/proc')))",
    "children": "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '60'])\nprint('over')",
    "time-zone": "import time; print(time.tzname, time.strftime('%H %Z', time.localtime(0)))",
    "locale": "import locale; print(locale.setlocale(locale.LC_ALL, ''), locale.localeconv())",
}
"""What a program can see of how it was started. Leading blank lines and indentation are taken off."""


def dedented(code: str | bytes) -> str | bytes:
    return textwrap.dedent(code).lstrip("\n") if isinstance(code, str) else code


DIFFERENT = {
    "command-line": "print(open('/proc/self/cmdline').read())",
    "buffering": "import sys; print(sys.stdout.line_buffering)",
    "modules-already-imported": "import sys; print('ctypes' in sys.modules)",
    "stack-below": "import inspect; print(len(inspect.stack()))",
    "depth-left": "def f(n):\n  try: return f(n + 1)\n  except RecursionError: return n\nprint(f(0))",
    "variables-of-the-interpreter": "import sys; print(sys.flags.dont_write_bytecode, sys.flags.verbose)",
    "source-in-late-errors": "class X:\n  def __del__(self): 1 / 0\nx = X()",
    "frame-of-atexit": "import atexit, sys; atexit.register(sys.exit, 7)",
}
"""What `guest/warm.py` documents, and no more. The hash seed has a test of its own."""

GIVEN: Mapping[str, Any] = {
    "stdin": "first\nsecond é\nlast".encode(),
    "env": {"NAME": "value", "TZ": "Asia/Tokyo", "PYTHONUNBUFFERED": ""},
}


def comparable(result: Run) -> tuple[object, ...]:
    """Without addresses and identities of threads, which differ between any two processes."""
    texts = [re.sub(rb"0x[0-9a-f]{6,}|started \d+", b"_", text) for text in (result.stdout, result.stderr)]
    return (result.how, *(text.decode("utf-8", "backslashreplace") for text in texts))


@real
@pytest.mark.parametrize("code", SAME.values(), ids=SAME)
async def test_a_forked_interpreter_is_like_a_new_one(engine: Engine, code: str | bytes) -> None:
    forked = await python(engine, dedented(code), warm=True, **GIVEN)
    new = await python(engine, dedented(code), warm=False, **GIVEN)
    assert comparable(forked) == comparable(new)


@real
@pytest.mark.parametrize("warm", [True, False], ids=["fork", "exec"])
async def test_what_python_printed_is_not_lost_with_it(engine: Engine, warm: bool) -> None:
    ended = await python(engine, "import os\nprint('a line')\nos.kill(os.getpid(), 9)\n", warm=warm)
    assert ended.stdout == b"a line\n"
    assert ended.ended.verdict is Verdict.SIGNALED


@real
@pytest.mark.parametrize("code", DIFFERENT.values(), ids=DIFFERENT)
async def test_a_forked_interpreter_differs_where_it_is_said_to(engine: Engine, code: str) -> None:
    given = {"env": {"PYTHONVERBOSE": "0", "PYTHONDONTWRITEBYTECODE": ""}}
    forked = await python(engine, code, warm=True, **given)
    assert comparable(forked) != comparable(await python(engine, code, warm=False, **given))
    assert forked.ended.verdict is Verdict.EXITED


@pytest.mark.parametrize(
    "engine", ["jail"], indirect=True
)  # elsewhere each jar has an interpreter of its own
async def test_forks_share_the_hash_seed(engine: Engine) -> None:
    seeds = {(await python(engine, "print(hash('x'))", warm=True)).stdout for _ in range(3)}
    assert len(seeds) == 1


@real
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import random; print(random.random())", id="random"),
        pytest.param("import os; print(os.urandom(8))", id="urandom"),
        pytest.param("import uuid; print(uuid.uuid4())", id="uuid"),
        pytest.param("import tempfile; print(tempfile.mkdtemp())", id="tempfile"),
        pytest.param("import secrets; print(secrets.token_hex())", id="secrets"),
        pytest.param("import ssl; print(ssl.RAND_bytes(8))", id="openssl"),
    ],
)
async def test_forks_share_no_random_state(engine: Engine, code: str) -> None:
    said = [await python(engine, code, warm=True) for _ in range(3)]
    assert [result.how for result in said] == [(Verdict.EXITED, 0)] * 3
    assert len({result.stdout for result in said}) == 3


@real
async def test_preloaded_modules_are_there(engine: Engine, another: Another, idle: Any) -> None:
    code = "import sys; print('json.tool' in sys.modules, 'json.tool' in globals())"
    assert (await python(engine, code, warm=True)).stdout == b"False False\n"
    other = another(preload=("json.tool",))
    assert (await python(other, code, warm=True)).stdout == b"True False\n"
    await other.close()
    await idle.restored()


@real
async def test_a_module_that_cannot_be_preloaded_is_named(another: Another, idle: Any) -> None:
    other = another(preload=("no_such_module",))
    with pytest.raises(EngineUnavailable, match="no_such_module"):
        await other.create(Grant(accept_weaker_limits=True))
    await other.close()
    await idle.restored()


# What only a kernel can do


@real
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        pytest.param(("/workspace/work/data",), 126, id="not-executable"),
        pytest.param(("/workspace/work",), 126, id="a-folder"),
        pytest.param(("/workspace/work/missing",), 127, id="missing"),
        pytest.param(("echo", "x" * (1 << 20)), 126, id="argument-too-long"),
    ],
)
async def test_a_program_that_cannot_be_run_is_a_result(jar: Jar, argv: tuple[str, ...], code: int) -> None:
    await jar.put(Area.WORK, [file("data", "x")])
    result = await run(jar, Command(argv=argv))
    assert result.how == (Verdict.EXITED, code)
    assert result.stderr.startswith(b"belljar: cannot run ")


@real
async def test_hostile_names_come_back_escaped(jar: Jar) -> None:
    names = [
        b"\xff\xfe.txt",
        b"new\nline",
        b"\x1b[2J",
        "\u202eevil".encode(),
        b"-rf",
        b" ",
        "é".encode(),
        b"a\\b",
        b"x" * 255,
    ]
    code = f"for name in {names}:\n    open(name, 'wb').write(name)"
    await run(jar, Command(argv=("python3", "-c", code)))
    collected = await jar.collect(None)
    assert sorted(contents(collected).values()) == sorted(names)
    assert not collected.skipped
    for artifact in collected.artifacts:
        json.dumps(artifact.path, ensure_ascii=False).encode()
        assert artifact.path.isprintable()
    assert {"\\xff\\xfe.txt", "new\\x0aline", "é", "-rf"} <= contents(collected).keys()


@real
async def test_what_is_no_regular_file_is_named_and_not_opened(jar: Jar) -> None:
    code = textwrap.dedent("""
        import os, socket
        os.mkfifo('fifo')
        socket.socket(socket.AF_UNIX).bind('socket')
        os.truncate(os.open('sparse', os.O_CREAT | os.O_WRONLY), 1 << 40)
        os.close(os.open('closed', os.O_CREAT, 0))
        os.mkdir('locked')
        open('locked/x', 'w').close()
        os.chmod('locked', 0)
        """)
    assert (await run(jar, Command(argv=("python3", "-c", code)))).how == (Verdict.EXITED, 0)
    collected = await jar.collect(None)
    assert not collected.artifacts
    assert reasons(collected) == {
        "fifo": SkipReason.NOT_REGULAR,
        "socket": SkipReason.NOT_REGULAR,
        "sparse": SkipReason.TOO_LARGE,
        "closed": SkipReason.UNREADABLE,
        "locked": SkipReason.UNREADABLE,
    }


@real
async def test_however_many_things_are_left_out_the_rest_comes_back(make_jar: MakeJar) -> None:
    jar = await make_jar(artifact_files=1)
    code = (
        "import os\nopen('kept', 'w')\n"
        "for area in ('.', '../artifacts'):\n"
        "    for number in range(3000): os.symlink('x', f'{area}/link{number}')"
    )
    await run(jar, Command(argv=("python3", "-c", code)))
    collected = await jar.collect(["kept"])
    assert contents(collected) == {"kept": b""}
    collected = await jar.collect(None)
    assert SkipReason.TOO_MANY in {skipped.reason for skipped in collected.skipped}


@real
async def test_a_long_list_of_missing_files_is_answered(make_jar: MakeJar) -> None:
    jar = await make_jar(artifact_files=1)
    await run(jar, "echo x > last")
    paths = [f"missing{number}" for number in range(3000)]
    collected = await jar.collect([*paths, "last"])
    assert contents(collected) == {"last": b"x\n"}
    assert reasons(collected) == dict.fromkeys(paths, SkipReason.MISSING)


@real
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"memory_mb": 1}, id="memory"),
        pytest.param({"nofile": 1}, id="descriptors"),
        pytest.param({"nofile": 16}, id="few-descriptors"),
        pytest.param({"workspace_files": 1}, id="files"),
        pytest.param({"pids": 1}, id="processes"),
        pytest.param({"cpu_cores": 0.01}, id="cpu"),
    ],
)
async def test_the_smallest_limits_are_refused_or_held(
    engine: Engine, idle: Any, limits: dict[str, float]
) -> None:
    """Never a hang, never an error that is not ours."""
    grant = Grant(limits=Limits(timeout_s=2, grace_s=0.1, **limits), accept_weaker_limits=True)  # type: ignore[arg-type]
    try:
        jar = await engine.create(grant)
    except EngineUnavailable:
        pass
    else:
        try:
            await run(jar, "echo x")
        except EngineUnavailable:
            pass
        await jar.destroy()
    await idle.restored()
