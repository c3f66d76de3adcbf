"""Sessions under hostile programs: what one leaves, another session must not find; and no program of a session
can reach the guest, outlive its run's verdict, or keep the files of the session from their owner."""

from __future__ import annotations

import asyncio
import signal
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.hostile.attacks import ROOMY, SMALL, TACTICS, Control, answers, small

from belljar.engines.base import WORK, Area, Command
from belljar.engines.guestjar import GuestJar
from belljar.engines.kept import KeptJar
from belljar.errors import BadRequest, BelljarError, LimitExceeded, NotFound, PathNotAllowed
from belljar.models import Ended, Grant, InputFile, Limits, Output, Verdict

if TYPE_CHECKING:
    from tests.hostile.glass import Glass

PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/workspace/work", "/workspace/artifacts")
MARK = "left-by-another"
PATIENCE_S = 25


@asynccontextmanager
async def kept_in(glass: Glass, limits: Limits = SMALL) -> AsyncIterator[KeptJar]:
    jar = await glass.engine.create(Grant(limits=limits, accept_weaker_limits=True))
    assert isinstance(jar, GuestJar)
    kept = KeptJar(jar)
    try:
        await kept.put(Area.WORK, [InputFile("tactics.py", TACTICS.encode())])
        yield kept
    finally:
        await kept.destroy()


class Ran:
    def __init__(self, out: bytes, ended: Ended) -> None:
        self.out = out
        self.ended = ended


async def python(kept: KeptJar, code: str, **more: Any) -> Ran:
    script = textwrap.dedent(code)
    await kept.put(Area.WORK, [InputFile("main.py", script.encode())])
    return await run(kept, Command(argv=(f"{WORK}/main.py",), warm=True, **more))


async def cell(kept: KeptJar, code: str, limits: Limits = SMALL) -> Ran:
    command = Command(argv=(), warm=True, context="main", cell=textwrap.dedent(code))
    return await run(kept, command, limits)


async def run(kept: KeptJar, command: Command, limits: Limits = SMALL) -> Ran:
    out, ended = b"", None
    async for event in kept.seat(Grant(limits=limits, accept_weaker_limits=True)).exec(command):
        if isinstance(event, Output):
            out += event.data
        elif isinstance(event, Ended):
            ended = event
    assert ended is not None
    return Ran(out, ended)


def contained(glass: Glass, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Played to its end, with nothing left on the host and nobody else touched."""
    with glass.watching(Control.PROBE):
        glass.wait(scene())


async def is_well(kept: KeptJar) -> None:
    assert (await python(kept, "print('well')")).out == b"well\n"


LEAVE = f"""
    import os, signal, socket
    from tactics import libc
    for place in {PLACES!r}:
        if os.access(place, os.W_OK):
            open(f"{{place}}/{MARK}", "w").close()
    libc.shmget(0xb0b, 4096, 0o1666); libc.semget(0xb0b, 1, 0o1666); libc.msgget(0xb0b, 0o1666)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        unix = socket.socket(socket.AF_UNIX); unix.bind("\\0{MARK}"); unix.listen()
        tcp = socket.create_server(("127.0.0.1", 40404))
        os.write(1, b"listening\\n")
        os.write(write, b"x")
        signal.pause()
    os.read(read, 1)
    """
FIND = f"""
    from tactics import *
    import socket
    for place in {PLACES!r}:
        if os.path.exists(f"{{place}}/{MARK}"):
            say(place, "REACHED")
    for name, got in (("memory", libc.shmget(0xb0b, 4096, 0)), ("semaphore", libc.semget(0xb0b, 1, 0)), ("queue", libc.msgget(0xb0b, 0))):
        say(name, "REACHED" if got >= 0 else "none")
    attempt("unix", socket.socket(socket.AF_UNIX).connect, "\\0{MARK}")
    attempt("tcp", socket.create_connection, ("127.0.0.1", 40404), 1)
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
    say("processes", "REACHED" if others else "none")
    """


def test_a_later_run_of_the_session_finds_what_was_left(glass: Glass) -> None:
    """The control: where it is meant to stay, all of it is there."""

    async def scene() -> None:
        async with kept_in(glass) as kept:
            assert b"listening" in (await python(kept, LEAVE)).out
            found = answers((await python(kept, FIND)).out)
            assert set(found.values()) == {"REACHED"}, found
            writable = len(PLACES) - (glass.engine.name != "jail")  # /var/tmp is the image's own there
            assert len(found) == writable + 6

    contained(glass, scene)


def test_another_session_finds_nothing(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as first, kept_in(glass) as second:
            await python(first, LEAVE)
            found = answers((await python(second, FIND)).out)
            assert "REACHED" not in found.values(), found
            assert len(found) == 6

    contained(glass, scene)


def test_a_run_outside_of_it_finds_nothing_also_when_the_session_is_over(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as first:
            await python(first, LEAVE)
        async with kept_in(glass) as fresh:
            found = answers((await python(fresh, FIND)).out)
            assert "REACHED" not in found.values(), found

    contained(glass, scene)


@pytest.mark.shared_kernel("there its own uid may kill pid 1: the session is lost, and that is all")
def test_no_program_reaches_the_guest(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            ran = await python(
                kept,
                """
                from tactics import *
                import signal
                attempt("memory", open, "/proc/1/mem", "r+b")
                attempt("descriptors", os.listdir, "/proc/1/fd")
                for fd in range(12):
                    attempt(f"descriptor-{fd}", os.open, f"/proc/1/fd/{fd}", os.O_RDWR)
                attempt("environment", read, "/proc/1/environ")
                attempt("ptrace", lambda: checked(libc.ptrace(16, 1, 0, 0)))
                attempt("vm", lambda: call(310, 1, None, 0, None, 0, 0))
                pidfd = os.pidfd_open(1)
                attempt("getfd", lambda: call(438, pidfd, 0, 0))
                for number in range(1, 65):
                    try:
                        os.kill(1, number)
                    except OSError:
                        pass
                say("still", "here")
                """,
            )
            found = answers(ran.out)
            assert found.pop("still") == "here"
            assert "REACHED" not in found.values(), found
            await is_well(kept)

    contained(glass, scene)


def test_what_a_run_left_behind_speaks_in_no_other_run(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            first = await python(
                kept,
                """
                import os, time
                if os.fork() == 0:
                    os.setsid()
                    while True:
                        os.write(1, b"FORGED\\n"); os.write(2, b"FORGED\\n")
                        time.sleep(0.001)
                print("first")
                """,
            )
            assert b"first\n" in first.out
            for _ in range(3):
                second = await python(kept, "import time; time.sleep(0.1); print('second')")
                assert second.out == b"second\n"
                assert second.ended.verdict is Verdict.EXITED

    contained(glass, scene)


@pytest.mark.shared_kernel("where memory runs out it ends, and the session with it")
def test_verdict_and_counters_are_each_runs_own(glass: Glass) -> None:
    """V10, V11: what one did to itself or to the counters is not the next one's."""

    async def scene() -> None:
        async with kept_in(glass, small(memory_mb=48)) as kept:
            hungry = await python(kept, "x = bytearray(200 << 20)")
            assert hungry.ended.exit_code != 0
            await python(
                kept,
                """
                import os, resource, signal, sys
                os.umask(0o777); os.chdir("/"); os.nice(5)
                resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                sys.modules["json"] = None
                """,
            )
            after = await python(
                kept,
                """
                import json, os, resource, signal
                print(oct(os.umask(0)), os.getcwd(), os.nice(0), resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                      len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), signal.getsignal(signal.SIGTERM).name)
                raise SystemExit(1)
                """,
            )
            assert after.out == b"0o22 /workspace/work 0 256 0 SIG_DFL\n"
            assert after.ended.verdict is Verdict.EXITED  # not `oom`, although the jar has seen one
            assert after.ended.usage.oom_kills == 0

    contained(glass, scene)


@pytest.mark.parametrize("program", ["stubborn.py", "fleeing.py"])
def test_a_clock_ends_a_program_that_heeds_nothing_and_what_it_started(glass: Glass, program: str) -> None:
    async def scene() -> None:
        async with kept_in(glass, ROOMY) as kept:
            await kept.put(Area.WORK, [InputFile(program, HEEDLESS[program].encode())])
            command = Command(argv=(f"{WORK}/{program}",), warm=True)
            ran = await run(kept, command, replace(SMALL, timeout_s=0.5, grace_s=0))
            assert ran.ended.verdict is Verdict.TIMEOUT
            seen = await python(kept, ALONE)
            assert len(seen.out.split()) == 1, seen.out

    contained(glass, scene)


# What is killed is there until it is reaped, and who flees is not in every list.
ALONE = """
import os, time
def there():
    return {name for name in os.listdir('/proc') if name.isdigit()} - {'1'}  # the guest may be seen
for _ in range(400):
    seen = set().union(*(there() for _ in range(20)))
    if len(seen) == 1:
        break
    time.sleep(0.05)
print(*seen)
"""
HEEDLESS = {
    "stubborn.py": """
import os, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.fork()
while True:
    pass
""",
    # Whoever is listed is another one when the signal comes.
    "fleeing.py": """
import os, time
def flee():
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
for _ in range(12):
    try:
        os.fork() or flee()
    except OSError:
        pass
time.sleep(60)
""",
}


# Contexts


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import os; os.write(5, b'\\xff' * 1000)", id="no-frames"),
        pytest.param("import os, struct; os.write(5, struct.pack('>BII', 6, 0, 1 << 31))", id="too-large"),
        pytest.param("import os, struct; os.write(5, struct.pack('>BII', 6, 0, 2) + b'[]')", id="no-object"),
        pytest.param("import os; os.close(5); os.close(4)", id="closed"),
        pytest.param("import os; os.kill(os.getpid(), 9)", id="killed"),
        pytest.param("import os; os._exit(0)", id="left"),
        pytest.param(
            "import os; os.write(5, b'\\x03' + bytes(8)) * 3; import time; time.sleep(60)", id="done-early"
        ),
    ],
)
def test_a_context_that_lies_loses_itself_only(glass: Glass, code: str) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            await cell(kept, "x = 1")
            await cell(kept, code, replace(SMALL, timeout_s=2))
            await is_well(kept)
            for _ in range(600):  # until the guest has seen that it is dead
                try:
                    ran = await cell(kept, "print('again')", replace(SMALL, timeout_s=2))
                except BelljarError:
                    await asyncio.sleep(0.05)
                    continue
                if ran.out == b"again\n":
                    return
            raise AssertionError("no context can be had any more")

    contained(glass, scene)


TAKE_EVERY_PROCESS = """
    import os, signal, time
    if os.fork() == 0:
        while True:
            try:
                if os.fork() == 0:
                    signal.pause()
            except BlockingIOError:
                time.sleep(0.001)
    """


@pytest.mark.shared_kernel("there a bomb ends gVisor, and with it the session")
def test_a_session_outlives_a_program_that_takes_all_its_processes(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            await python(kept, TAKE_EVERY_PROCESS)
            async with asyncio.timeout(PATIENCE_S):
                while (ran := await run(kept, Command(argv=("echo", "more")))).out == b"more\n":
                    pass
            for refused in (ran, await cell(kept, "print('more')")):
                assert refused.out.startswith(b"belljar: cannot run ")
                assert (refused.ended.verdict, refused.ended.exit_code) == (Verdict.EXITED, 126)
            terminal = kept.terminal(Command(argv=("bash",)), 30, 100)
            with pytest.raises(LimitExceeded, match="no process left"):
                await terminal.begin()
            await terminal.close()
            await kept.signal_all(signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):  # who is dead counts until he is buried
                while (await run(kept, Command(argv=("echo", "more")))).out != b"more\n":
                    pass
            await is_well(kept)
            assert (await cell(kept, "print('well')")).out == b"well\n"

    contained(glass, scene)


def test_a_context_that_heeds_no_interrupt_is_killed(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
            ran = await cell(kept, code, replace(SMALL, timeout_s=0.3))
            assert ran.ended.verdict is Verdict.TIMEOUT
            await is_well(kept)

    contained(glass, scene)


# Files


def test_planted_links_are_replaced_and_not_followed(glass: Glass) -> None:
    """O20: step one leaves a link where step two's file goes."""

    async def scene() -> None:
        async with kept_in(glass) as kept:
            await kept.put(Area.INPUTS, [InputFile("victim", b"unchanged")])
            await python(
                kept,
                """
                import os
                open("/workspace/artifacts/victim", "w").write("unchanged")
                for name, target in (("next.py", "/workspace/artifacts/victim"), ("input", "/workspace/inputs/victim"),
                                     ("folder", "/workspace/artifacts"), ("out", "/etc")):
                    os.symlink(target, name)
                """,
            )
            await kept.put(Area.WORK, [InputFile("next.py", b"new"), InputFile("input", b"new")])
            for path in ("folder/victim", "out/passwd"):
                with pytest.raises((PathNotAllowed, BadRequest, NotFound)):
                    await kept.put(Area.WORK, [InputFile(path, b"new")])
                with pytest.raises((PathNotAllowed, BadRequest, NotFound)):
                    await kept.read(Area.WORK, path, length=100)
                with pytest.raises((PathNotAllowed, BadRequest, NotFound)):
                    await kept.remove(Area.WORK, path)
            for area in (Area.ARTIFACTS, Area.INPUTS):
                assert (await kept.read(area, "victim", length=100))[0] == b"unchanged"
            assert (await kept.read(Area.WORK, "next.py", length=100))[0] == b"new"

    contained(glass, scene)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param("mkfifo it", id="fifo"),
        pytest.param("mkdir it; cd it; for i in $(seq 900); do : > f$i; done", id="huge-folder"),
        pytest.param("mkdir it; cd it; for i in $(seq 200); do mkdir d; cd d; done", id="deep-folder"),
        pytest.param("mkdir it; chmod 0 it", id="closed-folder"),
        pytest.param("touch it; chmod 0 it", id="closed-file"),
        pytest.param("ln -s it it", id="loop"),
        pytest.param("python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"it\")'", id="socket"),
        pytest.param(
            "echo x > it; python3 -c 'import fcntl, os, signal; fcntl.fcntl(os.open(\"it\", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK); print(1, flush=True); signal.pause()' & sleep 0.5",
            id="lease",
        ),
        pytest.param("echo x > it; flock -x it sleep 60 & sleep 0.2", id="lock"),
        pytest.param("truncate -s 1T it || true; : >> it", id="huge-hole"),
    ],
)
def test_nothing_that_is_planted_holds_up_its_owner(glass: Glass, plant: str) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            await run(kept, Command(argv=("bash", "-c", plant)))
            for ask in (
                kept.listing(Area.WORK, depth=64),
                kept.listing(Area.WORK, "it"),
                kept.read(Area.WORK, "it", length=1 << 20),
                kept.move(Area.WORK, "it", "other"),
                kept.put(Area.WORK, [InputFile("other", b"new")]),
                kept.remove(Area.WORK, "other"),
                kept.everything(),
            ):
                async with asyncio.timeout(PATIENCE_S):
                    try:
                        await ask
                    except (BadRequest, NotFound):
                        pass  # said clearly, and at once
            await is_well(kept)

    contained(glass, scene)


def test_a_folder_that_is_filled_as_fast_as_it_is_emptied(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            filling = """
                import itertools, os
                os.makedirs("it/in/it")
                if os.fork():
                    os._exit(0)
                os.setsid()
                os.chdir("it/in/it")
                while True:
                    for n in range(200):
                        try:
                            open(f"f{n}", "w").close()
                        except OSError:
                            pass
                """
            await python(kept, filling)
            async with asyncio.timeout(PATIENCE_S):
                try:
                    await kept.remove(Area.WORK, "it")
                except BadRequest:
                    pass  # it was never empty
            await is_well(kept)

    contained(glass, scene)


def test_names_are_swapped_while_files_are_looked_at(glass: Glass) -> None:
    async def scene() -> None:
        async with kept_in(glass) as kept:
            await kept.put(Area.ARTIFACTS, [InputFile("secret/it", b"of another place")])
            await python(
                kept,
                """
                import os
                os.makedirs("real"); open("real/it", "w").write("mine")
                os.symlink("/workspace/artifacts/secret", "link")
                if os.fork():
                    os._exit(0)
                os.setsid()
                while True:
                    for target in ("real", "link"):
                        try:
                            os.rename(target, "here"); os.rename("here", target)
                        except OSError:
                            pass
                """,
            )
            for _ in range(300):
                try:
                    content, _ = await kept.read(Area.WORK, "here/it", length=100)
                except (BadRequest, NotFound):
                    continue
                assert content == b"mine"
            await is_well(kept)

    contained(glass, scene)


# Terminals


AT_A_TERMINAL = {
    "flood": "while True: os.write(1, b'x' * 65536)",
    "deaf": "signal.pause()",
    "stopped": "termios.tcflow(1, termios.TCOOFF); signal.pause()",
    "exclusive": "fcntl.ioctl(0, termios.TIOCEXCL); signal.pause()",
    "raw-and-stubborn": "tty.setraw(0)\nfor n in set(range(1, 32)) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
    "while True: signal.pause()",
    "hung-up": "fcntl.ioctl(0, termios.TIOCNOTTY); os.closerange(0, 3); signal.pause()",
    "inherited": "if os.fork(): os._exit(0)\nos.setsid(); signal.signal(1, signal.SIG_IGN)\n"
    "while True: os.write(1, b'still here')",
}


@pytest.mark.parametrize("program", AT_A_TERMINAL.values(), ids=AT_A_TERMINAL)
def test_nothing_at_a_terminal_holds_up_the_session(glass: Glass, program: str) -> None:
    code = f"import fcntl, os, signal, termios, tty\nos.write(1, b'ready')\n{program}"

    async def scene() -> None:
        async with kept_in(glass) as kept, asyncio.timeout(4 * PATIENCE_S):
            terminal = kept.terminal(Command(argv=("python3", "-c", code)), 24, 80)
            await terminal.begin()
            await anext(terminal.output())
            typing = asyncio.create_task(terminal.type(bytes(1 << 20)))  # for ever, if nobody reads
            await terminal.resize(30, 100)
            await is_well(kept)
            await terminal.send_signal(signal.SIGTERM)
            typing.cancel()
            await terminal.close()
            await is_well(kept)

    contained(glass, scene)


def test_a_program_that_takes_all_terminals_costs_no_other_session_its_own(glass: Glass) -> None:
    greedy = """
        import os
        held = []
        try:
            while True:
                held.append(os.openpty())
        except OSError:
            pass
        if os.fork():
            os._exit(0)
        os.setsid()
        import signal; signal.pause()
        """

    async def scene() -> None:
        async with kept_in(glass) as kept, kept_in(glass) as other:
            await python(kept, greedy)
            if glass.engine.name != "gvisor":  # whose terminals are memory of its own, bounded as such
                with pytest.raises(BadRequest, match="terminal"):
                    await kept.terminal(Command(argv=("true",)), 24, 80).begin()
            terminal = other.terminal(Command(argv=("echo", "mine")), 24, 80)
            await terminal.begin()
            assert b"".join([data async for data in terminal.output()]) == b"mine\r\n"
            await is_well(kept)

    contained(glass, scene)
