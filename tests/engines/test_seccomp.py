"""The profile says what we mean, the compiler says what the profile means, and the kernel agrees.

`run_filter` interprets a filter the way the kernel does, so both architectures can be checked anywhere. The
tables in `golden/` are every call's answer to arguments of all zeros and all ones; after a deliberate change
of the profile, write them anew with `python tests/engines/test_seccomp.py` and read the difference.
"""

from __future__ import annotations

import copy
import ctypes
import ctypes.util
import errno
import itertools
import json
import os
import platform
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.engines.seccomp import compile_profile, load_profile
from belljar.engines.syscall_numbers import syscall_numbers
from belljar.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ARCHES = ("x86_64", "aarch64")
NATIVE = platform.machine() if platform.machine() in ARCHES else "x86_64"
NUMBERS = syscall_numbers(NATIVE)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
ANSWERS = {ALLOW: "allow", KILL: "kill", EPERM: "EPERM", ENOSYS: "ENOSYS"}
ONES = (1 << 64) - 1
GARBAGE = (0, 1 << 32, 0xDEADBEEF << 32, 0xFFFFFFFF << 32)
GOLDEN = Path(__file__).parent / "golden"

# Answers that no kernel gives, to tell the filter's EPERM and ENOSYS from those of a call that went through.
MARKS = {errno.EPERM: 1001, errno.ENOSYS: 1038}


def run_filter(program: bytes, nr: int, arch: str, args: Sequence[int] = ()) -> int:
    return trace_filter(program, nr, arch, args)[0]


def trace_filter(program: bytes, nr: int, arch: str, args: Sequence[int] = ()) -> tuple[int, int, set[int]]:
    """The answer, how many instructions it took, and which offsets of `struct seccomp_data` were read."""
    padded = [*args, *[0] * (6 - len(args))]
    data = struct.pack("<IIQ6Q", nr & 0xFFFFFFFF, AUDIT_ARCH[arch], 0, *(arg & ONES for arg in padded))
    accumulator = at = steps = 0
    read = set()
    while True:
        code, jt, jf, k = struct.unpack_from("<HBBI", program, 8 * at)
        at, steps = at + 1, steps + 1
        match code:
            case 0x20:
                read.add(k)
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x05:
                at += k
            case 0x15:
                at += jt if accumulator == k else jf
            case 0x35:
                at += jt if accumulator >= k else jf
            case 0x06:
                return k, steps, read
            case _:
                raise AssertionError(f"instruction {code:#x} at {at - 1}")


@pytest.fixture(scope="session", name="profile")
def shipped_profile() -> dict[str, Any]:
    return load_profile()


@pytest.fixture(scope="session", name="programs")
def compiled_programs(profile: dict[str, Any]) -> dict[str, bytes]:
    return {arch: compile_profile(profile, arch) for arch in ARCHES}


def marked(profile: dict[str, Any]) -> bytes:
    changed = copy.deepcopy(profile)
    changed["defaultErrnoRet"] = MARKS[changed["defaultErrnoRet"]]
    for rule in changed["syscalls"]:
        if "errnoRet" in rule:
            rule["errnoRet"] = MARKS[rule["errnoRet"]]
    return compile_profile(changed, NATIVE)


def unavailable(reason: str) -> NoReturn:
    """A skip that continuous integration does not accept."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"must not be skipped here: {reason}")
    pytest.skip(reason)


# --- what the profile says ---------------------------------------------------------------------------------


def golden_table(program: bytes, arch: str) -> str:
    names = {number: name for name, number in syscall_numbers(arch).items()}
    lines = [f"# {arch}: number, name, answer to zeros, answer to ones. See test_seccomp.py."]
    for nr in range(601):
        zeros, ones = (ANSWERS[run_filter(program, nr, arch, [fill] * 6)] for fill in (0, ONES))
        lines.append(f"{nr} {names.get(nr, '-')} {zeros} {ones}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("arch", ARCHES)
def test_every_call_answers_as_in_the_golden_table(programs: dict[str, bytes], arch: str) -> None:
    assert golden_table(programs[arch], arch) == (GOLDEN / f"seccomp-{arch}.txt").read_text(encoding="ascii")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param("io_uring_setup io_uring_enter io_uring_register", id="io_uring"),
        pytest.param("ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd", id="other-processes"),
        pytest.param("memfd_secret modify_ldt userfaultfd bpf perf_event_open", id="kernel-surface"),
        pytest.param("name_to_handle_at open_by_handle_at mknod mknodat", id="handles-and-devices"),
        pytest.param("add_key request_key keyctl", id="keys"),
        pytest.param("unshare setns chroot pivot_root mount umount2", id="namespaces-and-old-mounts"),
        pytest.param("fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr", id="new-mounts"),
        pytest.param("process_madvise vmsplice remap_file_pages", id="memory-tricks"),
        pytest.param("mbind set_mempolicy migrate_pages move_pages", id="memory-nodes"),
        pytest.param("io_setup io_destroy io_submit io_cancel io_getevents", id="aio"),
        pytest.param("fanotify_init fanotify_mark quotactl acct swapon swapoff", id="administration"),
        pytest.param("reboot kexec_load kexec_file_load init_module finit_module delete_module", id="kernel"),
        pytest.param("settimeofday clock_settime adjtimex clock_adjtime", id="clocks"),
        pytest.param("syslog sethostname setdomainname iopl ioperm personality", id="host"),
        pytest.param("uselib ustat sysfs _sysctl lookup_dcookie nfsservctl", id="legacy"),
    ],
)
def test_known_bad_calls_answer_eperm_for_any_arguments(
    programs: dict[str, bytes], arch: str, names: str
) -> None:
    present = [name for name in names.split() if name in syscall_numbers(arch)]
    answers = {
        (name, fill): run_filter(programs[arch], syscall_numbers(arch)[name], arch, [fill] * 6)
        for name in present
        for fill in (0, 1, ONES)
    }
    assert set(answers.values()) <= {EPERM}, answers


@pytest.mark.parametrize("arch", ARCHES)
def test_calls_of_the_future_do_not_exist(programs: dict[str, bytes], arch: str) -> None:
    answers = {run_filter(programs[arch], nr, arch) for nr in (470, 512, 547, 1000, 0x3FFFFFFF, 0xFFFFFFFF)}
    assert answers == {ENOSYS}


def expected_clone(args: Sequence[int]) -> int:
    return EPERM if args[0] & 0x7E020000 else ALLOW


def expected_futex(args: Sequence[int]) -> int:
    command = args[1] & 0xFFFFFFFF & ~0x180
    return (
        EPERM if command in (6, 7, 8, 11, 12, 13) else ALLOW if command in (0, 1, 3, 4, 5, 9, 10) else ENOSYS
    )


def expected_ioctl(args: Sequence[int]) -> int:
    return EPERM if args[1] & 0xFFFF in (0x5412, 0x541C) else ALLOW


def expected_prlimit64(args: Sequence[int]) -> int:
    pid, limit, new = args[0], args[1] & 0xFFFFFFFF, args[2]
    if pid != 0:
        return EPERM
    if limit == 4 and new != 0:  # RLIMIT_CORE may be read
        return EPERM
    return ALLOW if limit < 16 else ENOSYS


def expected_setrlimit(args: Sequence[int]) -> int:
    limit = args[0] & 0xFFFFFFFF
    if limit == 4:
        return EPERM
    return ALLOW if limit < 16 else ENOSYS


def expected_mknod(mode: int) -> int:
    return ALLOW if mode & 0xF000 == 0x1000 else EPERM


def expected_setsockopt(args: Sequence[int]) -> int:
    level, option = args[1] & 0xFFFFFFFF, args[2] & 0xFFFFFFFF
    if level == 6:
        return EPERM if option == 31 else ALLOW if option < 64 else ENOSYS
    return ALLOW if level in (0, 1, 17, 41, 58, 255, 270) else ENOSYS


def expected_socketpair(args: Sequence[int]) -> int:
    family, protocol = args[0] & 0xFFFFFFFF, args[2] & 0xFFFFFFFF
    if family in (2, 10):
        return ALLOW if protocol in (0, 1, 6, 17, 58) else ENOSYS
    return ALLOW if family == 1 else EPERM if family < 64 else ENOSYS


def expected_socket(args: Sequence[int]) -> int:
    family, protocol = args[0] & 0xFFFFFFFF, args[2] & 0xFFFFFFFF
    if family == 16:
        return ALLOW if protocol == 0 else EPERM if protocol < 32 else ENOSYS
    return expected_socketpair(args)


EXPECTED: dict[str, Callable[[Sequence[int]], int]] = {
    "clone": expected_clone,
    "futex": expected_futex,
    "ioctl": expected_ioctl,
    "mknodat": lambda args: expected_mknod(args[2]),
    "prlimit64": expected_prlimit64,
    "setrlimit": expected_setrlimit,
    "setsockopt": expected_setsockopt,
    "socket": expected_socket,
    "socketpair": expected_socketpair,
}


def arguments(call: str) -> Iterator[tuple[int, ...]]:
    """Enough arguments to try every edge of a call's rules, with and without garbage above an int."""
    one_bit = [1 << bit for bit in range(64)]
    match call:
        case "clone":
            yield from ((flags | 17,) for flags in (0, 0x3D0F00, *one_bit))
        case "futex":
            yield from ((0, op | garbage) for op in (*range(1024), *one_bit) for garbage in GARBAGE)
        case "ioctl":
            near = [request ^ bit for request in (0x5412, 0x541C) for bit in one_bit]
            for request in (*range(0x53F0, 0x5520), 0x5412 | 4 << 28, *near):
                yield from ((-1, request ^ garbage) for garbage in GARBAGE)
        case "mknodat":
            yield from ((0, 0, kind << 12 | 0o644 | garbage) for kind in range(16) for garbage in GARBAGE)
        case "prlimit64":
            yield from ((pid, 7, 0) for pid in (0, 1, ONES, *one_bit))
            limits = [limit | garbage for limit in range(20) for garbage in GARBAGE]
            yield from ((0, limit, new) for limit in limits for new in (0, 1, 1 << 40))
        case "setrlimit":
            yield from ((limit | garbage, 1) for limit in (*range(20), *one_bit) for garbage in GARBAGE)
        case "setsockopt":
            levels = (*range(20), 41, 58, 132, 136, 255, 263, 269, 270, 279, 282, 284, *one_bit)
            for level, option in itertools.product(levels, (*range(34), 63, 64, 1 << 31)):
                garbage = GARBAGE[(level + option) % len(GARBAGE)]
                yield from ((-1, level, option), (-1, level | garbage, option | garbage))
        case _:
            protocols = (*range(40), 58, 115, 132, 136, 255, 262, 1 << 31)
            for family, protocol in itertools.product((*range(70), *one_bit), protocols):
                garbage = GARBAGE[(family + protocol) % len(GARBAGE)]
                yield from ((family, 1, protocol), (family | garbage, 1, protocol | garbage))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("call", EXPECTED)
def test_arguments_are_judged_as_the_kernel_will_read_them(
    programs: dict[str, bytes], call: str, arch: str
) -> None:
    wrong = {
        args: ANSWERS[run_filter(programs[arch], syscall_numbers(arch)[call], arch, args)]
        for args in arguments(call)
        if run_filter(programs[arch], syscall_numbers(arch)[call], arch, args) != EXPECTED[call](args)
    }
    assert not wrong


@pytest.mark.parametrize("arch", ARCHES)
def test_only_the_calls_with_argument_rules_look_at_arguments(programs: dict[str, bytes], arch: str) -> None:
    looked = {
        name
        for name, nr in syscall_numbers(arch).items()
        if max(trace_filter(programs[arch], nr, arch, [0] * 6)[2]) > 4
    }
    # For the others the kernel (5.11 and later) remembers the answer and does not run the filter at all.
    assert looked - {"mknod"} == set(EXPECTED)  # x86-64 alone has mknod, with the rules of mknodat


@pytest.mark.parametrize("arch", ARCHES)
def test_a_call_without_argument_rules_is_decided_in_a_dozen_instructions(
    programs: dict[str, bytes], arch: str
) -> None:
    steps = {
        name: trace_filter(programs[arch], nr, arch)[1]
        for name, nr in syscall_numbers(arch).items()
        if name not in EXPECTED and name != "mknod"
    }
    assert max(steps.values()) <= 13, max(steps, key=lambda name: steps[name])


@pytest.mark.parametrize(
    ("arch", "foreign"), [pytest.param("x86_64", "i386", id="i386"), pytest.param("aarch64", "arm", id="arm")]
)
def test_a_call_by_another_architecture_kills(programs: dict[str, bytes], arch: str, foreign: str) -> None:
    answers = {run_filter(programs[arch], nr, foreign, [fill] * 6) for nr in range(601) for fill in (0, ONES)}
    assert answers == {KILL}


def test_an_x32_number_kills(programs: dict[str, bytes]) -> None:
    numbers = [0x40000000 | nr for nr in range(601)] + [0x7FFFFFFF, 0x80000000, 0xFFFFFFFE]
    assert {run_filter(programs["x86_64"], nr, "x86_64") for nr in numbers} == {KILL}


# --- what the compiler makes of a profile ------------------------------------------------------------------


def profile_of(*rules: dict[str, Any], default: int = errno.ENOSYS) -> dict[str, Any]:
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": default,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": list(rules),
    }


def rule(*names: str, deny: int | None = None, args: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    action = {"action": "SCMP_ACT_ALLOW"} if deny is None else {"action": "SCMP_ACT_ERRNO", "errnoRet": deny}
    return {"names": list(names), **action, "args": list(args)}


def arg(index: int, op: str, value: int, second: int = 0) -> dict[str, Any]:
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": second}


def holds(test: dict[str, Any], args: Sequence[int]) -> bool:
    match test["op"]:
        case "SCMP_CMP_EQ":
            return bool(args[test["index"]] == test["value"])
        case "SCMP_CMP_NE":
            return bool(args[test["index"]] != test["value"])
        case _:
            return bool(args[test["index"]] & test["value"] == test["valueTwo"])


words = st.sampled_from([0, 1, 2, 3, 31, 1 << 31, 1 << 32, 1 << 32 | 1, ONES ^ 1, ONES]) | st.integers(
    0, ONES
)
masks = st.sampled_from([0, 1, 0xFF, 0xFFFFFFFF, 0xFFFFFFFF << 32, 1 << 63, ONES]) | st.integers(0, ONES)
indexes = st.integers(0, 5)
equal_tests = st.builds(arg, indexes, st.just("EQ"), words) | st.builds(
    lambda index, mask, value: arg(index, "MASKED_EQ", mask, value & mask), indexes, masks, words
)
unequal_tests = st.builds(arg, indexes, st.just("NE"), words)


@st.composite
def rules_of_ioctl(draw: st.DrawFn) -> dict[str, Any]:
    deny = draw(st.sampled_from([None, None, errno.EPERM, errno.EIO]))
    tests = equal_tests if deny is None else equal_tests | unequal_tests
    return rule(
        "ioctl", deny=deny, args=draw(st.lists(tests, max_size=3, unique_by=lambda test: int(test["index"])))
    )


@settings(max_examples=100, deadline=None)
@given(
    rules=st.lists(rules_of_ioctl(), max_size=5),
    calls=st.lists(st.lists(words, min_size=6, max_size=6), min_size=1, max_size=10),
    arch=st.sampled_from(ARCHES),
)
def test_a_filter_answers_as_the_rule_that_holds(
    rules: list[dict[str, Any]], calls: list[list[int]], arch: str
) -> None:
    try:
        program = compile_profile(profile_of(*rules), arch)
    except BadConfig:
        assert len({str(each.get("errnoRet")) for each in rules}) > 1
        return
    for args in calls:
        answers = {
            ALLOW if each["action"] == "SCMP_ACT_ALLOW" else ERRNO | each["errnoRet"]
            for each in rules
            if all(holds(test, args) for test in each["args"])
        }
        assert answers <= {run_filter(program, syscall_numbers(arch)["ioctl"], arch, args)}
        if not answers:
            assert run_filter(program, syscall_numbers(arch)["ioctl"], arch, args) == ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
def test_targets_out_of_a_jumps_reach_are_still_reached(arch: str) -> None:
    numbers = syscall_numbers(arch)
    odd = [rule("ioctl", "futex", args=[arg(1, "EQ", value)]) for value in range(1, 600, 2)]
    denied = [
        rule(name, deny=1 + numbers[name] % 7) for name in sorted(numbers) if name not in ("ioctl", "futex")
    ]
    program = compile_profile(profile_of(*odd, *denied), arch)
    for value in range(600):
        answer = ALLOW if value % 2 else ENOSYS
        assert run_filter(program, numbers["ioctl"], arch, [0, value]) == answer
        assert run_filter(program, numbers["futex"], arch, [0, value | 1 << 32]) == ENOSYS
    for name, nr in numbers.items():
        if name not in ("ioctl", "futex"):
            assert run_filter(program, nr, arch) == ERRNO | (1 + nr % 7)


def test_a_call_that_an_architecture_lacks_is_left_out() -> None:
    profile = profile_of(rule("open", "openat"))
    aarch64, x86_64 = compile_profile(profile, "aarch64"), compile_profile(profile, "x86_64")
    assert [nr for nr in range(601) if run_filter(aarch64, nr, "aarch64") == ALLOW] == [56]
    assert [nr for nr in range(601) if run_filter(x86_64, nr, "x86_64") == ALLOW] == [2, 257]


def test_a_profile_without_rules_denies_everything() -> None:
    program = compile_profile(profile_of(default=errno.EIO), NATIVE)
    assert {run_filter(program, nr, NATIVE) for nr in range(601)} == {ERRNO | errno.EIO}


def test_a_missing_errno_is_eperm() -> None:
    profile = profile_of({"names": ["read"], "action": "SCMP_ACT_ERRNO"})
    del profile["defaultErrnoRet"]
    program = compile_profile(profile, NATIVE)
    assert {run_filter(program, NUMBERS[name], NATIVE) for name in ("read", "write")} == {EPERM}


@pytest.mark.parametrize(
    ("second", "args"),
    [
        pytest.param(rule("ioctl", deny=1), [arg(1, "EQ", 5)], id="unconditional"),
        pytest.param(rule("ioctl", deny=1, args=[arg(1, "EQ", 5)]), [arg(1, "EQ", 5)], id="same"),
        pytest.param(rule("ioctl", deny=1, args=[arg(2, "EQ", 5)]), [arg(1, "EQ", 5)], id="other-argument"),
        pytest.param(rule("ioctl", deny=1, args=[arg(1, "NE", 4)]), [arg(1, "EQ", 5)], id="not-equal"),
        pytest.param(
            rule("ioctl", deny=1, args=[arg(1, "NE", 5)]), [arg(1, "MASKED_EQ", 0xFFFFFFFF, 5)], id="masked"
        ),
        pytest.param(rule("ioctl", deny=1, args=[arg(1, "MASKED_EQ", 4, 4)]), [arg(1, "EQ", 5)], id="a-bit"),
        pytest.param(rule("ioctl", deny=1, args=[arg(1, "MASKED_EQ", 0, 0)]), [arg(1, "EQ", 5)], id="always"),
    ],
)
def test_rules_that_disagree_on_some_arguments_are_refused(
    second: dict[str, Any], args: list[dict[str, Any]]
) -> None:
    with pytest.raises(BadConfig, match="'ioctl'"):
        compile_profile(profile_of(rule("ioctl", args=args), second), NATIVE)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        pytest.param("defaultAction", {"defaultAction": "SCMP_ACT_ALLOW"}, id="allow-by-default"),
        pytest.param("defaultErrnoRet", {"defaultErrnoRet": 0}, id="default-errno-of-success"),
        pytest.param("defaultErrnoRet", {"defaultErrnoRet": True}, id="default-errno-true"),
        pytest.param("archMap", {"architectures": ["SCMP_ARCH_RISCV64"]}, id="other-architecture"),
        pytest.param("archMap", {"archMap": []}, id="archMap-and-architectures"),
        pytest.param("architectures", {"architectures": [[]]}, id="architecture-not-a-name"),
        pytest.param("syscalls", {"syscalls": None}, id="no-rules"),
        pytest.param("syscalls[0]", {"syscalls": ["read"]}, id="rule-not-an-object"),
        pytest.param("flags", {"flags": []}, id="unknown-key"),
    ],
)
def test_a_malformed_profile_is_refused_by_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as refused:
        compile_profile(profile_of() | change, NATIVE)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "entry"),
    [
        pytest.param("[0].subArchitectures", {"subArchitectures": ["SCMP_ARCH_X86"]}, id="second-table"),
        pytest.param("[0].architecture", {"architecture": ["SCMP_ARCH_X86_64"]}, id="not-a-name"),
        pytest.param("[0].arch", {"arch": "SCMP_ARCH_X86_64"}, id="unknown-key"),
    ],
)
def test_a_malformed_architecture_map_is_refused_by_field(field: str, entry: dict[str, Any]) -> None:
    profile = profile_of() | {"archMap": [{"architecture": "SCMP_ARCH_X86_64"} | entry]}
    del profile["architectures"]
    with pytest.raises(BadConfig) as refused:
        compile_profile(profile, "x86_64")
    assert refused.value.field == f"archMap{field}"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        pytest.param("names", {"names": ["raed"]}, id="unknown-call"),
        pytest.param("names", {"names": []}, id="no-names"),
        pytest.param("names", {"names": "read"}, id="names-not-a-list"),
        pytest.param("names", {"names": [0]}, id="name-not-a-string"),
        pytest.param("action", {"action": "SCMP_ACT_KILL"}, id="kill"),
        pytest.param("action", {"errnoRet": 1}, id="allow-with-errno"),
        pytest.param("errnoRet", {"action": "SCMP_ACT_ERRNO", "errnoRet": 0}, id="errno-of-success"),
        pytest.param("includes", {"includes": {"caps": ["CAP_SYS_ADMIN"]}}, id="conditional-rule"),
        pytest.param("args", {"args": {}}, id="args-not-a-list"),
        pytest.param("args[0]", {"args": [0]}, id="argument-not-an-object"),
        pytest.param("args[0].index", {"args": [arg(6, "EQ", 0)]}, id="seventh-argument"),
        pytest.param("args[0].value", {"args": [arg(0, "EQ", -1)]}, id="negative-value"),
        pytest.param("args[0].value", {"args": [arg(0, "EQ", 1 << 64)]}, id="value-beyond-64-bits"),
        pytest.param("args[0].valueTwo", {"args": [arg(0, "MASKED_EQ", 1, 2)]}, id="outside-the-mask"),
        pytest.param("args[0].valueTwo", {"args": [arg(0, "EQ", 1, 2)]}, id="second-value-without-mask"),
        pytest.param("args[0].op", {"args": [arg(0, "GT", 1)]}, id="order-comparison"),
        pytest.param("args[0].op", {"args": [arg(0, "NE", 1)]}, id="allow-unless"),
        pytest.param("args[1].index", {"args": [arg(0, "EQ", 1), arg(0, "EQ", 2)]}, id="tested-twice"),
        pytest.param("args[0].mask", {"args": [arg(0, "EQ", 1) | {"mask": 1}]}, id="unknown-key"),
    ],
)
def test_a_malformed_rule_is_refused_by_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as refused:
        compile_profile(profile_of(rule("read") | change), NATIVE)
    assert refused.value.field == f"syscalls[0].{field}"


def test_a_mistyped_call_gets_a_suggestion() -> None:
    with pytest.raises(BadConfig, match="did you mean 'openat2'"):
        compile_profile(profile_of(rule("openatt2")), NATIVE)


def test_an_architecture_without_a_table_is_refused() -> None:
    with pytest.raises(BadConfig, match="'riscv64'"):
        compile_profile(profile_of(), "riscv64")


def test_a_program_that_the_kernel_would_refuse_is_refused() -> None:
    rules = [rule("ioctl", args=[arg(1, "EQ", value)]) for value in range(1100)]
    with pytest.raises(BadConfig, match="4096") as refused:
        compile_profile(profile_of(*rules), NATIVE)
    assert refused.value.field == "syscalls"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_profile_is_refused_or_compiled(data: st.DataObject) -> None:
    profile = profile_of(
        rule("read"), rule("ioctl", deny=1, args=[arg(1, "EQ", 5), arg(2, "MASKED_EQ", 3, 1)])
    )
    part: Any = profile
    while True:
        key = data.draw(st.sampled_from(list(part) if isinstance(part, dict) else range(len(part))))
        if not isinstance(part[key], dict | list) or not part[key] or data.draw(st.booleans()):
            part[key] = data.draw(json_values)
            break
        part = part[key]
    try:
        said: object = compile_profile(profile, NATIVE)
    except BadConfig as refused:
        said = refused.field
    assert said


# --- what libseccomp makes of the profile, as Docker will ask it to ----------------------------------------


class ArgumentTest(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def libseccomp_filter(profile: dict[str, Any], arch: str, order: random.Random) -> tuple[bytes, set[str]]:
    """The filter that runc would install, and the names that this libseccomp is too old to know."""
    path = ctypes.util.find_library("seccomp")
    if path is None:
        unavailable("libseccomp is not installed")
    library = ctypes.CDLL(path)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ENOSYS))
    if arch != NATIVE:
        assert library.seccomp_arch_add(context, ctypes.c_uint32(AUDIT_ARCH[arch])) == 0
        assert library.seccomp_arch_remove(context, ctypes.c_uint32(AUDIT_ARCH[NATIVE])) == 0
    comparisons = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
    unknown = set()
    for each in order.sample(profile["syscalls"], len(profile["syscalls"])):
        action = ALLOW if each["action"] == "SCMP_ACT_ALLOW" else ERRNO | each["errnoRet"]
        if action == ENOSYS:
            continue  # runc leaves out what the default says anyway
        tests = [
            ArgumentTest(test["index"], comparisons[test["op"]], test["value"], test.get("valueTwo", 0))
            for test in each.get("args", [])
        ]
        for name in each["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == -1:
                unknown.add(name)
                continue
            array = (ArgumentTest * len(tests))(*tests)
            assert library.seccomp_rule_add_array(context, action, number, len(tests), array) == 0, each
    with tempfile.TemporaryFile() as file:
        assert library.seccomp_export_bpf(context, file.fileno()) == 0
        library.seccomp_release(context)
        file.seek(0)
        return file.read(), unknown


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("seed", range(3))
def test_libseccomp_reads_the_same_meaning_in_any_order(
    profile: dict[str, Any], programs: dict[str, bytes], arch: str, seed: int
) -> None:
    order = random.Random(seed)
    theirs, unknown = libseccomp_filter(profile, arch, order)
    numbers = syscall_numbers(arch)
    newer = {numbers[name] for name in unknown if name in numbers}
    calls: list[tuple[int, tuple[int, ...]]] = []
    calls += [(nr, (fill,) * 6) for nr in range(601) if nr not in newer for fill in (0, ONES)]
    calls += [(nr, ()) for nr in (0x3FFFFFFF, 0x40000000, 0x40000027, 0xFFFFFFFF)]
    for name in EXPECTED:
        calls += [(numbers[name], args) for args in order.sample(sorted(arguments(name)), 60)]

    def answer(program: bytes, nr: int, args: tuple[int, ...]) -> int:
        # Where we kill the process, libseccomp's default for another table kills the thread.
        return run_filter(program, nr, arch, args) or KILL

    wrong = [call for call in calls if answer(theirs, *call) != answer(programs[arch], *call)]
    assert not wrong


# --- what the kernel does ----------------------------------------------------------------------------------

native_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ARCHES, reason="no filter for this kernel"
)
x86_64_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="only x86-64 has further tables of calls",
)

INSTALL = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

def install(program):
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    if program:
        assert libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, program))) == 0, "PR_SET_SECCOMP"
"""

# Each call in a process of its own, so that it may block, die, or change what it likes. Nothing of the host
# is within reach: descriptor 0 is a pipe, and root becomes nobody first.
CALLS = (
    INSTALL
    + """
job = json.load(sys.stdin)
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
install(bytes.fromhex(job["program"]))
outcomes = []
for number, args in job["calls"]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, 5)
            failed = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(arg) for arg in args)) == -1
            os.write(write, b"%d," % (ctypes.get_errno() if failed else 0))
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 16)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    outcomes.append(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else int(said.split(b",")[0] or 0))
json.dump(outcomes, sys.stdout)
"""
)


def python_under(code: str, stdin: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def outcomes_of(program: bytes, calls: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
    """Of each call the errno, 0 if it succeeded or exited, or the negative signal that ended it."""
    listed = [[nr, [arg & ONES for arg in args]] for nr, args in calls]
    answer = python_under(CALLS, json.dumps({"program": program.hex(), "calls": listed}))
    outcomes = json.loads(answer)
    assert len(outcomes) == len(calls)
    return [int(outcome) for outcome in outcomes]


def answers_of(marked_program: bytes, calls: Sequence[tuple[int, Sequence[int]]]) -> list[str]:
    by_outcome = {MARKS[errno.EPERM]: "EPERM", MARKS[errno.ENOSYS]: "ENOSYS", -signal.SIGSYS: "kill"}
    return [by_outcome.get(outcome, "allow") for outcome in outcomes_of(marked_program, calls)]


# Left to the interpreter.
NOT_SWEPT = {
    "vfork": "its child would return through the parent's stack",
    "sync": "writes back every disk of the host",
    "pause": "waits for ever",
    "select": "waits for ever on nothing",
    "pselect6": "waits for ever on nothing",
    "ppoll": "waits for ever on nothing",
    "msgget": "makes a queue that outlives the test",
    "msgctl": "zeros remove queue 0 of the host",
    "semctl": "zeros remove semaphores 0 of the host",
    "shmctl": "zeros remove segment 0 of the host",
}


@native_only
def test_the_kernel_answers_every_call_as_in_the_golden_table(profile: dict[str, Any]) -> None:
    rows = [
        line.split()
        for line in (GOLDEN / f"seccomp-{NATIVE}.txt").read_text(encoding="ascii").splitlines()
        if not line.startswith("#")
    ]
    swept = [row for row in rows if row[1] not in NOT_SWEPT]
    calls = [(int(nr), [fill] * 6) for nr, *_ in swept for fill in (0, ONES)]
    answers = iter(answers_of(marked(profile), calls))
    assert [[nr, name, next(answers), next(answers)] for nr, name, _, _ in swept] == swept
    assert len(swept) == 601 - sum(name in NUMBERS for name in NOT_SWEPT)


@native_only
def test_the_kernel_agrees_with_the_interpreter_on_arguments(
    profile: dict[str, Any], programs: dict[str, bytes]
) -> None:
    order = random.Random(1)
    calls: list[tuple[int, tuple[int, ...]]] = []
    for name in EXPECTED:
        calls += [(NUMBERS[name], args) for args in order.sample(sorted(arguments(name)), 40)]
    # CLONE_SIGHAND without CLONE_VM: what the filter lets through is an error, not a process.
    harmless = [(nr, (args[0] & ~0x100 | 0x800,) if nr == NUMBERS["clone"] else args) for nr, args in calls]
    expected = [ANSWERS[run_filter(programs[NATIVE], nr, NATIVE, args)] for nr, args in harmless]
    assert answers_of(marked(profile), harmless) == expected
    assert {"allow", "EPERM", "ENOSYS"} == set(expected)


# Rows of the attack corpus (kernel surface, processes, clocks), each as one bare call.
ATTACKS: list[tuple[str, str, tuple[int, ...]]] = [
    ("K2", "bpf", (0,)),
    ("K3", "perf_event_open", (0,)),
    ("K4", "userfaultfd", (0,)),
    ("K4", "userfaultfd", (1,)),
    ("K5", "keyctl", (0,)),
    ("K5", "add_key", (0,)),
    ("K5", "request_key", (0,)),
    ("K6", "kexec_load", (0,)),
    ("K6", "kexec_file_load", (0,)),
    ("K6", "init_module", (0,)),
    ("K6", "finit_module", (0,)),
    ("K7", "unshare", (0x10000000,)),
    ("K7", "clone", (0x10000000 | signal.SIGCHLD,)),
    ("K7", "clone", (0xF << 32 | 0x10000000 | signal.SIGCHLD,)),
    ("K9", "setns", (0, 0)),
    ("K10", "socket", (38, 5, 0)),
    ("K10", "socket", (17, 3, 0)),
    ("K10", "socket", (16, 3, 12)),
    ("K10", "socket", (16, 3, 1 << 32 | 12)),
    ("K10", "socket", (15, 3, 2)),
    ("K10", "socket", (44, 3, 0)),
    ("K10", "socket", (33, 2, 0)),
    ("K10", "socket", (30, 5, 0)),
    ("K10", "socket", (29, 3, 1)),
    ("K10", "socket", (31, 3, 1)),
    ("K10", "socket", (40, 1, 0)),
    ("K10", "socket", (1 << 32 | 40, 1, 0)),
    ("K10", "socketpair", (38, 5, 0)),
    ("K12", "futex", (0, 6)),
    ("K12", "futex", (0, 6 | 128)),
    ("K12", "futex", (0, 11 | 128 | 256)),
    ("K12", "futex", (0, 12)),
    ("K12", "futex", (0, 13 | 256)),
    ("K12", "futex", (0, 0xDEADBEEF << 32 | 6 | 128)),
    ("P10", "ptrace", (16, 1)),
    ("P10", "prlimit64", (1, 7, 0, 0)),
    ("P10", "prlimit64", (0xFFFFFFFF, 7, 0, 0)),
    ("P19", "ioctl", (0, 0x5412)),
    ("P19", "ioctl", (0, 1 << 32 | 0x5412)),
    ("P19", "ioctl", (0, 0x541C)),
    ("C5", "clock_settime", (0, 0)),
    ("C5", "settimeofday", (0, 0)),
    ("C5", "adjtimex", (0,)),
    ("ULP", "setsockopt", (0, 6, 31)),
    ("ULP", "setsockopt", (0, 1 << 32 | 6, 1 << 32 | 31)),
]


@pytest.fixture(scope="session", name="attacked")
def attack_outcomes(profile: dict[str, Any], programs: dict[str, bytes]) -> dict[object, tuple[int, str]]:
    """Of each attack the outcome, and whose answer it was."""
    calls = [(NUMBERS[name], args) for _, name, args in ATTACKS]
    outcomes = zip(outcomes_of(programs[NATIVE], calls), answers_of(marked(profile), calls), strict=True)
    return dict(zip(ATTACKS, outcomes, strict=True))


@native_only
@pytest.mark.parametrize(
    "attack",
    [pytest.param(each, id=f"{each[0]}-{each[1]}-" + "-".join(map(hex, each[2]))) for each in ATTACKS],
)
def test_an_attack_on_the_kernel_gets_eperm_from_the_filter(
    attacked: dict[object, tuple[int, str]], attack: tuple[str, str, tuple[int, ...]]
) -> None:
    assert attacked[attack] == (errno.EPERM, "EPERM")


@native_only
@pytest.mark.parametrize(
    ("name", "args"),
    [
        pytest.param("socket", (1, 1, 0), id="unix-socket"),
        pytest.param("socket", (2, 1, 6), id="tcp-socket"),
        pytest.param("socket", (0xDEAD << 32 | 2, 1, 0), id="garbage-above-an-int"),
        pytest.param("socket", (16, 3, 0), id="netlink-route"),
        pytest.param("prlimit64", (0, 7, 0, 0), id="own-limits"),
        pytest.param("setpriority", (0, 0, 5), id="own-priority"),
        pytest.param("sched_getaffinity", (0, 0, 0), id="own-affinity"),
        pytest.param("clone", (signal.SIGCHLD, 0, 0, 0, 0), id="fork-by-clone"),
    ],
)
def test_an_honest_call_succeeds(programs: dict[str, bytes], name: str, args: tuple[int, ...]) -> None:
    # A mask of no size is EINVAL: the call was made.
    assert outcomes_of(programs[NATIVE], [(NUMBERS[name], args)]) == [
        22 if name == "sched_getaffinity" else 0
    ]


@native_only
def test_clone3_does_not_exist_so_that_threads_fall_back(programs: dict[str, bytes]) -> None:
    assert outcomes_of(programs[NATIVE], [(NUMBERS["clone3"], (0, 0))]) == [errno.ENOSYS]


@x86_64_only
def test_an_x32_call_is_killed_by_the_kernel(programs: dict[str, bytes]) -> None:
    calls = [(0x40000000 | nr, ()) for nr in (NUMBERS["getpid"], 520, 521)]
    assert outcomes_of(programs["x86_64"], calls) == [-signal.SIGSYS] * 3


@x86_64_only
def test_minus_one_is_in_no_table_and_does_not_kill(programs: dict[str, bytes]) -> None:
    assert outcomes_of(programs["x86_64"], [(-1, ())]) == [errno.ENOSYS]


INT80 = (
    INSTALL
    + """
import mmap
install(bytes.fromhex(sys.stdin.read()))
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid of i386); int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
pid = os.fork()
if pid == 0:
    os._exit(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid())
print(os.waitpid(pid, 0)[1])
"""
)


@x86_64_only
def test_an_i386_call_is_killed_by_the_kernel(programs: dict[str, bytes]) -> None:
    unfiltered = int(python_under(INT80, ""))
    if not (os.WIFEXITED(unfiltered) and os.WEXITSTATUS(unfiltered) == 1):
        unavailable("this kernel has no i386 calls")
    status = int(python_under(INT80, programs["x86_64"].hex()))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSYS


# --- what honest programs notice ---------------------------------------------------------------------------

EXEC = INSTALL + "install(bytes.fromhex(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"


def run_under(program: bytes, argv: Sequence[str], directory: Path) -> str:
    if shutil.which(argv[0]) is None:
        unavailable(f"{argv[0]} is not installed")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", EXEC, program.hex(), *argv],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Function not implemented" not in done.stderr
    return done.stdout


PYTHON_WORK = {
    "threads": """
import concurrent.futures, threading
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(abs, range(-500, 0))) == 125250
barrier = threading.Barrier(4)
threads = [threading.Thread(target=barrier.wait, args=(10,)) for _ in range(3)]
[thread.start() for thread in threads]; barrier.wait(10); [thread.join() for thread in threads]
""",
    "multiprocessing": """
import multiprocessing, sys
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, range(-50, 0)) == list(range(50, 0, -1))
parent, child = multiprocessing.Pipe()
worker = multiprocessing.Process(target=child.send, args=("hello",)); worker.start()
assert parent.recv() == "hello"; worker.join()
""",
    "subprocess": """
import os, subprocess
assert subprocess.check_output("echo one two | wc -w", shell=True, text=True).strip() == "2"
assert subprocess.run(["cat"], input=b"x" * 200000, capture_output=True).stdout == b"x" * 200000
pid = os.posix_spawnp("true", ["true"], os.environ); assert os.waitpid(pid, 0)[1] == 0
""",
    "asyncio": """
import asyncio
async def echo(reader, writer):
    writer.write(await reader.readline()); await writer.drain(); writer.close()
async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    assert await reader.readline() == b"hello\\n"
    writer.close(); server.close()
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"hi\\n"
asyncio.run(main())
""",
    "sqlite": """
import sqlite3
db = sqlite3.connect("test.db"); db.execute("pragma journal_mode=wal"); db.execute("create table t (x)")
with db: db.executemany("insert into t values (?)", [(n,) for n in range(1000)])
assert db.execute("select sum(x) from t").fetchone() == (499500,)
""",
    "files": """
import mmap, os, pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as name, tempfile.NamedTemporaryFile() as file:
    path = pathlib.Path(name, "a"); path.write_bytes(b"x" * 100000); path.chmod(0o600); os.utime(path)
    shutil.copy2(path, path.with_name("b")); shutil.copytree(name, name + "-2")
    shutil.rmtree(name + "-2")
    os.link(path, path.with_name("c")); os.symlink("a", path.with_name("d")); path.rename(path.with_name("e"))
    assert len(os.listdir(name)) == 4
    file.truncate(4096); mmap.mmap(file.fileno(), 4096).write(b"hello"); file.seek(0)
    assert file.read(5) == b"hello"
os.close(os.memfd_create("m")); os.statvfs(".")
""",
    "own-limits": """
import os, resource, signal, threading, time
limit = resource.RLIMIT_NOFILE
resource.setrlimit(limit, (64, 64)); assert resource.getrlimit(limit) == (64, 64)
os.nice(1); os.setpriority(os.PRIO_PROCESS, 0, 5); os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(os.getpid()))
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
signal.pause(); signal.setitimer(signal.ITIMER_REAL, 0)  # the first may come before it
time.sleep(0.01)
""",
}


@native_only
@pytest.mark.parametrize("work", PYTHON_WORK)
def test_python_works(programs: dict[str, bytes], work: str, tmp_path: Path) -> None:
    run_under(programs[NATIVE], [sys.executable, "-I", "-c", PYTHON_WORK[work]], tmp_path)


@native_only
def test_bash_and_its_tools_work(programs: dict[str, bytes], tmp_path: Path) -> None:
    script = """
set -euo pipefail
printf '%s\\n' c a b | sort | tee sorted | wc -l
[ -r sorted ] && [ ! -x sorted ]
diff <(head -n 1 sorted) <(echo a)
mkdir -p d/e && cp -r sorted d/e && mv d/e d/f && touch -d 2020-01-01 d/f/sorted && chmod 600 d/f/sorted
ls -l d/f | tail -n 1 | cut -c 1-10
tar cf - d | tar tf - | wc -l
(sleep 5 & kill $! && wait $! || true) 2>/dev/null
timeout 5 nice -n 1 nproc >/dev/null
for word in *; do echo "$word"; done
"""
    expected = "3\n-rw-------\n3\nd\nsorted\n"
    assert run_under(programs[NATIVE], ["bash", "-c", script], tmp_path) == expected


@native_only
def test_node_works(programs: dict[str, bytes], tmp_path: Path) -> None:
    script = """
const fs = require('fs'), os = require('os'), http = require('http');
const { Worker } = require('worker_threads'), { execFileSync } = require('child_process');
fs.writeFileSync('a', 'hello'); fs.copyFileSync('a', 'b'); fs.renameSync('b', 'c');
if (fs.readdirSync('.').join() !== 'a,c' || os.cpus().length < 1) process.exit(2);
os.networkInterfaces(); os.setPriority(1);
if (execFileSync('cat', ['c']).toString() !== 'hello') process.exit(3);
const server = http.createServer((_, response) => response.end('served'));
server.listen(0, '127.0.0.1', () => http.get({ port: server.address().port, agent: false }, response => {
  response.on('data', data => console.log(data.toString())).on('end', () => {
    server.close();
    new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true })
      .on('message', message => console.log(message));
  });
}));
"""
    assert run_under(programs[NATIVE], ["node", "-e", script], tmp_path) == "served\n42\n"


@native_only
def test_git_works(programs: dict[str, bytes], tmp_path: Path) -> None:
    script = """
git init -q . && echo hello > a && git add a
git -c user.name=n -c user.email=e@example.org commit -qm first
git checkout -qb other && git clone -q . copy && git -C copy log --format=%s
git gc -q && git fsck --no-progress
"""
    assert run_under(programs[NATIVE], ["git", "version"], tmp_path)
    assert run_under(programs[NATIVE], ["sh", "-ec", script], tmp_path) == "first\n"


@native_only
def test_gcc_works(programs: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    run_under(programs[NATIVE], ["gcc", "-pipe", "-o", "hello", "hello.c"], tmp_path)
    assert run_under(programs[NATIVE], [str(tmp_path / "hello")], tmp_path) == "hello\n"


if __name__ == "__main__":
    for each_arch in ARCHES:
        table = golden_table(compile_profile(load_profile(), each_arch), each_arch)
        (GOLDEN / f"seccomp-{each_arch}.txt").write_text(table, encoding="ascii")
