"""Kernel surface, from inside a jar: the calls that have hurt others are not there to be made.

The control is a jar with an empty filter: where the kernel itself says no too, the row is a probe.
"""

from __future__ import annotations

import platform
import signal
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import Attack, Control, answers

from belljar.models import Verdict

if TYPE_CHECKING:
    from tests.hostile.glass import Glass

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of calls are those of x86-64"),
    pytest.mark.shared_kernel("it answers calls itself, without our profile, and does what it can of them"),
]

# Every call is one that does something, or nothing harmful, where it is let through.
CALLS = [
    pytest.param("call(321, 0, bytes(128), 128)", id="probe_bpf"),
    pytest.param(
        "call(298, bytes([0]*4 + [128,0,0,0]) + bytes(120), 0, -1, -1, 0)", id="probe_perf_event_open"
    ),
    pytest.param("call(323, 0)", id="probe_userfaultfd"),
    pytest.param("call(323, 1)", id="userfaultfd_user_mode"),
    pytest.param("call(248, b'user', b'canary', b'x', 1, -2)", id="add_key"),
    pytest.param("call(249, b'user', b'none', None, 0)", id="probe_request_key"),
    pytest.param("call(250, 0, -3, 1)", id="keyctl"),
    pytest.param("call(246, 0, 0, None, 0)", id="probe_kexec_load"),
    pytest.param("call(320, -1, -1, 0, b'', 0)", id="probe_kexec_file_load"),
    pytest.param("call(175, b'', 0, b'')", id="probe_init_module"),
    pytest.param("call(313, -1, b'', 0)", id="probe_finit_module"),
    pytest.param("call(272, 0x10000000)", id="unshare_user"),
    pytest.param("call(272, 0)", id="unshare_nothing"),
    pytest.param("spawn(0x10000000)", id="clone_user"),
    pytest.param("spawn(0x20000000)", id="probe_clone_pid"),
    pytest.param("call(308, os.open('/proc/self/ns/user', 0), 0)", id="probe_setns_own"),
    pytest.param("call(308, os.pidfd_open(os.getpid()), 0x20000)", id="probe_setns_pidfd"),
    pytest.param("call(425, 1, bytes(120))", id="io_uring_setup"),
    pytest.param("trace()", id="ptrace"),
    pytest.param("call(310, os.getpid(), None, 0, None, 0, 0)", id="process_vm_readv"),
    pytest.param("call(278, os.pipe()[1], None, 0, 0)", id="vmsplice"),
    pytest.param("call(447, 0)", id="memfd_secret"),
    pytest.param("call(154, 0, bytes(16), 16)", id="modify_ldt"),
    pytest.param("call(135, 0x0040000)", id="personality"),
    pytest.param("call(206, 1, (ctypes.c_ulong * 1)(0))", id="io_setup"),
    pytest.param("call(300, 0, 0)", id="probe_fanotify_init"),
    pytest.param(
        "call(303, -100, b'/usr', bytes([128,0,0,0]) + bytes(132), (ctypes.c_int * 1)(), 0)",
        id="name_to_handle",
    ),
    pytest.param("call(312, os.getpid(), os.getpid(), 0, 0, 0)", id="kcmp"),
    pytest.param("call(438, os.pidfd_open(os.getpid()), 0, 0)", id="pidfd_getfd"),
    pytest.param("call(237, 0, 0, 0, None, 0, 0)", id="mbind"),
    pytest.param("call(238, 0, None, 0)", id="set_mempolicy"),
    pytest.param("call(103, 10, None, 0)", id="probe_syslog"),
    pytest.param("call(172, 3)", id="probe_iopl"),
    pytest.param("call(163, None)", id="probe_acct"),
    pytest.param("call(167, b'/none', 0)", id="probe_swapon"),
    pytest.param("call(170, b'other', 5)", id="probe_sethostname"),
    pytest.param("call(443, 0, -1, 0, None)", id="probe_quotactl_fd"),
    pytest.param("call(202, (ctypes.c_int * 1)(0), 6, 0, 0, 0, 0)", id="futex_lock_pi"),
    pytest.param("call(202, (ctypes.c_int * 1)(0), 6 | 128, 0, 0, 0, 0)", id="futex_lock_pi_private"),
    pytest.param(
        "call(202, (ctypes.c_int * 1)(0), 12, 1, 1, (ctypes.c_int * 1)(0), 0)", id="futex_requeue_pi"
    ),
]


@pytest.mark.parametrize("deed", CALLS)
def test_dangerous_call_is_refused(glass: Glass, deed: str, request: pytest.FixtureRequest) -> None:
    probe = "probe_" in request.node.callspec.id
    result = glass.contains(
        Attack(
            control=Control.PROBE if probe else Control.UNFILTERED,
            code=f"""
            from tactics import *
            def spawn(flags):
                pid = call(56, flags | 17, 0, 0, 0, 0)
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
            def trace():
                child = os.fork()
                if child == 0:
                    import signal
                    signal.pause()
                try:
                    call(101, 16, child, 0, 0)
                finally:
                    os.kill(child, 9)
            attempt("call", lambda: {deed})
            """,
        )
    )
    assert answers(result.stdout) == {"call": "EPERM"}


def test_new_ways_to_make_a_namespace_look_unknown(glass: Glass) -> None:
    """The flags of clone3 cannot be seen by a filter; ENOSYS lets libraries fall back to clone."""
    result = glass.contains(
        Attack(
            control=Control.UNFILTERED,
            code="""
            from tactics import *
            def spawn():
                pid = call(435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
            attempt("clone3", spawn)
            """,
        )
    )
    assert answers(result.stdout) == {"clone3": "ENOSYS"}


FAMILIES = {
    "AX25": 3,
    "IPX": 4,
    "X25": 9,
    "KEY": 15,
    "PACKET": 17,
    "RDS": 21,
    "PPPOX": 24,
    "CAN": 29,
    "TIPC": 30,
    "BLUETOOTH": 31,
    "RXRPC": 33,
    "ALG": 38,
    "NFC": 39,
    "VSOCK": 40,
    "KCM": 41,
    "SMC": 43,
    "XDP": 44,
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_socket_family_is_refused(glass: Glass, family: int) -> None:
    by_capability = family in (FAMILIES["KEY"], FAMILIES["PACKET"], FAMILIES["XDP"])
    result = glass.contains(
        Attack(
            control=Control.PROBE if by_capability else Control.UNFILTERED,
            code=f"""
            from tactics import *
            for kind in (1, 2, 3, 5):
                attempt(f"socket_{{kind}}", call, 41, {family}, kind, 0)
                attempt(f"pair_{{kind}}", call, 53, {family}, kind, 0, (ctypes.c_int * 2)())
            attempt("upper_half", call, 41, {family} | 1 << 40, 5, 0)
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"EPERM"}


def test_netlink_other_than_routes_is_refused(glass: Glass) -> None:
    """Among them what devices the host plugs in, its audit log, its firewall and its processes."""
    result = glass.contains(
        Attack(
            control=Control.UNFILTERED,
            code="""
            from tactics import *
            for protocol in range(1, 24):
                attempt(f"protocol_{protocol}", call, 41, 16, 3, protocol)
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"EPERM"}


@pytest.mark.parametrize(
    "code",
    [
        # mov eax, 20 (i386 getpid); int 0x80; ret
        pytest.param(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3", id="i386"),
        # mov eax, 0x40000027 (x32 getpid); syscall; ret
        pytest.param(b"\xb8\x27\x00\x00\x40\x0f\x05\xc3", id="x32"),
    ],
)
def test_call_by_another_table_kills(glass: Glass, code: bytes) -> None:
    """The filter's rules are for one table of numbers; another would go around them."""
    result = glass.contains(
        Attack(
            control=Control.UNFILTERED,
            code=f"""
            import ctypes, mmap, os
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            page.write({code!r})
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            ctypes.CFUNCTYPE(ctypes.c_int)(address)()
            os.write(1, b"came back: REACHED")
            """,
            verdict=Verdict.SIGNALED,
        )
    )
    assert result.signal == signal.SIGSYS


def test_switches_of_the_kernel_cannot_be_thrown(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            known = ("/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/core_pattern",
                     "/sys/kernel/uevent_helper", "/sys/power/state")
            for path in known:
                try:
                    os.write(os.open(path, os.O_WRONLY), b"")
                    # The mask is /dev/null: it takes anything and does nothing.
                    say(path, "null" if os.stat(path).st_rdev == os.stat("/dev/null").st_rdev else "REACHED")
                except OSError as error:
                    say(path, errno.errorcode[error.errno])
            opened = 0
            for folder, _, names in os.walk("/proc/sys"):
                for name in names:
                    try:
                        os.close(os.open(f"{folder}/{name}", os.O_WRONLY))
                    except OSError:
                        continue
                    if os.stat(f"{folder}/{name}").st_rdev != os.stat("/dev/null").st_rdev:
                        say(f"{folder}/{name}", "REACHED")
            """,
        )
    )
    said = answers(result.stdout)
    assert set(said.values()) <= {"EROFS", "ENOENT", "EACCES", "null"}
    assert said["/proc/sys/vm/drop_caches"] in ("EROFS", "EACCES")


def test_secrets_of_the_kernel_are_masked(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            paths = ("kcore", "kallsyms", "keys", "key-users", "timer_list", "sched_debug", "kmsg",
                     "interrupts", "sys/kernel/random/boot_id", "kpagecount", "kpageflags", "vmallocinfo",
                     "slabinfo", "latency_stats")
            for path in paths:
                try:
                    say(path, len(read("/proc/" + path)))
                except OSError as error:
                    say(path, errno.errorcode[error.errno])
            for path in ("/sys/kernel", "/sys/firmware", "/sys/class/dmi/id", "/proc/acpi/wakeup"):
                attempt(path, os.stat, path)
            for path in ("/proc/iomem", "/proc/ioports"):
                lines = [line for line in open(path) if not line.strip().startswith("00000000-00000000")]
                say(path, len([line for line in lines if not line.strip().startswith("0000-0000")]))
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"0", "ENOENT", "EACCES", "EPERM", "ENOTDIR"}


def test_a_sweep_of_calls_ends_cleanly(glass: Glass) -> None:
    """Every number, in a child each, with rubbish for arguments; but not what would end or stop the child."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            import collections, signal
            ending = {15, 23, 34, 35, 58, 60, 61, 127, 128, 130, 200, 202, 219, 231, 232, 234, 247, 270, 271}
            ending |= {281, 322, 441}
            outcome = collections.Counter()
            for number in set(range(0, 600)) - ending:
                child = os.fork()
                if child == 0:
                    signal.alarm(1)
                    try:
                        call(number, *[0x7FFF0000_00000001] * 6)
                        os._exit(0)
                    except OSError as error:
                        os._exit(min(error.errno, 255))
                status = os.waitpid(child, 0)[1]
                if os.WIFSIGNALED(status):
                    outcome[f"signal-{os.WTERMSIG(status)}"] += 1
                else:
                    outcome[errno.errorcode.get(os.WEXITSTATUS(status), str(os.WEXITSTATUS(status)))] += 1
            for name, count in outcome.items():
                say(name, count)
            """,
        )
    )
    said = answers(result.stdout)
    assert int(said["ENOSYS"]) > 100
    assert int(said["EPERM"]) > 60
