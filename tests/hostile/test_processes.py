"""Processes: they stay in the jar, they stay few, and they all die with it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import SMALL, Attack, Control, answers, small

from belljar.models import Language, Verdict

if TYPE_CHECKING:
    from tests.hostile.glass import Glass

RACES = int(os.environ.get("HOSTILE_RACES", "8"))
"""How often a race is run; a release takes far more."""


FORK_BOMBS = [
    pytest.param(
        Language.PYTHON,
        Verdict.EXITED,
        Control.ROOMY,
        """
        from tactics import *
        import signal
        children = 0
        while children < 200:
            try:
                if os.fork() == 0:
                    signal.pause()
                children += 1
            except OSError as error:
                say("fork", errno.errorcode[error.errno])
                os._exit(0)
        say("all", "REACHED")
        """,
        id="python",
    ),
    pytest.param(
        Language.BASH,
        Verdict.TIMEOUT,
        Control.ROOMY,
        """
        for number in $(seq 200); do sleep 60 & done 2>/dev/null  # bash tries again, and ever more slowly
        echo all REACHED
        """,
        id="bash",
    ),
    pytest.param(
        Language.JAVASCRIPT,
        Verdict.EXITED,
        Control.PROBE,
        """
        const { spawn } = require("child_process");
        let failed = 0;
        for (let i = 0; i < 100; i++)
            spawn("sleep", ["60"], { stdio: "ignore" }).on("error", () => failed++);
        setTimeout(() => { console.log("refused", failed > 50); process.exit(0); }, 300);
        """,
        id="javascript",
    ),
]


@pytest.mark.parametrize(("language", "verdict", "control", "code"), FORK_BOMBS)
def test_fork_bomb_meets_the_limit(
    glass: Glass, language: Language, verdict: Verdict, control: Control, code: str
) -> None:
    if language not in glass.engine.interpreters():
        pytest.skip(f"this host has no interpreter for {language}")
    # node alone takes more memory than the usual
    limits = small(memory_mb=256, timeout_s=4 if verdict is Verdict.TIMEOUT else 30)
    result = glass.contains(
        Attack(
            control=control,
            language=language,
            code=code,
            limits=limits,
            verdict=verdict,
            exit_code=None,
            ends_gvisor=True,
        )
    )
    if glass.engine.name == "gvisor":
        return  # its threads count too, and without another it ends
    assert result.exit_code in (0, None)
    assert result.usage.pids_peak <= SMALL.pids
    if glass.has_cgroup:
        assert result.usage.pids_refused


def test_fork_bomb_leaves_host_responsive(glass: Glass) -> None:
    """The classic one, until its deadline; a benign run beside it is over long before."""
    bomb = Attack(
        control=Control.PROBE,
        language=Language.BASH,
        code="bomb() { bomb | bomb & }; bomb; while :; do bomb; done",
        limits=small(timeout_s=1.0),
        verdict=Verdict.TIMEOUT,
        ends_gvisor=True,
    )

    async def beside() -> None:
        running = asyncio.create_task(glass.attack(replace(bomb, limits=small(timeout_s=50))))
        await asyncio.sleep(0.3)
        assert (await glass.run("print(sum(range(10**5)))")).exit_code == 0
        if glass.engine.name == "gvisor":
            await running  # it may be over by itself
            return
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    glass.wait(beside())
    glass.contains(bomb)


@pytest.mark.every_engine
def test_daemon_that_holds_stdout_does_not_hold_the_run(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(1 if "OUTSIDE" in os.environ else 20)
                    os.write(1, b"late REACHED")
                os._exit(0)
            print("done")
            """,
        )
    )
    assert result.stdout == b"done\n"


def test_stdout_held_by_a_message_in_flight_does_not_hold_the_run(glass: Glass) -> None:
    """Two sockets that carry each other, and the pipe: it is held until the kernel collects its garbage."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            one, two = socket.socketpair()
            socket.send_fds(one, [b"x"], [one.fileno(), two.fileno(), 1, 2])
            print("done")
            """,
        )
    )
    assert result.stdout == b"done\n"


def test_program_that_outlives_its_parent_writes_nothing_late(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            language=Language.BASH,
            linger_s=30,
            code="""
            nohup setsid sh -c 'sleep ${OUTSIDE:-20}; echo REACHED > late.txt' >/dev/null 2>&1 </dev/null &
            echo done > early.txt
            """,
        )
    )
    assert [artifact.path for artifact in result.artifacts] == ["early.txt"]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param(Language.BASH, "sleep 60 & kill -STOP $!; kill -STOP $$", id="stops-itself"),
        pytest.param(
            Language.PYTHON,
            """
            import signal, time
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(60)
            """,
            id="ignores-every-signal",
        ),
        pytest.param(
            Language.PYTHON,
            """
            import os, signal
            os.setsid() if os.getpid() != os.getsid(0) else None
            for _ in range(20):
                if os.fork() == 0:
                    os.setsid()
                    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
                    while True:
                        signal.sigwait(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
            while True:
                signal.pause()
            """,
            id="blocks-every-signal-in-many-sessions",
        ),
        pytest.param(
            Language.PYTHON,
            """
            import os
            # A parent in vfork waits for its child where no signal but SIGKILL reaches it.
            os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
            while True:
                try:
                    os.waitpid(-1, 0)
                except BaseException:
                    pass
            """,
            id="waits-for-ever",
        ),
    ],
)
def test_program_that_will_not_end_is_ended_at_its_deadline(
    glass: Glass, language: Language, code: str
) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            language=language,
            code=code,
            limits=small(timeout_s=0.4, grace_s=0.1),
            verdict=Verdict.TIMEOUT,
            ends_gvisor=True,  # whose processes take more memory
        )
    )
    assert result.verdict is not Verdict.TIMEOUT or result.usage.wall_s >= 0.4


def test_fork_race_against_the_kill_leaves_nothing(glass: Glass) -> None:
    """Processes of which each forks and ends, over and over: a killer that goes pid by pid is too late."""
    attack = Attack(
        control=Control.ROOT,
        code="""
            import os, time
            outside = "OUTSIDE" in os.environ
            def fork():
                while True:
                    try:
                        return os.fork()
                    except OSError:
                        pass
            for _ in range(16 if outside else 14):
                if fork() == 0:
                    os.setsid()
                    while True:
                        if fork():
                            os._exit(0)
            time.sleep(0.1)
            if outside:  # the careless supervisor: one look at the list, one kill each
                for entry in os.listdir("/proc"):
                    if entry.isdigit() and int(entry) not in (1, os.getpid(), int(os.environ["HOST_PID"])):
                        try:
                            os.kill(int(entry), 9)
                        except OSError:
                            pass
                time.sleep(0.1)
                left = [entry for entry in os.listdir("/proc") if entry.isdigit()]
                print("left", "REACHED" if len(left) > 4 else left)
            """,
        limits=small(timeout_s=30),
        ends_gvisor=True,
    )
    for _ in range(RACES):
        ended = glass.wait(glass.attack(attack))
        assert ended.exit_code == 0 or glass.engine.name == "gvisor", ended
    glass.contains(attack)  # had any been left before, it would be found now


def test_killing_everything_kills_only_the_jar(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOT,
            code="""
            import os, signal, time
            victim = os.fork()
            if victim == 0:
                signal.pause()
            pids = [-1, *range(1, 70000), int(os.environ["HOST_PID"]), int(os.environ["SERVICE_PID"])]
            for pid in pids:
                if pid != os.getpid():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
            print("victim", os.waitpid(victim, 0)[1])
            """,
            ends_gvisor=True,
        )
    )
    assert result.verdict is not Verdict.EXITED or result.stdout == b"victim 9\n"


@pytest.mark.shared_kernel("there its own uid may kill pid 1: the run is lost, and that is all")
def test_no_signal_from_inside_ends_the_guest(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            import signal, time
            guest = os.pidfd_open(1)
            for number in sorted(signal.valid_signals()):
                say("sending", int(number))
                os.kill(1, number)
                signal.pidfd_send_signal(guest, number)
                call(234, 1, 1, int(number))  # tgkill
                time.sleep(0.002)
            say("still", "here")
            """,
        )
    )
    assert answers(result.stdout)["still"] == "here"


def test_guest_under_a_flood_of_signals_still_works(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os, signal
            for _ in range(50_000):
                os.kill(1, signal.SIGCHLD)
            print("done", flush=True)
            if os.fork() == 0:
                while True:
                    os.kill(1, signal.SIGCHLD)
            os._exit(3)
            """,
            exit_code=3,
        )
    )
    assert result.stdout == b"done\n"


@pytest.mark.shared_kernel(
    "there its own uid may lower the limits of pid 1: the run is lost, and that is all"
)
def test_guest_cannot_be_traced_limited_or_read(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            attempt("attach", call, 101, 16, 1, 0, 0)
            attempt("seize", call, 101, 0x4206, 1, 0, 0)
            limit = (ctypes.c_uint64 * 2)(0, 0)
            for number in range(16):
                attempt(f"limit_{number}", call, 302, 1, number, limit, None)
            attempt("read", call, 310, 1, None, 0, None, 0, 0)
            attempt("write", call, 311, 1, None, 0, None, 0, 0)
            attempt("descriptor", call, 438, os.pidfd_open(1), 0, 0)
            attempt("advise", call, 440, os.pidfd_open(1), None, 0, 4, 0)
            attempt("compare", call, 312, 1, os.getpid(), 0, 0, 0)
            attempt("migrate", call, 256, 1, 0, None, None)
            head, size = ctypes.c_void_p(), ctypes.c_size_t()
            attempt("robust", call, 274, 1, ctypes.byref(head), ctypes.byref(size))
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"EPERM"}


@pytest.mark.jail_only("it is seen, though it cannot be read")
def test_entry_of_the_guest_in_proc_is_closed(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            for name in ("mem", "maps", "environ", "cmdline", "stat", "root", "cwd", "fd", "exe", "ns/pid"):
                attempt(name, os.stat, f"/proc/1/{name}")
                attempt(name + "_open", os.open, f"/proc/1/{name}", os.O_RDONLY)
            for name in ("oom_score_adj", "coredump_filter", "timerslack_ns", "autogroup", "clear_refs"):
                attempt(name, os.open, f"/proc/1/{name}", os.O_WRONLY)
                attempt("own_" + name, os.open, f"/proc/self/{name}", os.O_WRONLY)
            """,
        )
    )
    said = answers(result.stdout)
    own = {name: said.pop(name) for name in list(said) if name.startswith("own_")}
    assert set(said.values()) == {"ENOENT"}
    assert set(own.values()) <= {"EROFS", "ENOENT", "EACCES"}


def test_guest_starved_of_cpu_does_not_delay_the_deadline(glass: Glass) -> None:
    """It has the program's uid, so the program may lower its priority, and then use up the rest."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os
            for deed in (
                lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
                lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
                lambda: os.sched_setaffinity(1, [min(os.sched_getaffinity(0))]),
            ):
                try:
                    deed()
                except OSError:
                    pass
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
            for _ in range(25):
                if os.fork() == 0:
                    while True:
                        pass
            while True:
                pass
            """,
            limits=small(timeout_s=0.6, grace_s=0.2),
            verdict=Verdict.TIMEOUT,
            ends_gvisor=True,
        )
    )
    assert result.usage.wall_s < 30


def test_program_that_steals_its_own_output_does_not_stop_the_guest(glass: Glass) -> None:
    """It takes back what it wrote, through /proc, after the guest was told of it and before it reads.

    What it writes to stderr shows it whether the guest still works; once it does not, the program waits.
    """
    glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import fcntl, os, random, termios, time
            mine = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
            def unread():
                return int.from_bytes(fcntl.ioctl(2, termios.FIONREAD, bytes(4)), "little")
            def consumed():
                for _ in range(20_000):
                    if not unread():
                        return True
                    time.sleep(0.0005)
                return False
            end = time.monotonic() + 1
            while time.monotonic() < end:
                os.write(1, b"x")
                steal_at = time.perf_counter() + random.random() * 3e-4
                while time.perf_counter() < steal_at:
                    pass
                try:
                    os.read(mine, 100)
                except BlockingIOError:
                    pass
                os.write(2, b"e")
                if not consumed():
                    time.sleep(60)
            """,
            limits=small(timeout_s=30, grace_s=0.1, cpu_cores=2),
        )
    )


def test_limits_cannot_be_raised(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            for number in range(16):
                soft_and_hard = (ctypes.c_uint64 * 2)()
                call(302, 0, number, None, soft_and_hard)
                if soft_and_hard[1] != 2**64 - 1:
                    more = (ctypes.c_uint64 * 2)(soft_and_hard[1] + 1, soft_and_hard[1] + 1)
                    attempt(str(number), call, 302, 0, number, more, None)
            """,
        )
    )
    said = answers(result.stdout)
    assert set(said.values()) == {"EPERM"}
    # CORE, NOFILE, MEMLOCK, SIGPENDING, MSGQUEUE, NICE and RTPRIO are bounded; NPROC where a jar has a user.
    assert {"4", "7", "8", "11", "12", "13", "14"} <= said.keys()
    assert "6" in said or glass.engine.name != "jail"


def test_crash_leaves_no_core(glass: Glass) -> None:
    """Nor can the limit be moved from 1, at which no handler of the host is started either; core(5).

    gVisor dumps none, whatever the limit.
    """
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            from tactics import *
            import resource, signal
            hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
            for value in (hard, 0, 1 << 20, resource.RLIM_INFINITY):
                try:
                    resource.setrlimit(resource.RLIMIT_CORE, (value, hard))
                except (ValueError, OSError):
                    pass
            say("limit", resource.getrlimit(resource.RLIMIT_CORE))
            if "OUTSIDE" in os.environ:
                resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
            for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT):
                child = os.fork()
                if child == 0:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
                status = os.waitpid(child, 0)[1]
                say(number.name, "REACHED" if os.WCOREDUMP(status) else f"signal {os.WTERMSIG(status)}")
            """,
        )
    )
    assert answers(result.stdout) == {
        "limit": "(0, 1)" if glass.engine.name == "gvisor" else "(1, 1)",
        "SIGSEGV": "signal 11",
        "SIGABRT": "signal 6",
        "SIGQUIT": "signal 3",
    }
    assert not result.artifacts


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGSYS])
def test_program_that_dies_of_a_signal_is_said_to(glass: Glass, number: signal.Signals) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            language=Language.BASH,
            code=f"kill -{int(number)} $$",
            verdict=Verdict.SIGNALED,
        )
    )
    assert result.signal == number


@pytest.mark.shared_kernel("it keeps the number, and the host's scheduler never hears of it")
def test_priority_cannot_be_raised(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            attempt("fifo", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(99))
            attempt("round_robin", os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1))
            deadline = (ctypes.c_uint32 * 14)(56, 6, 0, 0, 0, 0, 10**6, 0, 10**7, 0, 10**7, 0)
            attempt("deadline", call, 314, 0, deadline, 0)
            attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
            attempt("io", call, 251, 1, 0, 1 << 13)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EPERM", "EACCES"}


def test_descriptors_meet_their_limit(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOMY,
            roomy=small(nofile=4096),
            code="""
            from tactics import *
            count = 0
            try:
                while count < 2000:
                    os.open("/dev/null", os.O_RDONLY)
                    count += 1
                say("all", "REACHED")
            except OSError as error:
                say(str(count), errno.errorcode[error.errno])
            """,
        )
    )
    count, answer = result.stdout.split()
    assert (int(count), answer) == (253, b"EMFILE")


@pytest.mark.shared_kernel("they are its own memory, and bounded as such")
def test_descriptors_in_flight_meet_their_limit(glass: Glass) -> None:
    """Descriptors in messages are nobody's, so that a limit per process does not see them."""
    result = glass.contains(
        Attack(
            control=Control.ROOMY,
            roomy=small(nofile=4096),
            code="""
            from tactics import *
            import socket
            null = os.open("/dev/null", os.O_RDONLY)
            sent = 0
            pairs = []
            try:
                while sent < 2000:
                    if sent % 100 == 0:  # a socket's buffer takes no more than some 250
                        pairs.append(socket.socketpair())
                    socket.send_fds(pairs[-1][0], [b"x"], [null])
                    sent += 1
                say("all", "REACHED")
            except OSError as error:
                say(str(sent), errno.errorcode[error.errno])
            """,
        )
    )
    sent, answer = result.stdout.split()
    assert answer == b"ETOOMANYREFS"
    assert int(sent) < 300


def test_huge_arguments_are_refused_inside(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            attempt("argument", os.execv, "/bin/true", ["true", "x" * (2 << 20)])
            attempt("arguments", os.execv, "/bin/true", ["true", *["x" * 100] * 50_000])
            many = {f"NAME_{number}": "x" * 50 for number in range(100_000)}
            attempt("environment", os.execve, "/bin/true", ["true"], many)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"E2BIG", "ENAMETOOLONG"}  # the latter is gVisor's word


def test_there_is_no_terminal_to_type_into(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            import fcntl, termios
            for fd in (0, 1, 2):
                say(f"terminal_{fd}", os.isatty(fd))
                attempt(f"type_{fd}", fcntl.ioctl, fd, termios.TIOCSTI, b"x")
                attempt(f"paste_{fd}", fcntl.ioctl, fd, 0x541C, b"\\x03")
            for path in ("/dev/tty", "/dev/console", "/dev/tty0"):
                attempt(path, os.open, path, os.O_RDWR)
            attempt("control", fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
            """,
        )
    )
    said = answers(result.stdout)
    assert {said.pop(f"terminal_{fd}") for fd in (0, 1, 2)} == {"False"}
    refused = {said.pop(f"{way}_{fd}") for way in ("type", "paste") for fd in (0, 1, 2)}
    assert refused == ({"ENOTTY"} if glass.engine.name == "gvisor" else {"EPERM"})
    assert said.pop("control") == "ENOTTY"
    assert set(said.values()) <= {"ENOENT", "ENXIO", "EIO"}


def test_a_terminal_of_its_own_is_all_it_gets(glass: Glass) -> None:
    """Where jars have pseudo-terminals, they are few, nobody else's, and nothing can be typed into them."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            import fcntl, termios
            say("others", [name for name in os.listdir("/dev/pts") if name != "ptmx"])
            pairs = []
            try:
                while len(pairs) < 100:
                    pairs.append(os.openpty())
            except OSError:
                pass
            say("few", len(pairs) <= 32)
            for _, slave in pairs[:1]:
                os.setsid() if os.getpid() != os.getsid(0) else None
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
                attempt("type", fcntl.ioctl, slave, termios.TIOCSTI, b"x")
            """,
        )
    )
    said = answers(result.stdout)
    assert said["others"] == "[]"
    assert said["few"] == "True" or glass.engine.name == "gvisor"  # where they are its own memory
    assert said.get("type", "EPERM") in ("EPERM", "ENOTTY")
