"""A jar that several programs share: what a session promises, on every engine that has a real guest."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import pytest_asyncio

from belljar.engines.base import Area, Command, Engine
from belljar.engines.guestjar import GuestJar
from belljar.engines.kept import KeptJar, Terminal
from belljar.errors import BelljarError, Conflict, NotFound, PathNotAllowed
from belljar.models import Ended, Grant, InputFile, Limits, Output, Shown, Stream, Verdict

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("engine", ["docker", "gvisor", "jail"], indirect=True),
]

GRANT = Grant(limits=Limits(timeout_s=20, grace_s=1), accept_weaker_limits=True)


@pytest_asyncio.fixture(loop_scope="module")
async def kept(engine: Engine) -> AsyncIterator[KeptJar]:
    jar = await engine.create(GRANT)
    assert isinstance(jar, GuestJar)
    kept = KeptJar(jar)
    yield kept
    await kept.destroy()


class Told:
    """All that a run said."""

    def __init__(self) -> None:
        self.out = b""
        self.err = b""
        self.shown: list[object] = []
        self.ended: Ended | None = None

    @property
    def verdict(self) -> tuple[Verdict, int | None]:
        assert self.ended is not None
        return self.ended.verdict, self.ended.exit_code


async def tell(kept: KeptJar, command: Command, grant: Grant = GRANT) -> Told:
    told = Told()
    async for event in kept.seat(grant).exec(command):
        if isinstance(event, Output):
            if event.stream is Stream.STDOUT:
                told.out += event.data
            else:
                told.err += event.data
        elif isinstance(event, Shown):
            told.shown.append(event.forms)
        elif isinstance(event, Ended):
            told.ended = event
    return told


async def shell(kept: KeptJar, script: str, grant: Grant = GRANT) -> Told:
    return await tell(kept, Command(argv=("bash", "-c", script)), grant)


async def cell(kept: KeptJar, code: str, context: str = "main", grant: Grant = GRANT) -> Told:
    return await tell(kept, Command(argv=(), context=context, cell=code), grant)


async def until(kept: KeptJar, script: str, said: bytes) -> None:
    """Asked again and again: who was just started may not run yet, who was just killed not be buried."""
    async with asyncio.timeout(60):
        while (await shell(kept, script)).out != said:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.essential
async def test_files_stay_between_programs(kept: KeptJar) -> None:
    await shell(kept, "echo one > a; mkdir -p d; echo two > /tmp/b")
    assert (await shell(kept, "cat a /tmp/b")).out == b"one\ntwo\n"


@pytest.mark.essential
async def test_background_processes_live_on(kept: KeptJar) -> None:
    first = await shell(kept, "(until [ -e asked ]; do sleep 0.01; done; > answered) & true")
    assert first.verdict == (Verdict.EXITED, 0)
    again = await shell(kept, "> asked; until [ -e answered ]; do sleep 0.01; done; echo lives")
    assert again.out == b"lives\n"


async def test_a_background_process_that_keeps_the_pipe_does_not_hold_the_run(kept: KeptJar) -> None:
    async with asyncio.timeout(30):
        told = await shell(kept, "echo now; sleep 100 &")
    assert told.out == b"now\n"


async def test_what_a_background_process_writes_later_disturbs_no_other_run(kept: KeptJar) -> None:
    await shell(kept, "(sleep 0.1; yes) & echo started")
    await asyncio.sleep(0.2)
    assert (await shell(kept, "echo mine")).out == b"mine\n"


@pytest.mark.essential
async def test_a_time_out_ends_the_program_and_what_it_started_but_not_the_session(kept: KeptJar) -> None:
    await shell(kept, "sleep 1000 & echo kept")
    hasty = replace(GRANT, limits=replace(GRANT.limits, timeout_s=2, grace_s=0))
    told = await shell(kept, "trap '' TERM; sleep 2000 & sleep 2000", hasty)
    assert told.verdict[0] is Verdict.TIMEOUT
    await until(kept, "ps -eo args | grep '[s]leep' | sort | uniq -c | tr -s ' '", b" 1 sleep 1000\n")


async def test_two_programs_run_at_once_and_keep_their_output_apart(kept: KeptJar) -> None:
    script = "for i in 1 2 3 4 5; do echo {0}; sleep 0.02; done"
    first, second = await asyncio.gather(shell(kept, script.format("a")), shell(kept, script.format("b")))
    assert (first.out, second.out) == (b"a\n" * 5, b"b\n" * 5)


async def test_a_caller_that_goes_away_leaves_no_program_behind(kept: KeptJar) -> None:
    running = asyncio.create_task(shell(kept, "sleep 3000"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(kept, "ps -eo args | grep -c '[s]leep 3000'", b"0\n")


async def test_collecting_gives_what_changed_since_the_last_time(kept: KeptJar) -> None:
    seat = kept.seat(GRANT)
    await shell(kept, "echo 1 > a; echo 1 > b; echo x > /workspace/artifacts/c")
    assert sorted(one.path for one in (await seat.collect(None)).artifacts) == ["a", "artifacts/c", "b"]
    await shell(kept, "echo 22 > b; echo 3 > d")
    assert sorted(one.path for one in (await seat.collect(None)).artifacts) == ["b", "d"]


async def test_everything_is_all_there_is(kept: KeptJar) -> None:
    await shell(kept, "echo 1 > a; mkdir s; echo 1 > s/b; echo x > /workspace/artifacts/c")
    await kept.seat(GRANT).collect(None)
    assert sorted(one.path for one in (await kept.everything()).artifacts) == ["a", "artifacts/c", "s/b"]


async def test_a_paused_session_stands_still_and_goes_on(kept: KeptJar) -> None:
    async def beats_on() -> bool:
        before = (await kept.read(Area.WORK, "beat", length=0))[1]
        await asyncio.sleep(0.1)
        return (await kept.read(Area.WORK, "beat", length=0))[1] != before

    await shell(kept, "(while :; do echo >> beat; sleep 0.01; done) & until [ -s beat ]; do sleep 0.01; done")
    await kept.signal_all(signal.SIGSTOP)
    async with asyncio.timeout(30):
        while await beats_on():  # one beat may be half done
            pass
    assert not await beats_on()
    await kept.signal_all(signal.SIGCONT)
    async with asyncio.timeout(30):
        while not await beats_on():
            pass


# Contexts


@pytest.mark.essential
async def test_variables_live_on_in_a_context(kept: KeptJar) -> None:
    await cell(kept, "x = 40\ndef add(n):\n    return x + n")
    told = await cell(kept, "print('sum'); add(2)")
    assert told.out == b"sum\n"
    assert told.shown == [{"text/plain": "42"}]
    assert told.verdict == (Verdict.EXITED, 0)


async def test_contexts_do_not_share_variables(kept: KeptJar) -> None:
    await cell(kept, "x = 1", "one")
    told = await cell(kept, "x", "two")
    assert told.verdict == (Verdict.EXITED, 1)
    assert b"NameError" in told.err


async def test_an_error_is_a_result_and_the_context_lives_on(kept: KeptJar) -> None:
    told = await cell(kept, "y = 5\nraise ValueError('no')")
    assert told.verdict == (Verdict.EXITED, 1)
    assert told.err.decode().splitlines() == [
        "Traceback (most recent call last):",
        '  File "<cell 1>", line 2, in <module>',
        "    raise ValueError('no')",
        "ValueError: no",
    ]
    assert (await cell(kept, "y")).shown == [{"text/plain": "5"}]


async def test_a_value_shows_itself_in_all_its_forms(kept: KeptJar) -> None:
    code = (
        "class Chart:\n"
        "    def _repr_html_(self): return '<b>1</b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def __repr__(self): return 'chart'\n"
        "display(Chart())\n'last'"
    )
    assert (await cell(kept, code)).shown == [
        {"text/plain": "chart", "text/html": "<b>1</b>", "image/png": "cG5n"},
        {"text/plain": "'last'"},
    ]


async def test_await_works_at_the_top_of_a_cell(kept: KeptJar) -> None:
    told = await cell(kept, "import asyncio\nawait asyncio.sleep(0, 'woken')")
    assert told.shown == [{"text/plain": "'woken'"}]


async def test_an_interrupt_that_comes_when_a_cell_is_over_does_nothing(kept: KeptJar) -> None:
    pid = (await cell(kept, "import os; x = 42; print(os.getpid())")).out.decode()
    await shell(kept, f"kill -INT {pid}")
    assert (await cell(kept, "x")).shown == [{"text/plain": "42"}]


async def test_a_program_s_own_way_with_interrupts_is_kept_between_cells(kept: KeptJar) -> None:
    await cell(kept, "import os, signal; heard = []; signal.signal(2, lambda *_: heard.append(1))")
    told = await cell(kept, "os.kill(os.getpid(), 2); heard")
    assert told.shown == [{"text/plain": "[1]"}]


async def test_an_endless_cell_is_interrupted_and_the_context_keeps_its_variables(kept: KeptJar) -> None:
    await cell(kept, "z = 7")
    hasty = replace(GRANT, limits=replace(GRANT.limits, timeout_s=2, grace_s=30))
    told = await cell(kept, "while True: pass", grant=hasty)
    assert told.verdict[0] is Verdict.TIMEOUT
    assert b"KeyboardInterrupt" in told.err
    assert (await cell(kept, "z")).shown == [{"text/plain": "7"}]


async def test_a_cell_that_does_not_heed_is_killed_and_its_context_begins_anew(kept: KeptJar) -> None:
    hasty = replace(GRANT, limits=replace(GRANT.limits, timeout_s=0.2, grace_s=0.2))
    await cell(kept, "w = 1\nimport signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    told = await cell(kept, "while True: pass", grant=hasty)
    assert told.verdict[0] is Verdict.TIMEOUT
    assert (await cell(kept, "'w' in globals()")).shown == [{"text/plain": "False"}]


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        pytest.param("import os; os._exit(3)", (Verdict.EXITED, 3), id="exit"),
        pytest.param("import os; os.kill(os.getpid(), 11)", (Verdict.SIGNALED, None), id="crash"),
    ],
)
async def test_a_cell_that_ends_its_context_says_how(
    kept: KeptJar, code: str, verdict: tuple[Verdict, int | None]
) -> None:
    assert (await cell(kept, code)).verdict == verdict
    assert (await cell(kept, "1 + 1")).shown == [{"text/plain": "2"}]


async def test_a_context_that_forges_its_frames_harms_only_itself(kept: KeptJar) -> None:
    forged = (
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'\\xff' * 64)\n    except OSError: pass"
    )
    told = await cell(kept, forged + "\nimport time; time.sleep(60)")
    assert told.verdict[0] is Verdict.SIGNALED
    assert (await shell(kept, "echo well")).out == b"well\n"


async def test_a_busy_context_is_a_conflict(kept: KeptJar) -> None:
    waiting = "import os, time\nwhile not os.path.exists('over'): time.sleep(0.01)"
    running = asyncio.create_task(cell(kept, waiting))
    await asyncio.sleep(0.1)
    with pytest.raises(Conflict, match="busy"):
        await cell(kept, "1")
    await kept.put(Area.WORK, [InputFile("over", b"")])
    assert (await running).verdict == (Verdict.EXITED, 0)


async def test_a_value_too_large_to_show_is_cut(kept: KeptJar) -> None:
    (shown,) = (await cell(kept, "'x' * 50_000_000")).shown
    assert isinstance(shown, dict)
    assert len(shown["text/plain"]) < 1 << 20


# Terminals


class Screen:
    """What a terminal shows, read as it is waited for."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._shown = b""
        self._output = terminal.output()

    async def type(self, text: str) -> None:
        await self.terminal.type(text.encode())

    async def until(self, text: str) -> None:
        """What was shown up to it is not looked at again."""
        async with asyncio.timeout(30):
            while text.encode() not in self._shown:
                self._shown += await anext(self._output)
        self._shown = self._shown.partition(text.encode())[2]

    async def end(self) -> int | None:
        async with asyncio.timeout(30):
            async for _ in self._output:
                pass
        return self.terminal.exit_code


@asynccontextmanager
async def typing_at(kept: KeptJar, *argv: str) -> AsyncIterator[Screen]:
    terminal = kept.terminal(Command(argv=argv or ("bash", "--norc"), env={"PS1": "$ "}), 30, 100)
    await terminal.begin()
    yield Screen(terminal)
    await terminal.close()


@pytest.mark.essential
async def test_a_terminal_is_the_jars_own_and_can_be_resized(kept: KeptJar) -> None:
    async with typing_at(kept) as screen:
        await screen.type("tty; stty size\r")
        await screen.until("/dev/pts/0")
        await screen.until("30 100")
        await screen.terminal.resize(40, 120)
        await screen.type("stty size\r")
        await screen.until("40 120")
        await screen.type("exit 7\r")
        assert await screen.end() == 7


@pytest.mark.essential
async def test_control_c_reaches_what_runs_in_a_terminal(kept: KeptJar) -> None:
    async with typing_at(kept) as screen:
        await screen.type("python3 -c 'import time; print(chr(33) * 3, flush=True); time.sleep(600)'\r")
        await screen.until("!!!")
        await screen.type("\x03")
        await screen.until("KeyboardInterrupt")
        await screen.type("echo status-$?\r")
        await screen.until("status-130")


async def test_a_terminal_waits_for_its_reader_and_loses_nothing(kept: KeptJar) -> None:
    async with typing_at(kept, "seq", "200000") as screen:
        assert (await shell(kept, "echo still")).out == b"still\n"
        await screen.until("\n199999\r\n200000")
        assert await screen.end() == 0


async def test_a_line_that_is_cut_hangs_up(kept: KeptJar) -> None:
    async with typing_at(kept, "bash", "-c", "trap '' HUP; echo ready; sleep 4000") as screen:
        await screen.until("ready")
    await until(kept, "ps -eo args | grep -c '[s]leep 4000'", b"0\n")


async def test_two_terminals_do_not_share_a_line(kept: KeptJar) -> None:
    async with typing_at(kept) as one, typing_at(kept) as other:
        await one.type("echo $((6 * 7))-one\r")
        await other.type("echo $((6 * 7))-other\r")
        await one.until("42-one")
        await other.until("42-other")


# Files


@pytest.mark.essential
async def test_files_are_listed_read_moved_and_removed(kept: KeptJar) -> None:
    await kept.put(Area.WORK, [InputFile("d/a.txt", b"0123456789")])
    assert [(one.path, one.kind, one.size) for one in await kept.listing(Area.WORK, "d")] == [
        ("a.txt", "regular", 10)
    ]
    assert await kept.read(Area.WORK, "d/a.txt", offset=3, length=4) == (b"3456", 10)
    await kept.move(Area.WORK, "d/a.txt", "e/b.txt")
    await kept.make_directory(Area.WORK, "empty/one")
    tree = [(one.path, one.kind) for one in await kept.listing(Area.WORK, depth=9)]
    assert tree == [
        ("d", "directory"),
        ("e", "directory"),
        ("e/b.txt", "regular"),
        ("empty", "directory"),
        ("empty/one", "directory"),
    ]
    await kept.remove(Area.WORK, "e")
    with pytest.raises(NotFound, match="no such file"):
        await kept.read(Area.WORK, "e/b.txt", length=10)


@pytest.mark.essential
async def test_inputs_come_at_any_time_and_stay_read_only(kept: KeptJar) -> None:
    await kept.put(Area.INPUTS, [InputFile("a", b"1"), InputFile("d/b", b"2")])
    assert (
        await shell(kept, "cat ../inputs/a ../inputs/d/b; echo 3 > ../inputs/a || echo no")
    ).out == b"12no\n"
    await kept.put(Area.INPUTS, [InputFile("a", b"new")])
    assert await kept.read(Area.INPUTS, "a", length=10) == (b"new", 3)


async def test_a_link_leads_nowhere(kept: KeptJar) -> None:
    await shell(kept, "ln -s /etc/passwd link; ln -s / root")
    for path in ("link", "root/etc/passwd"):
        with pytest.raises(PathNotAllowed, match="elsewhere"):
            await kept.read(Area.WORK, path, length=10)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", ""])
async def test_a_path_that_leads_out_is_refused(kept: KeptJar, path: str) -> None:
    with pytest.raises(BelljarError):
        await kept.read(Area.WORK, path, length=10)
    assert (await shell(kept, "echo well")).out == b"well\n"
