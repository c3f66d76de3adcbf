"""The contract of every engine: make a jar for a grant, run one program in it, take it away.

Engines know nothing of policy. They enforce a grant exactly or refuse it; they never approximate
and never fall back. One suite, `tests/engines`, is run on all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from belljar.models import Artifact, Event, Grant, InputFile, Language, Owner, Skipped

__all__ = ["WORK", "Area", "Check", "Collected", "Command", "Engine", "Jar", "Probe"]

WORK = "/workspace/work"


class Area(StrEnum):
    """The folders of `/workspace`."""

    INPUTS = "inputs"  # read-only to the program
    WORK = "work"  # where it runs
    ARTIFACTS = "artifacts"  # what it leaves on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program, as an engine starts it."""

    argv: tuple[str, ...]
    warm: bool = False
    """`argv` is a Python script and its arguments, to be run in the guest's warm interpreter."""
    env: Mapping[str, str] = field(default_factory=dict)
    """All of the program's environment beyond what the engine itself must set."""
    cwd: str = WORK
    stdin: bytes = field(default=b"", repr=False)
    stdin_open: bool = False
    """In a session: more may come for it to read."""
    context: str | None = None
    """In a session: the lasting Python that `cell` is handed to; `argv` is then not used."""
    cell: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Collected:
    artifacts: tuple[Artifact, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a host must offer."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """What to do when it is not ok."""
    required: bool = True
    """Without it the engine cannot be used at all; otherwise some grants are refused."""


@dataclass(frozen=True, slots=True)
class Probe:
    engine: str
    checks: tuple[Check, ...]
    about: Mapping[str, object] = field(default_factory=dict)
    """What an operator wants to know of it besides; as JSON, and without secrets."""

    @property
    def usable(self) -> bool:
        return all(check.ok for check in self.checks if check.required)

    @property
    def missing(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok)


class Jar(Protocol):
    """One isolated place. Its life: put*, exec, collect, destroy."""

    owner: Owner | None
    """Whose run it is for; to be set before `exec`. None: nobody's in particular."""

    @property
    def alive(self) -> bool:
        """As far as can be known without asking it."""

    def assign(self, grant: Grant) -> None:
        """Before its run: a grant that differs from the one it was made for only in what belongs to the run,
        the clocks and the caps of what goes in and comes out."""

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        """Stage files before a program runs; parents are made as needed.

        Raises:
            LimitExceeded: they do not fit (the caller's fault).
            PathNotAllowed: a path names a place that cannot be written (the caller's fault).
            EngineUnavailable: the jar is gone.
        """

    def exec(self, command: Command) -> AsyncIterator[Event]:
        """Run one program and stream what it does: Started, Output…, Ended.

        A program that is missing, fails, is killed or runs out of time is a result. When Ended comes,
        every process of the jar is dead. If the caller is cancelled or stops listening, the program
        is dead before that leaves here.

        Raises:
            PostureMismatch: the jar is not what was granted; nothing was run.
            EngineUnavailable: the jar never came up.
        """

    def cancel(self) -> None:
        """End the program that runs now, gently first; its Ended says `cancelled`."""

    async def collect(self, paths: Sequence[str] | None) -> Collected:
        """What the run left, within the grant's caps. Only after Ended; see spec for which files.

        Raises:
            EngineUnavailable: the jar is gone.
        """

    async def destroy(self) -> None:
        """Kill everything in it and leave nothing on the host. Safe to call at any time and twice."""


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    async def probe(self) -> Probe:
        """What this host can enforce. Never raises for a host that is lacking."""

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        """The command that runs a script, for each language this engine has."""

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        """The grant as it will be run: where an engine has images, with the one for it, named by its digest.

        Raises:
            BadRequest: a limit is too small for any jar of this engine.
            EngineUnavailable, GrantNotEnforceable: there is no such image, or it is not fit.
        """

    async def create(self, grant: Grant) -> Jar:
        """A never-used jar that holds exactly this grant.

        Raises:
            GrantNotEnforceable: says which field and how to mend it.
            EngineUnavailable: the engine does not work here.
        """

    async def close(self) -> None:
        """Destroy every jar and let go of everything."""
