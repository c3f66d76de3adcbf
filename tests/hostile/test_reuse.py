"""What one run leaves, the next must not find: jars of one engine, one after the other and side by side."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import Attack, Control, small

from belljar.engines.jail.engine import JailEngine
from belljar.models import Language, Start, Verdict

if TYPE_CHECKING:
    from tests.hostile.glass import Glass

PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/workspace/work", "/workspace/artifacts", "/workspace/inputs")


def test_files_are_gone(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.BARE,
            accomplice=f"""
            import os
            for place in {(*PLACES, ".")!r}:
                if os.access(place, os.W_OK):
                    open(f"{{place}}/{{os.environ['MARK']}}", "w").close()
            """,
            code=f"""
            from tactics import *
            for place in {(*PLACES, ".")!r}:
                path = f"{{place}}/{{os.environ['MARK']}}"
                if os.path.exists(path):
                    say(place, "REACHED")
                    os.unlink(path)
            """,
        )
    )


def test_processes_are_gone(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.BARE,
            accomplice="""
            import os, signal, socket
            read, write = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    null = os.open("/dev/null", os.O_RDWR)
                    for fd in (0, 1, 2):
                        os.dup2(null, fd)
                    unix = socket.socket(socket.AF_UNIX)
                    unix.bind("\\0" + os.environ["MARK"])
                    unix.listen()
                    os.write(write, b"x")
                    signal.pause()
                os._exit(0)
            os.read(read, 1)
            """,
            code="""
            from tactics import *
            import socket
            attempt("answers", socket.socket(socket.AF_UNIX).connect, "\\0" + os.environ["MARK"])
            """,
        )
    )


def test_objects_without_a_file_are_gone(glass: Glass) -> None:
    """System V's memory, semaphores and queues live on after a process, in their namespace."""
    glass.contains(
        Attack(
            control=Control.BARE,
            accomplice="""
            from tactics import *
            key = int(os.environ["MARK"][-6:], 16)
            checked(libc.shmget(key, 4096, 0o1666))
            checked(libc.semget(key, 1, 0o1666))
            checked(libc.msgget(key, 0o1666))
            """,
            code="""
            from tactics import *
            key = int(os.environ["MARK"][-6:], 16)
            for name, got, remove in (
                ("memory", libc.shmget(key, 4096, 0), lambda found: libc.shmctl(found, 0, None)),
                ("semaphore", libc.semget(key, 1, 0), lambda found: libc.semctl(found, 0, 0)),
                ("queue", libc.msgget(key, 0), lambda found: libc.msgctl(found, 0, None)),
            ):
                if got >= 0:
                    say(name, "REACHED")
                    remove(got)
            """,
        )
    )


def test_start_up_files_are_not_honoured(glass: Glass) -> None:
    plant = """
        mkdir -p "$HOME/.config/pip" "$HOME/.local/lib/python3.11/site-packages"
        for name in .bashrc .profile .bash_profile .npmrc .gitconfig .config/pip/pip.conf; do
            echo 'echo start-up REACHED' > "$HOME/$name"
        done
        echo 'print("start-up REACHED")' > "$HOME/.local/lib/python3.11/site-packages/usercustomize.py"
        exit 0
        """
    glass.contains(
        Attack(
            control=Control.BARE,
            language=Language.BASH,
            accomplice=plant,
            code="""
            bash -lc 'echo clean'
            bash -ic 'echo clean' 2>/dev/null
            python3 -c 'print("clean")'
            """,
        )
    )


def test_compiled_modules_cannot_be_planted(glass: Glass) -> None:
    """A program's own folder is its own; the library's caches are read-only and no others are looked at."""
    leave = """
import colorsys, json, os, sys
print(sys.pycache_prefix, sys.dont_write_bytecode)
for module in (json, colorsys):
    for cache in (module.__cached__, "/tmp" + module.__cached__):
        try:
            os.makedirs(os.path.dirname(cache), exist_ok=True)
            with open(cache, "wb") as file:
                file.write(b"hostile")
        except OSError as error:
            print(error.strerror)
"""
    look = "import colorsys, json; print(json.loads('[1]'))"
    with glass.watching(Control.PROBE):
        left = glass.wait(glass.run(leave)).stdout
        assert b"None True" in left
        refused = b"Permission denied" if glass.engine.name == "gvisor" else b"Read-only file system"
        assert left.count(refused) == 2
        for start in Start:
            assert glass.wait(glass.run(look, start=start)).stdout == b"[1]\n"


def test_changes_to_the_interpreter_are_gone(glass: Glass) -> None:
    """Each program runs in a copy of one warm interpreter, which it changes for itself only."""
    leave = """
import builtins, gc, json, os, random, socket, sys, threading
builtins.print = None
json.loads = lambda *_: "hostile"
sys.path[:] = []
sys.modules["os"] = None
sys.setrecursionlimit(50)
sys.setswitchinterval(100)
os.environ["LEFT"] = "here"
random.seed(1)
socket.setdefaulttimeout(0.001)
gc.disable()
"""
    look = """
import gc, json, os, socket, sys
print(json.loads("[1]"), os.environ.get("LEFT"), sys.getrecursionlimit())
print(socket.getdefaulttimeout(), gc.isenabled())
"""
    with glass.watching(Control.PROBE):
        glass.wait(glass.run(leave))
        assert glass.wait(glass.run(look)).stdout == b"[1] None 1000\nNone True\n"


def test_random_numbers_are_not_shared(glass: Glass) -> None:
    """Forks of one interpreter must not draw the same numbers."""
    draw = "import random, secrets, uuid; print(random.random(), secrets.token_hex(8), uuid.uuid4())"
    with glass.watching(Control.PROBE):
        drawn = [glass.wait(glass.run(draw)).stdout for _ in range(4)]
    for numbers in zip(*(line.split() for line in drawn), strict=True):
        assert len(set(numbers)) == 4


STATE = """
import json, os, resource, signal
def told(name):
    try:
        return open("/proc/self/" + name).read()
    except FileNotFoundError:
        return None  # gVisor has fewer
os.umask(mask := os.umask(0))
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "umask": mask,
    "cwd": os.getcwd(),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "oom": told("oom_score_adj"),
    "cpus": sorted(os.sched_getaffinity(0)),
    "policy": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
    "signals": [status.get(name, "").strip() for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "timers": [signal.getitimer(number) for number in (0, 1, 2)],
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "personality": told("personality"),
    "slack": told("timerslack_ns"),
    "filters": status.get("Seccomp_filters"),
}))
"""


@pytest.mark.parametrize("start", Start)
def test_process_state_is_fresh(glass: Glass, start: Start) -> None:
    spoil = """
import os, resource, signal
os.umask(0o777)
os.chdir("/tmp")
for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
    resource.setrlimit(number, (16, 16))
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
os.nice(19)
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
signal.setitimer(signal.ITIMER_REAL, 100)
"""
    with glass.watching(Control.PROBE):
        before = json.loads(glass.wait(glass.run(STATE, start=start)).stdout)
        assert glass.wait(glass.run(spoil)).exit_code == 0
        after = json.loads(glass.wait(glass.run(STATE, start=start)).stdout)
    if not glass.has_cgroup:  # then the CPUs are drawn by lot
        before["cpus"], after["cpus"] = len(before["cpus"]), len(after["cpus"])
    assert after == before
    assert after["umask"] == 0o022
    assert after["cwd"] == "/workspace/work"
    assert after["blocked"] == []


def test_counters_start_anew(glass: Glass) -> None:
    greedy = Attack(
        control=Control.PROBE,
        code="""
            import os, signal
            for _ in range(20):
                os.fork() or signal.pause()
            held = bytearray(150 << 20)
            for place in range(0, len(held), 4096):
                held[place] = 1
            """,
        verdict=Verdict.OOM if glass.has_cgroup else Verdict.EXITED,
        exit_code=None,
    )
    glass.contains(greedy)
    modest = glass.wait(glass.run("print(1)")).usage
    assert (modest.oom_kills, modest.pids_refused, modest.disk_full) == (0, 0, False)
    if glass.engine.name != "gvisor":  # which is counted too
        assert modest.memory_peak_mb < 20
        assert modest.pids_peak <= (
            2 if glass.engine.name == "jail" else 16
        )  # a runtime starts in the cgroup
    assert modest.cpu_s < 1


def test_locks_are_gone(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.BARE,
            accomplice="""
            import fcntl, os, signal
            file = os.open("/usr/bin/env", os.O_RDONLY)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fork() == 0:
                os.setsid()
                null = os.open("/dev/null", os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                signal.pause()
            """,
            code="""
            from tactics import *
            import fcntl
            try:
                fcntl.flock(os.open("/usr/bin/env", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("still_locked", "REACHED")
            """,
        )
    )


def test_many_at_once_do_not_meet(glass: Glass) -> None:
    """Each leaves its name everywhere, waits, and finds nobody else's."""
    visit = """
import os, sys, time
me = sys.argv[1]
for place in ("/tmp", "/dev/shm", "/workspace/work", "/workspace/artifacts"):
    open(f"{place}/visitor-{me}", "w").write(me)
time.sleep(0.2)
found = {name for place in ("/tmp", "/dev/shm", "/workspace/work", "/workspace/artifacts")
         for name in os.listdir(place) if name.startswith("visitor")}
print(found == {f"visitor-{me}"})
"""

    async def visits() -> list[bytes]:
        together = [asyncio.create_task(glass.run(visit, args=(str(number),))) for number in range(8)]
        return [(await run).stdout for run in together]

    with glass.watching(Control.PROBE):
        assert glass.wait(visits()) == [b"True\n"] * 8


def test_crash_of_one_jar_leaves_its_neighbours_alone(glass: Glass) -> None:
    """Several end at once, each in another bad way."""
    endings = {
        "import os; os.kill(os.getpid(), 11)": Verdict.SIGNALED,
        "import os; os.kill(1, 15); os._exit(3)": Verdict.EXITED,
        "held = bytearray(150 << 20)\nfor n in range(0, len(held), 4096): held[n] = 1": Verdict.OOM,
        "while True: pass": Verdict.TIMEOUT,
        "import os\nwhile True: os.write(1, bytes(1 << 20))": Verdict.TIMEOUT,
        "print('fine')": Verdict.EXITED,
    }
    if not glass.has_cgroup:
        endings["held = bytearray(150 << 20)\nfor n in range(0, len(held), 4096): held[n] = 1"] = (
            Verdict.EXITED
        )
    if glass.engine.name == "gvisor":  # where the guest can be killed
        endings["import os; os.kill(1, 15); os._exit(3)"] = Verdict.LOST

    async def together() -> list[Verdict]:
        limits = small(timeout_s=10)  # six of them start slowly
        tasks = [asyncio.create_task(glass.run(code, limits=limits)) for code in endings]
        return [(await task).verdict for task in tasks]

    with glass.watching(Control.PROBE):
        assert glass.wait(together()) == list(endings.values())


def test_another_engine_of_this_process_leaves_jars_alone(glass: Glass) -> None:
    """Its start, its look at the host and its end; the neighbour runs all the while."""

    async def come_and_go() -> None:
        other = JailEngine()
        await glass.run("print(1)", engine=other)
        await other.probe()
        await glass.engine.probe()
        await other.close()
        await asyncio.sleep(0.1)

    glass.wait(come_and_go())
    assert glass.neighbour.is_well
    assert glass.wait(glass.run("print(1)")).stdout == b"1\n"
