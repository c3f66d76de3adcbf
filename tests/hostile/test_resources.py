"""Memory, CPU, time and disk: what a jar may use is all that it can use."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import ROOMY, SMALL, Attack, Control, answers, small

from belljar.execution import runs
from belljar.models import Ended, Grant, Language, RunRequest, RunResult, Verdict

if TYPE_CHECKING:
    from tests.hostile.glass import Glass

DEADLINES = int(os.environ.get("HOSTILE_DEADLINES", "200"))
"""How many runs end at about their deadline; a release takes far more."""

LARGE = replace(ROOMY, memory_mb=1024, nofile=4096)

# Each takes 150 MB where 64 are granted, in another way, and says so if it can.
MEMORY = {
    "heap": """
        held = bytearray(150 << 20)
        for place in range(0, len(held), 4096):
            held[place] = 1
        """,
    "mapped": """
        import mmap
        held = mmap.mmap(-1, 150 << 20)
        for place in range(0, len(held), 4096):
            held[place] = 1
        """,
    "tmpfs": """
        with open("/workspace/work/file", "wb", 0) as file:
            for _ in range(150):
                file.write(bytes(1 << 20))
        """,
    "memfd": """
        import os
        held = os.memfd_create("held")
        for _ in range(150):
            os.write(held, bytes(1 << 20))
        """,
    "sysv": """
        from tactics import *
        libc.shmat.restype = ctypes.c_void_p
        for key in range(15):
            segment = checked(libc.shmget(key + 1, 10 << 20, 0o1600))
            address = libc.shmat(segment, None, 0)
            ctypes.memset(address, 1, 10 << 20)
            libc.shmdt(ctypes.c_void_p(address))
        """,
    "unix-sockets": """
        import socket
        held, sent = [], 0
        while sent < 100 << 20:  # what they carry; what that takes is more
            held += [socket.socketpair()]
            for one in held[-1]:
                one.setblocking(False)
                try:
                    while True:
                        sent += one.send(bytes(16384))
                except BlockingIOError:
                    pass
        """,
    "page-tables": """
        import mmap
        length = 40000 << 21
        held = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        held.madvise(15)  # no huge pages
        for place in range(0, length, 1 << 21):
            held[place]
        """,
    "many-processes": """
        import os, select, signal
        full, told = os.pipe()
        for _ in range(15):
            if os.fork() == 0:
                held = bytearray(10 << 20)
                for place in range(0, len(held), 4096):
                    held[place] = 1
                os.write(told, b"x")
                signal.pause()
        count = 0
        while count < 15:
            if os.waitpid(-1, os.WNOHANG) != (0, 0):
                os.kill(os.getpid(), 9)
            if select.select([full], [], [], 0.01)[0]:
                count += len(os.read(full, 15))
        """,
}
# Where no cgroup holds memory.
REFUSED_BY_RLIMIT = ("heap", "page-tables")
UNSEEN_BY_WATCHDOG = ("memfd", "sysv", "unix-sockets")


@pytest.mark.parametrize("way", MEMORY)
def test_memory_past_the_limit_ends_the_run(glass: Glass, way: str, request: pytest.FixtureRequest) -> None:
    if not glass.has_cgroup and way in UNSEEN_BY_WATCHDOG:
        _known_to_be_unseen(request)
    refused = not glass.has_cgroup and way in REFUSED_BY_RLIMIT
    result = glass.contains(
        Attack(
            # An rlimit counts what is mapped, not what is used: no grant is wide enough for this one.
            control=Control.PROBE if refused and way == "page-tables" else Control.ROOMY,
            roomy=replace(LARGE, workspace_mb=256),
            limits=small(workspace_mb=256, nofile=4096),
            code=MEMORY[way] + '\n        print("all REACHED")\n',
            verdict=Verdict.EXITED if refused else Verdict.OOM,
            exit_code=1,
            ends_gvisor=True,
        )
    )
    assert result.usage.oom_kills or not glass.has_cgroup or result.verdict is Verdict.LOST
    assert result.usage.memory_peak_mb <= SMALL.memory_mb * (1 if glass.has_cgroup else 2)


def _known_to_be_unseen(request: pytest.FixtureRequest) -> None:
    reason = "without a cgroup, the kernel's own memory and files that nobody maps are not counted"
    request.applymarker(pytest.mark.xfail(reason=reason))


def test_pipes_count_as_memory(glass: Glass, request: pytest.FixtureRequest) -> None:
    """The kernel gives one user 64 MB of them, so the limit is set below that."""
    if not glass.has_cgroup:
        _known_to_be_unseen(request)
    glass.contains(
        Attack(
            control=Control.ROOMY,
            limits=small(memory_mb=32, nofile=4096),
            roomy=LARGE,
            code="""
            import fcntl, os
            sent = 0
            while sent < 48 << 20:
                reading, writing = os.pipe()
                try:
                    fcntl.fcntl(writing, 1031, 1 << 20)
                except OSError:
                    pass
                os.set_blocking(writing, False)
                try:
                    while True:
                        sent += os.write(writing, bytes(65536))
                except BlockingIOError:
                    pass
            print("all REACHED")
            """,
            verdict=Verdict.OOM,
        )
    )


NETWORK_BUFFERS = {
    "tcp": """
        import socket, time
        server = socket.create_server(("127.0.0.1", 0), backlog=1000)
        held, sent = [], 0
        while sent < 150 << 20 and len(held) < 1500:
            held += [socket.create_connection(server.getsockname()), server.accept()[0]]
            for one in held[-2:]:
                one.setblocking(False)
                try:
                    while True:
                        sent += one.send(bytes(1 << 20))
                except BlockingIOError:
                    pass
        """,
    "udp": """
        import socket
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        held, sent = [], 0
        for _ in range(1500):
            held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            held[-1].bind(("127.0.0.1", 0))
            held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
            for _ in range(6):
                source.sendto(bytes(60000), held[-1].getsockname())
        for one in held:
            one.setblocking(False)
            try:
                while True:
                    sent += len(one.recv(1 << 16))
            except BlockingIOError:
                pass
        """,
}


@pytest.mark.parametrize("protocol", NETWORK_BUFFERS)
def test_network_buffers_count_as_memory(glass: Glass, protocol: str, request: pytest.FixtureRequest) -> None:
    """What a program sends to itself and does not take is the host's memory, and no process's."""
    if not glass.has_cgroup:
        _known_to_be_unseen(request)
    glass.contains(
        Attack(
            control=Control.ROOMY,
            limits=small(nofile=4096, timeout_s=20),
            roomy=replace(LARGE, memory_mb=2048),
            code=NETWORK_BUFFERS[protocol]
            + '\n        print("all", "REACHED" if sent >= 150 << 20 else sent)\n',
            goal="all REACHED",
            verdict=Verdict.OOM
            if glass.engine.name == "gvisor"
            else Verdict.EXITED,  # it has no smaller limit
            exit_code=None,
        )
    )


@pytest.mark.shared_kernel("where memory runs out it ends, and the program with its child")
def test_child_that_ran_out_of_memory_does_not_change_the_programs_own_verdict(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOMY,
            code="""
            import os
            child = os.fork()
            if child == 0:
                held = bytearray(150 << 20)
                for place in range(0, len(held), 4096):
                    held[place] = 1
                print("all REACHED", flush=True)
                os._exit(0)
            print("child", os.waitpid(child, 0)[1])
            """,
        )
    )
    if glass.has_cgroup:
        assert (result.usage.oom_kills, result.stdout) == (1, b"child 9\n")


@pytest.mark.shared_kernel("it takes more than that itself")
def test_guest_that_runs_out_of_memory_is_an_oom_too(glass: Glass) -> None:
    """Files fill the memory to its brim, and killing programs frees none: then it is the guest's turn."""
    glass.contains(
        Attack(
            control=Control.PROBE,
            limits=small(memory_mb=24, workspace_mb=256),
            code="""
            import os
            with open("/workspace/work/brim", "wb", 0) as file:
                file.write(bytes(1 << 20))
            while True:
                if os.fork() == 0:
                    with open("/workspace/work/brim", "ab", 0) as file:
                        while True:
                            file.write(b"x" * 4096)
                os.wait()
            """,
            verdict=Verdict.OOM,
        )
    )


@pytest.mark.parametrize(
    "make",
    [
        pytest.param("os.eventfd(0)", id="eventfd"),
        pytest.param("select.epoll()", id="epoll"),
        pytest.param("checked(libc.timerfd_create(1, 0))", id="timerfd"),
        pytest.param("checked(libc.inotify_init1(0))", id="inotify"),
        pytest.param("os.pidfd_open(os.getpid())", id="pidfd"),
        pytest.param("checked(libc.memfd_create(b'x', 0))", id="memfd"),
        pytest.param("checked(libc.signalfd(-1, bytes(128), 0))", id="signalfd"),
    ],
)
def test_objects_of_the_kernel_are_few(glass: Glass, make: str) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code=f"""
            from tactics import *
            import select
            held = []
            try:
                while len(held) < 10_000:
                    held.append({make})
                say("all", "REACHED")
            except OSError as error:
                say("end", errno.errorcode[error.errno])
            """,
        )
    )
    lacking = glass.engine.name == "gvisor" and "pidfd" in make
    assert answers(result.stdout) == {"end": "ENOSYS" if lacking else "EMFILE"}


def test_what_the_kernel_counts_per_user_is_not_used_up_for_others(
    glass: Glass, request: pytest.FixtureRequest
) -> None:
    """A user of the host has 128 inotify instances, and the kernel counts a jar's for its maker too."""
    if glass.engine.name == "docker":
        why = "without user namespaces all containers are one user to the kernel"
        request.applymarker(pytest.mark.xfail(raises=AssertionError, reason=why))
    glass.contains(
        Attack(
            control=Control.BARE,
            limits=small(nofile=1024),
            accomplice="""
            from tactics import *
            import time
            while libc.inotify_init1(0) >= 0:
                pass
            time.sleep(30 if "OUTSIDE" in os.environ else 2)  # there it is killed when the other is over
            """,
            at_once=True,
            code="""
            from tactics import *
            import time
            end = time.monotonic() + (30 if "OUTSIDE" in os.environ else 1)
            while time.monotonic() < end:
                got = libc.inotify_init1(0)
                if got < 0:
                    say("used_up", "REACHED")
                    break
                os.close(got)
                time.sleep(0.01)
            """,
        )
    )


def test_names_that_do_not_exist_fill_nothing(glass: Glass) -> None:
    """The kernel remembers each as a dentry; they are the jar's own memory and go when it needs them."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            limits=small(memory_mb=64 if glass.engine.name == "gvisor" else 32),
            code="""
            import os
            for number in range(100_000):
                try:
                    os.stat(f"/usr/lib/no-such-name-{number}-{'x' * 100}")
                except OSError:
                    pass
            print("done")
            """,
        )
    )
    assert result.stdout == b"done\n"


def test_cpu_time_is_what_was_granted(glass: Glass) -> None:
    """Four busy processes, for one second, with half a CPU; or with one, where only whole ones can be granted."""
    share = 0.5 if glass.has_cgroup else 1.0
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            limits=small(cpu_cores=share),
            code="""
            import os, time
            end = time.monotonic() + 1
            for _ in range(3):
                if os.fork() == 0:
                    break
            while time.monotonic() < end:
                pass
            """,
        )
    )
    assert result.usage.cpu_s < share * result.usage.wall_s * 1.4


@pytest.mark.shared_kernel("they are its own memory, and bounded as such")
def test_timers_are_few(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            from tactics import *
            import signal
            librt = ctypes.CDLL(None, use_errno=True)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            every_ms = (ctypes.c_long * 4)(0, 10**6, 0, 10**6)
            made = 0
            try:
                while made < 3000:
                    timer = ctypes.c_void_p()
                    checked(librt.timer_create(1, None, ctypes.byref(timer)))
                    checked(librt.timer_settime(timer, 0, every_ms, None))
                    made += 1
                say("all", "REACHED")
            except OSError as error:
                say(str(made), errno.errorcode[error.errno])
            """,
        )
    )
    made, answer = result.stdout.split()
    assert answer == b"EAGAIN"
    assert int(made) <= 1024


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param(Language.PYTHON, "import time; time.sleep(1e6)", id="sleep"),
        pytest.param(Language.PYTHON, "import signal; signal.pause()", id="pause"),
        pytest.param(Language.PYTHON, "import os; os.read(os.pipe()[0], 1)", id="read"),
        pytest.param(Language.BASH, "sleep infinity", id="bash"),
        pytest.param(
            Language.PYTHON,
            "import threading; threading.Lock().acquire(); threading.Event().wait()",
            id="lock",
        ),
    ],
)
def test_waiting_for_ever_ends_at_the_deadline(glass: Glass, language: Language, code: str) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            language=language,
            code=code,
            limits=small(timeout_s=0.3),
            verdict=Verdict.TIMEOUT,
        )
    )
    assert result.usage.wall_s >= 0.3


def test_busy_for_ever_ends_at_the_deadline(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.PROBE,
            code="while True: pass",
            limits=small(timeout_s=0.3),
            verdict=Verdict.TIMEOUT,
        )
    )


def test_clocks_cannot_be_set(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            now = (ctypes.c_long * 2)(0, 0)
            attempt("clock_settime", call, 227, 0, now)
            attempt("settimeofday", call, 164, now, None)
            attempt("adjtimex", call, 159, ctypes.create_string_buffer(b"\\x01", 208))
            attempt("clock_adjtime", call, 305, 0, ctypes.create_string_buffer(b"\\x01", 208))
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"EPERM"}


@pytest.mark.timeout(60 + DEADLINES)
def test_finishing_at_the_deadline_gives_one_verdict(glass: Glass) -> None:
    """Programs that end within milliseconds of it: each is either exited or timed out, said once."""
    timeout_s = 0.1
    grant = Grant(limits=small(timeout_s=timeout_s, grace_s=0.05), accept_weaker_limits=True)
    verdicts: Counter[Verdict] = Counter()
    sleep_ms = 1000 * timeout_s - 10

    async def one() -> None:
        nonlocal sleep_ms
        code = f"import time; time.sleep({max(0, sleep_ms) / 1000}); print('end')"
        seen = [event async for event in runs.stream(glass.engine, grant, RunRequest(code=code))]
        ended = [event for event in seen if isinstance(event, Ended)]
        assert len(ended) == 1
        assert isinstance(seen[-1], RunResult)
        assert seen[-1].verdict is ended[0].verdict
        if ended[0].verdict is Verdict.EXITED:
            assert (ended[0].exit_code, seen[-1].stdout) == (0, b"end\n")
        else:
            assert ended[0].verdict is Verdict.TIMEOUT
        verdicts[ended[0].verdict] += 1
        # However long a start takes on this machine just now, the next ends nearer to the deadline.
        sleep_ms += 2 if ended[0].verdict is Verdict.EXITED else -2

    async def all_of_them() -> None:
        for _ in range(0, DEADLINES, 4):
            async with asyncio.TaskGroup() as together:
                for _ in range(4):
                    together.create_task(one())

    with glass.watching(Control.PROBE):
        glass.wait(all_of_them())
    assert sum(verdicts.values()) == DEADLINES
    assert len(verdicts) == 2, "the programs do not end at the deadline"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/workspace/work", "/workspace/artifacts"])
def test_disk_stops_at_its_cap(glass: Glass, place: str) -> None:
    _fill(glass, place)


@pytest.mark.jail_only("elsewhere it is the image's own, and read-only")
def test_the_other_place_for_passing_files_stops_at_its_cap(glass: Glass) -> None:
    _fill(glass, "/var/tmp")


def _fill(glass: Glass, place: str) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOMY,
            code=f"""
            from tactics import *
            written = 0
            fd = os.open("{place}/zeros", os.O_CREAT | os.O_WRONLY)
            try:
                while written < 24 << 20:
                    written += os.write(fd, bytes(65536))
                say("all", "REACHED")
            except OSError as error:
                say(str(written), errno.errorcode[error.errno])
            """,
        )
    )
    written, answer = result.stdout.split()
    cap_mb = SMALL.workspace_mb if place.startswith("/workspace") else SMALL.tmp_mb
    assert answer == b"ENOSPC"
    assert (cap_mb - 1) << 20 < int(written) <= cap_mb << 20
    assert result.usage.disk_full


def test_program_that_fails_for_want_of_disk_is_said_to(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.ROOMY,
            language=Language.BASH,
            code="dd if=/dev/zero of=zeros bs=1M count=24 status=none && echo all REACHED",
            verdict=Verdict.DISK_FULL,
        )
    )


@pytest.mark.shared_kernel("these two are its own memory there, and bounded as such")
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_inodes_stop_at_their_cap(glass: Glass, place: str) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code=f"""
            from tactics import *
            made = 0
            try:
                while made < 50_000:
                    os.symlink("x", f"{place}/{{made}}")
                    made += 1
                say("all", "REACHED")
            except OSError as error:
                say(str(made), errno.errorcode[error.errno])
            """,
        )
    )
    assert result.stdout.split()[1] == b"ENOSPC"
    assert result.usage.disk_full


def test_nothing_else_can_be_filled(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            own = ("/proc", "/workspace/work", "/workspace/artifacts", "/tmp", "/dev/shm")
            for path, folders, _ in os.walk("/"):
                if path.startswith(own) or path.count("/") > 3:
                    folders.clear()
                elif os.access(path, os.W_OK):
                    say(path, "REACHED")
            """,
        )
    )
    assert result.stdout == b""
