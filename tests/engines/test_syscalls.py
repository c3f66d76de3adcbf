"""Every system call by number, made by a program in a live jar, answers as the golden table says.

`test_seccomp.py` shows the same of the filter alone; here it is what an engine made of the profile. Denials are
marked with errnos that no kernel knows, so that they cannot be mistaken for the kernel's own.
"""

from __future__ import annotations

import copy
import errno
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.engines.conftest import ENGINES
from tests.engines.test_seccomp import GOLDEN, MARKS, NATIVE, NOT_SWEPT, ONES, native_only

from belljar.engines import seccomp
from belljar.engines.base import WORK, Area, Command
from belljar.engines.docker import container
from belljar.models import Grant, InputFile, Limits, Output, Stream

if TYPE_CHECKING:
    from belljar.engines.base import Jar

SWEEP = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
for number, fill in json.load(open("calls.json")):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, 5)
            failed = libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(fill)] * 6) == -1
            os.write(write, b"%d," % (ctypes.get_errno() if failed else 0))
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 16)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else int(said.split(b",")[0] or 0))
"""


def marked() -> dict[str, Any]:
    profile: dict[str, Any] = copy.deepcopy(seccomp.load_profile())
    profile["defaultErrnoRet"] = MARKS[profile["defaultErrnoRet"]]
    for rule in profile["syscalls"]:
        if "errnoRet" in rule:
            rule["errnoRet"] = MARKS[rule["errnoRet"]]
    return profile


async def sweep(jar: Jar, calls: list[tuple[int, int]]) -> list[int]:
    await jar.put(
        Area.WORK,
        [InputFile("sweep.py", SWEEP.encode()), InputFile("calls.json", json.dumps(calls).encode())],
    )
    said = b"".join(
        [
            event.data
            async for event in jar.exec(Command(argv=("python3", f"{WORK}/sweep.py")))
            if isinstance(event, Output) and event.stream is Stream.STDOUT
        ]
    )
    return [int(line) for line in said.split()]


@native_only
@pytest.mark.parametrize("name", ["docker", "jail"])  # gVisor answers calls itself, by a table of its own
async def test_every_call_answers_as_in_the_golden_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = marked()
    monkeypatch.setattr(seccomp, "load_profile", lambda: profile)
    monkeypatch.setattr(container, "_profile", lambda: json.dumps(profile))
    rows = [
        line.split()
        for line in (GOLDEN / f"seccomp-{NATIVE}.txt").read_text(encoding="ascii").splitlines()
        if not line.startswith("#")
    ]
    swept = [row for row in rows if row[1] not in NOT_SWEPT]
    engine = ENGINES[name]()
    probe = await engine.probe()
    if not probe.usable:
        pytest.skip(f"{name} cannot be used here: {probe.missing}")
    jar = await engine.create(Grant(limits=Limits(timeout_s=55), accept_weaker_limits=True))
    try:
        calls = [(int(number), fill) for number, *_ in swept for fill in (0, ONES)]
        outcomes = iter(await sweep(jar, calls))
    finally:
        await jar.destroy()
        await engine.close()
    by_outcome = {MARKS[errno.EPERM]: "EPERM", MARKS[errno.ENOSYS]: "ENOSYS"}

    def answer(expected: str) -> str:
        outcome = next(outcomes)
        # Of a number above the highest that runc's libseccomp knows in the profile, runc says ENOSYS itself; to
        # what a profile does not list, an engine before Docker 23 knows no other answer than EPERM.
        if outcome == errno.ENOSYS and expected != "allow":
            return expected
        if outcome == errno.EPERM and expected == "ENOSYS":
            return expected
        return by_outcome.get(outcome, "allow")

    found = [[number, call, answer(zeros), answer(ones)] for number, call, zeros, ones in swept]
    assert found == swept
