"""The words of the domain: frozen values that travel between the parts and over the wire.

    RunRequest ─► policy ─► Grant ─► engine ─► Event … Event ─► RunResult

Plain dataclasses, because `belljar --version` and the guest's host end should not pay for a
validation library. Untrusted JSON is checked once, at the door, before it becomes one of these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

__all__ = [
    "Artifact",
    "Carried",
    "Contacted",
    "Ended",
    "Event",
    "Finding",
    "Grant",
    "InputFile",
    "Language",
    "Limits",
    "Network",
    "NetworkRules",
    "OnOutputLimit",
    "Output",
    "Owner",
    "Package",
    "PatternRules",
    "RiskTier",
    "RunRequest",
    "RunResult",
    "Shown",
    "SkipReason",
    "Skipped",
    "Start",
    "Started",
    "Stream",
    "Usage",
    "Verdict",
    "canonical_json",
]


class Language(StrEnum):
    """What a request may name; `shell` is accepted as another word for bash."""

    PYTHON = "python"
    BASH = "bash"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"

    @classmethod
    def of_file(cls, path: str) -> Language | None:
        """By the end of its name."""
        return _SUFFIXES.get(path.rpartition(".")[2].lower())


_SUFFIXES = {
    "py": Language.PYTHON,
    **dict.fromkeys(("bash", "sh"), Language.BASH),
    **dict.fromkeys(("cjs", "js", "mjs"), Language.JAVASCRIPT),
    **dict.fromkeys(("cts", "mts", "ts"), Language.TYPESCRIPT),
}


class RiskTier(StrEnum):
    """How much a person should care. Ordered; advice, never a guard."""

    SAFE = "safe"  # reads nothing, touches nothing
    LOW = "low"  # ordinary reads and writes in its own workspace
    MEDIUM = "medium"  # reads data that may be hostile, writes within reach
    HIGH = "high"  # opens the network, writes files, starts programs
    CRITICAL = "critical"  # runs what it was given as text, or tries to harm

    @property
    def rank(self) -> int:
        return _TIER_RANK[self]


_TIER_RANK = {tier: rank for rank, tier in enumerate(RiskTier)}


class Verdict(StrEnum):
    """How a run ended, from kernel facts only."""

    EXITED = "exited"  # by itself, with an exit code
    SIGNALED = "signaled"  # by a signal that we did not send
    TIMEOUT = "timeout"  # the wall clock ran out
    IDLE_TIMEOUT = "idle_timeout"  # no output for too long
    OOM = "oom"  # the kernel's memory limit killed it
    OUTPUT_LIMIT = "output_limit"  # wrote too much, and the grant says kill
    DISK_FULL = "disk_full"  # failed with its workspace full
    CANCELLED = "cancelled"  # the caller asked for it
    LOST = "lost"  # the jar or the service died


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class Start(StrEnum):
    """How a Python program is started."""

    FORK = "fork"  # in a copy of the guest's warm interpreter
    EXEC = "exec"  # in a new interpreter


class OnOutputLimit(StrEnum):
    TRUNCATE = "truncate"  # count and discard the rest, let the program go on
    KILL = "kill"  # end the run with `output_limit`


class SkipReason(StrEnum):
    """Why a file that a run left was not returned."""

    SYMLINK = "symlink"
    NOT_REGULAR = "not_regular"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    TOO_DEEP = "too_deep"
    UNREADABLE = "unreadable"
    OUTSIDE = "outside"  # on another file system than the workspace
    MISSING = "missing"  # listed in `output_files`, but not there
    SAME_NAME = (
        "same_name"  # a file that came before it has its place, as `work/artifacts/x` that of `artifacts/x`
    )
    NOT_KEPT = "not_kept"  # returned, but not kept in `work`: no later run could be given it


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing in a program that a person may want to know before it runs."""

    tier: RiskTier
    reason: str
    line: int
    """1-based line of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use. The defaults are the product's; policy may set others."""

    timeout_s: float = 30.0
    """Wall clock from the program's start to SIGTERM."""
    grace_s: float = 2.0
    """From SIGTERM to SIGKILL of everything in the jar."""
    idle_timeout_s: float = 0.0
    """Longest silence on both output streams; 0 means no such limit."""
    memory_mb: int = 512
    """All memory of the jar, files in its tmpfs included. Swap is off."""
    cpu_cores: float = 1.0
    pids: int = 128
    nofile: int = 1024
    stdout_kb: int = 1024
    """Bytes of stdout kept, in KiB; more is counted and discarded."""
    stderr_kb: int = 1024
    input_mb: int = 50
    input_files: int = 1000
    artifact_mb: int = 50
    artifact_files: int = 1000
    workspace_mb: int = 256
    workspace_files: int = 16384
    """Inodes of the workspace tmpfs."""
    tmp_mb: int = 64


@dataclass(frozen=True, slots=True)
class PatternRules:
    """One layer's allow and deny patterns. Every layer must allow; any layer may deny."""

    layer: str
    allow: tuple[str, ...] | None = None
    """None: no opinion. Empty: nothing is allowed. Given: one must match."""
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """One layer's opinion on where bytes may go. Data only: egress decides."""

    layer: str
    hosts: tuple[str, ...] | None = None
    """Host patterns allowed. None: no opinion. Empty: none."""
    ports: tuple[int, ...] | None = None
    addresses: tuple[str, ...] | None = None
    """Address ranges (CIDR) that may be connected to although they are private."""
    denied_hosts: tuple[str, ...] = ()
    denied_ports: tuple[int, ...] = ()
    denied_addresses: tuple[str, ...] = ()
    read_only_hosts: tuple[str, ...] = ()
    """Host patterns that may be read from and sent nothing: GET and HEAD, without a body."""


@dataclass(frozen=True, slots=True)
class Network:
    """`enabled` is false unless every layer opened it; the rules count only when it is true."""

    enabled: bool = False
    rules: tuple[NetworkRules, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose run it is: some secrets are for some projects or roles only."""

    project: str
    role: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The frozen answer of policy: what an engine enforces exactly, or refuses."""

    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    image: str | None = None
    """Named image of an image-based engine; None is the engine's default for the language."""
    languages: frozenset[str] = frozenset(Language)
    sandboxed: bool = True
    """False only for tools of the lowest tiers that read on the host and run no code."""
    paths: tuple[PatternRules, ...] = ()
    commands: tuple[PatternRules, ...] = ()
    packages: tuple[PatternRules, ...] = ()
    """Which Python packages may be installed for the program: none, unless a layer lists some."""
    risk: RiskTier = RiskTier.SAFE
    """Tier of the tool that was named, from policy."""
    approve_at: RiskTier | None = None
    """A run whose risk reaches this waits for a person. None: never."""
    on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE
    accept_weaker_limits: bool = False
    """Whether memory and pids may be held by rlimits and a watchdog where no cgroup can be had."""

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON; what approvals and receipts are bound to."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    """Relative to the place it goes to; already validated."""
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One program to run. Exactly one of `code` and `command` is given, unless it is `inline`."""

    language: Language | None = None
    code: str | None = None
    command: tuple[str, ...] | None = None
    start: Start = Start.FORK
    args: tuple[str, ...] = ()
    """Arguments after the script: `sys.argv[1:]` of `code`."""
    inline: tuple[str, ...] | None = None
    """Options after which the interpreter takes `code` as an argument (`-c`); without code, `args` alone.
    None: the code is a file."""
    files: tuple[InputFile, ...] = ()
    """Staged under `/workspace/work`."""
    inputs: tuple[InputFile, ...] = ()
    """Staged under `/workspace/inputs`, read-only to the program."""
    output_files: tuple[str, ...] | None = None
    """Paths under `work` to bring back. None: all that was created or changed."""
    working_dir: str = ""
    """Relative to `/workspace/work`; empty is `work` itself."""
    env: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Requirements such as `numpy>=2`, to be installed for a Python program before it runs."""
    stdin: bytes = b""
    stdin_open: bool = False
    """In a session: more may be given to it to read while it runs."""
    context: str | None = None
    """In a session: the Python that keeps its variables between runs, in which `code` is to be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run used. `held_by` says which kernel layer held each limit."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak_mb: float = 0.0
    pids_peak: int = 0
    oom_kills: int = 0
    pids_refused: int = 0
    """How often a fork was refused by the pids limit."""
    disk_full: bool = False
    network_bytes_sent: int = 0
    network_bytes_recv: int = 0
    held_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file a run left on purpose."""

    path: str
    """Relative to `work`, or `artifacts/…`."""
    size: int
    sha256: str
    mime: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    path: str
    reason: SkipReason


@dataclass(frozen=True, slots=True)
class Package:
    """What was installed for a run."""

    name: str
    version: str
    sha256: str
    """Of the wheel that it came from."""


@dataclass(frozen=True, slots=True)
class Started:
    """The program is about to run; nothing of it has run before this."""

    posture: str
    """Digest of what the live jar was found to be."""


@dataclass(frozen=True, slots=True)
class Output:
    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that a cell of a session's context showed, in each form it has: mime type to data."""

    forms: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contacted:
    """A program asked for a way out, and this was decided. What it wrote is escaped and cut short."""

    number: int
    """Among those of its jar, from 1 on."""
    at: str = field(compare=False)
    """ISO 8601, in UTC."""
    host: str
    port: int
    allowed: bool
    rule: str
    """What settled it: which layer's, which list, which entry."""
    address: str = ""
    """Vetted, and the first to be tried; empty where there is none."""
    secret: str = ""
    """Name of the one that was put into the request on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A connection that was decided on is over, and moved so many bytes."""

    number: int
    """Of its `Contacted`."""
    sent: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The program is over and every process of its jar is dead. Kernel facts."""

    verdict: Verdict
    exit_code: int | None
    signal: int | None
    stdout_bytes: int
    stderr_bytes: int
    usage: Usage


Event = Started | Output | Shown | Contacted | Carried | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything a caller is told about a run that took place."""

    verdict: Verdict
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    usage: Usage
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    removed: tuple[str, ...] = ()
    """Where `work` is kept: files that it was given there, and that were gone when it ended by itself."""
    results: tuple[Mapping[str, object], ...] = ()
    """What the cells of a session's context showed, each in its forms."""
    packages: tuple[Package, ...] = ()
    """What was installed for it: what it asked for, and what that needs."""
    engine: str = ""
    posture: str = ""

    @property
    def timed_out(self) -> bool:
        return self.verdict in (Verdict.TIMEOUT, Verdict.IDLE_TIMEOUT)

    @property
    def stdout_truncated(self) -> bool:
        return self.stdout_bytes > len(self.stdout)

    @property
    def stderr_truncated(self) -> bool:
        return self.stderr_bytes > len(self.stderr)


def canonical_json(value: object) -> bytes:
    """One byte string for one value: sorted keys, no spaces, ASCII, sets as sorted lists."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    return text.encode("ascii")


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"not a value of the domain: {type(value).__name__}")
