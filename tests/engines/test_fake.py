"""What is special to the fake: that its shell is bash's, and that programs can be given as functions."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.engines.base import Area, Command
from belljar.engines.fake import FakeEngine, Process
from belljar.execution.runs import run
from belljar.models import Grant, InputFile, Language, RunRequest, RunResult, Verdict

SCRIPTS = {
    "nothing": "",
    "comment": "# echo no\necho yes # echo no\necho a#b",
    "quotes": """echo 'single $HOME' "double $NAME" mixed'one'"two" \\$NAME "\\$NAME \\" \\\\" '' x""",
    "newline-in-quotes": "echo 'a\nb' \"c\nd\"",
    "operators-in-quotes": "echo '>' \";\" '&&' \\> '|' '#'",
    "variables": 'echo $NAME $MISSING "$NAME" a$NAME-b $? ; false ; echo $?',
    "and-or": "true && echo a || echo b ; false && echo c || echo d ; false || false || echo e",
    "and-or-over-lines": "false &&\necho a\necho b",
    "status": "false ; true && false",
    "blank-lines": "\n\n echo x \n\n",
    "redirections": "echo 1 > f ; echo 2 >> f ; cat f ; cat < f ; >f ; cat f ; echo err >&2 > g ; cat g",
    "redirection-first": "> f echo x ; cat f",
    "missing-file": "cat missing || echo $?\ncat < missing || echo $?",
    "a-folder-is-no-file": "mkdir -p d ; cat d || echo $? ; echo x > d || echo $?",
    "folders": "mkdir -p a/b/c ; echo x > a/b/c/f ; cat a/../a/b/c/f ; echo x > no/f || echo $?",
    "remove": "echo x > f ; rm f ; cat f || echo gone ; mkdir -p d/e ; rm -rf d ; mkdir -p d ; rm -f f",
    "printf": "printf 'a\\nb\\ttab \\x41\\101 é'",
    "head": "echo 12345 > f ; head -c 3 < f",
    "background": "echo a > f &\nwait\ncat f",
    "exit-in-the-middle": "echo a\nexit 3\necho b",
    "exit-after-and": "true && exit 4 ; echo b",
    "trap": "trap 'echo caught' USR1\nkill -USR1 $$\necho after",
    "trap-nothing": "trap '' USR1\nkill -USR1 $$\necho after",
    "nested-bash": "bash -c 'echo inner $NAME' && bash -c 'false' || echo failed",
    "unknown": "no-such-program ; echo $?",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_bash_runs_a_script_the_same_way(tmp_path: Path, script: str) -> None:
    real = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"NAME": "value", "HOME": "/tmp", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    request = RunRequest(command=("bash", "-c", script), env={"NAME": "value"})
    fake = await run(FakeEngine(), Grant(), request)
    assert (fake.exit_code, fake.stdout.decode()) == (real.returncode, real.stdout.decode())
    assert bool(fake.stderr) == bool(real.stderr)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_a_quoted_word_is_one_word(text: str) -> None:
    request = RunRequest(command=("bash", "-c", f"echo x{shlex.quote(text)}"))
    assert asyncio.run(run(FakeEngine(), Grant(), request)).stdout.decode() == f"x{text}\n"


@pytest.mark.parametrize("script", ["echo a | cat", "(echo a)", "echo 'open", "echo $(date)", "echo `date`"])
async def test_what_the_shell_does_not_know_is_said(script: str) -> None:
    result = await run(FakeEngine(), Grant(), RunRequest(command=("bash", "-c", script)))
    assert result.exit_code == 1
    assert b"the fake engine's shell has no" in result.stderr


def python_that(does: Callable[[Process], Awaitable[int]]) -> FakeEngine:
    return FakeEngine(programs={"python3": does})


async def answer(engine: FakeEngine, **fields: object) -> RunResult:
    request = RunRequest(code="print(42)", **fields)  # type: ignore[arg-type]
    return await run(engine, Grant(), request)


async def test_a_program_can_be_a_function() -> None:
    async def python3(process: Process) -> int:
        assert process.argv == ("python3", "/workspace/work/main.py", "argument")
        assert process.files.read(process.argv[1]) == b"print(42)"
        assert process.env["NAME"] == "value"
        await process.out(await process.stdin.read())
        await process.err(b"told\n")
        process.files.add(process.path_to_write("made.txt"), bytearray(b"content"))
        return 3

    result = await answer(
        python_that(python3), args=("argument",), env={"NAME": "value"}, stdin=b"from outside"
    )
    assert (result.verdict, result.exit_code) == (Verdict.EXITED, 3)
    assert (result.stdout, result.stderr) == (b"from outside", b"told\n")
    assert [artifact.path for artifact in result.artifacts] == ["made.txt"]


async def test_what_a_function_raises_is_the_programs_failure() -> None:
    async def python3(process: Process) -> int:
        raise RuntimeError("moon is down")

    result = await answer(python_that(python3))
    assert result.exit_code == 1
    assert b"RuntimeError: moon is down" in result.stderr


async def test_a_function_is_over_when_its_jar_is_destroyed() -> None:
    lives: list[str] = []
    begun = asyncio.Event()

    async def python3(process: Process) -> int:
        lives.append("started")
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            lives.append("ended")
        return 0

    jar = await python_that(python3).create(Grant())
    async for _ in jar.exec(Command(argv=("python3",))):
        break
    await asyncio.wait_for(begun.wait(), 30)
    await jar.destroy()
    assert lives == ["started", "ended"]


async def test_languages_are_those_that_have_a_program() -> None:
    async def nothing(process: Process) -> int:
        return 0

    assert set(FakeEngine().interpreters()) == {Language.BASH}
    engine = FakeEngine(programs={"python3": nothing, "node": nothing})
    assert set(engine.interpreters()) == {Language.BASH, Language.PYTHON, Language.JAVASCRIPT}


async def test_a_program_given_as_a_function_may_replace_a_command() -> None:
    async def echo(process: Process) -> int:
        await process.out(b"echoed\n")
        return 0

    jar = await FakeEngine(programs={"echo": echo}).create(Grant())
    await jar.put(Area.WORK, [InputFile("main.sh", b"echo x > file\ncat file")])
    data = [event async for event in jar.exec(Command(argv=("bash", "main.sh")))]
    assert b"echoed\n" in [getattr(event, "data", b"") for event in data]
