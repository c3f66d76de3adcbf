"""What a hostile program is, as data: its text, how its run must end, and how it is shown to be an attack.

A program says what the kernel answered, one line per attempt: a word, then `REACHED` or the name of an errno.
`tactics` is the module with which Python programs do that; it lies beside every program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from belljar.models import InputFile, Language, Limits, OnOutputLimit, Start, Verdict

__all__ = ["REACHED", "ROOMY", "SMALL", "TACTICS", "Attack", "Control", "answers", "small"]

REACHED = "REACHED"

SMALL = Limits(
    timeout_s=30.0,
    grace_s=0.2,
    memory_mb=64,
    pids=32,
    nofile=256,
    stdout_kb=64,
    stderr_kb=64,
    artifact_mb=4,
    artifact_files=50,
    workspace_mb=16,
    workspace_files=1024,
    tmp_mb=8,
)
"""Narrow, so that an attack on a limit meets it within a blink."""

ROOMY = replace(
    SMALL, memory_mb=512, pids=512, workspace_mb=128, workspace_files=65536, tmp_mb=64, timeout_s=40
)
"""No limit of these stands in the way of a program that SMALL stops."""


def small(**fields: float) -> Limits:
    return replace(SMALL, **fields)  # type: ignore[arg-type]


class Control(StrEnum):
    """Where the same program, without the layer that guards against it, must reach its goal."""

    BARE = "bare"  # on the host, as an ordinary user
    ROOT = "root"  # on the host, as root of user, mount, network and pid namespaces of its own
    ROOMY = "roomy"  # in a jar whose limits are wide
    UNFILTERED = "unfiltered"  # in a jar whose seccomp filter allows everything
    PROBE = "probe"  # nowhere: it asks whether a door is there, and does not count as an attack


@dataclass(frozen=True, kw_only=True)
class Attack:
    code: str
    control: Control
    language: Language = Language.PYTHON
    start: Start = Start.FORK
    limits: Limits = SMALL
    roomy: Limits = ROOMY
    """For `Control.ROOMY`."""
    verdict: Verdict = Verdict.EXITED
    exit_code: int | None = 0
    """Only looked at when the verdict is `exited`; None is any."""
    goal: str = REACHED
    """What the program says, or what it brings out, when it has won."""
    accomplice: str = ""
    """A program that runs before this one in a jar of its own, for what passes between runs."""
    at_once: bool = False
    """The accomplice runs beside it, not before."""
    ends_gvisor: bool = False
    """It ends gVisor's kernel, a process of the jar like any other: there the run is `lost`, or whatever limit
    that met first."""
    linger_s: float = 0.0
    """How long the control lets what the program left behind go on, if it does not reach the goal before."""
    on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE
    stdin: bytes = b""
    inputs: tuple[InputFile, ...] = ()
    output_files: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def answers(output: bytes) -> dict[str, str]:
    """What each attempt was answered."""
    words = [line.split(maxsplit=1) for line in output.decode("utf-8", "replace").splitlines()]
    return {pair[0]: pair[1] for pair in words if len(pair) == 2}


TACTICS = """\
import ctypes, errno, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def say(what, answer):
    os.write(1, f"{what} {answer}\\n".encode())

def attempt(what, deed, *args, **options):
    try:
        found = deed(*args, **options)
    except OSError as error:
        say(what, errno.errorcode.get(error.errno, str(error)))
    else:
        say(what, "REACHED")
        return found

def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

def call(number, *args):
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return checked(libc.syscall(ctypes.c_long(number), *words))

def read(path, size=1 << 16):
    with open(path, "rb") as file:
        return file.read(size)

def show(path):
    # Brings out what was read: a token in it is the end of the game.
    os.write(1, read(path) + b"\\n")
"""
