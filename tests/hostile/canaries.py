"""What a hostile program must not find, touch or leave: planted on the host before, looked at after."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.engines.conftest import containers

ORDINARY_UID = 2_990_007 if os.getuid() == 0 else os.getuid()
"""Of the decoy and of programs that run bare: nobody else's, so that no other process is in reach."""
JAR_UIDS = range(2_000_000, 2_000_000 + 256 * 1024)
SHARED_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/run")


def demoted() -> dict[str, object]:
    """Arguments for subprocess that make a program one of an ordinary user."""
    if os.getuid() != 0:
        return {}
    return {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}


class Canaries:
    """Tokens and listeners of one test session. The same for every program: they have to stay unseen."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self._folder = Path(tempfile.mkdtemp(prefix="canaries-"))
        self._folder.chmod(0o755)
        self._file = self._folder / "secret.txt"
        self._file.write_text(self.token)
        self._file.chmod(0o644)
        self._drop = self._folder / "drop"
        self._drop.mkdir()
        self._drop.chmod(0o777)
        os.environ["SERVICE_SECRET"] = self.token
        self._listeners = dict(self._listen())
        self.decoy = self._start_decoy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.decoy.kill()
        self.decoy.wait()
        for sock in self._listeners.values():
            sock.close()
        del os.environ["SERVICE_SECRET"]
        shutil.rmtree(self._folder)

    @property
    def whereabouts(self) -> dict[str, str]:
        """All that an attacker who knows this host would know; everything but the token."""
        ports = {
            f"HOST_{name.upper()}": str(sock.getsockname()[1])
            for name, sock in self._listeners.items()
            if sock.family != socket.AF_UNIX
        }
        return ports | {
            "HOST_FILE": str(self._file),
            "HOST_DROP": str(self._drop),
            "HOST_SOCKET": str(self._folder / "socket"),
            "HOST_ABSTRACT": self._listeners["abstract"].getsockname()[1:].decode(),
            "HOST_PID": str(self.decoy.pid),
            "SERVICE_PID": str(os.getpid()),
        }

    def touched(self) -> list[str]:
        """Listeners that somebody has reached since the last look."""
        return [name for name, sock in self._listeners.items() if _was_reached(sock)]

    def files_are_untouched(self) -> bool:
        found = self._file.stat()
        return (
            self._file.read_text() == self.token
            and stat.S_IMODE(found.st_mode) == 0o644
            and found.st_uid == os.getuid()
            and not list(self._drop.iterdir())
        )

    def empty_drop(self) -> None:
        """After a control, which is meant to get there."""
        for path in self._drop.iterdir():
            path.unlink()

    def _listen(self) -> Iterator[tuple[str, socket.socket]]:
        inet = ((socket.AF_INET, "127.0.0.1", "4"), (socket.AF_INET6, "::1", "6"))
        for family, address, suffix in inet:
            for kind, name in ((socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")):
                with suppress(OSError):  # a host without IPv6
                    yield name + suffix, _bound(family, kind, (address, 0))
        yield "unix", _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(self._folder / "socket"))
        (self._folder / "socket").chmod(0o777)
        yield (
            "abstract",
            _bound(socket.AF_UNIX, socket.SOCK_STREAM, b"\0canary-" + os.urandom(4).hex().encode()),
        )
        with suppress(OSError, AttributeError):  # a kernel without vsock
            yield "vsock", _bound(socket.AF_VSOCK, socket.SOCK_STREAM, (socket.VMADDR_CID_ANY, 0xBE11))

    def _start_decoy(self) -> subprocess.Popen[bytes]:
        """A process of an ordinary user with the token in its environment."""
        decoy: subprocess.Popen[bytes] = subprocess.Popen(
            ["sleep", "infinity"],
            env={"PATH": os.defpath, "DECOY_SECRET": self.token},
            cwd="/",
            **demoted(),  # type: ignore[call-overload]
        )
        return decoy


def _bound(family: int, kind: int, address: object) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        sock.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _was_reached(sock: socket.socket) -> bool:
    reached = False
    while True:
        try:
            if sock.type == socket.SOCK_DGRAM:
                sock.recv(1)
            else:
                sock.accept()[0].close()
        except BlockingIOError:
            return reached
        reached = True


@dataclass(frozen=True)
class Standing:
    """What is on the host because of us, at one moment.

    An engine keeps jars in stock that nothing has run in. Each is a process without children and a cgroup;
    a run takes one and the engine makes another, so these may be others after a run, but not more.
    """

    processes: dict[int, str]
    """Every process below this one."""
    parents: frozenset[int]
    """Those that have children."""
    held: dict[int, tuple[int, int]]
    """How many descriptors each of them holds, and how many mounts its namespace has."""
    descriptors: dict[int, str]
    """Our own."""
    threads: int
    mounts: tuple[str, ...]
    """Of a jar, on the host itself."""
    cgroups: frozenset[str]
    containers: frozenset[str]
    strays: frozenset[str]
    """Files in places where everybody may write, that a jar's user owns or that carry our mark."""

    @classmethod
    def now(cls, mark: str, claims: list[Path]) -> Standing:
        below = list(descendants(os.getpid()))
        return cls(
            processes={pid: _read(f"/proc/{pid}/comm").strip() for pid in below},
            parents=frozenset(pid for pid in below if next(descendants(pid), None)),
            held={pid: (len(_listed(f"/proc/{pid}/fd")), len(_mounts_of(pid))) for pid in below},
            descriptors=_descriptors(),
            threads=threading.active_count(),
            mounts=tuple(line for line in _lines("/proc/self/mountinfo") if "/workspace/" in line),
            cgroups=frozenset(
                f"{folder}/{name}"
                for claim in claims
                for folder, below, _ in os.walk(claim)
                for name in below
            ),
            containers=frozenset(containers()),
            strays=frozenset(_strays(mark)),
        )

    def more_than(self, before: Standing) -> list[str]:
        """What is here now and was not before, stock that was replaced aside."""
        more = []
        new = self.processes.keys() - before.processes.keys()
        gone = before.processes.keys() - self.processes.keys()
        if len(new) > len(gone) or new & self.parents:
            more.append(
                f"processes {[(pid, self.processes[pid]) for pid in new]} for {len(gone)} that are gone"
            )
        if len(self.cgroups) > len(before.cgroups):
            more.append(f"cgroups {sorted(self.cgroups - before.cgroups)}")
        if self.containers != before.containers:
            more.append(f"containers {sorted(self.containers - before.containers)}")
        for pid in self.parents & before.processes.keys():  # stock may just have been in the making
            if any(now > then for now, then in zip(self.held[pid], before.held[pid], strict=True)):
                more.append(f"process {pid}: descriptors and mounts {before.held[pid]}, now {self.held[pid]}")
        if self.descriptors != before.descriptors:
            more.append(f"descriptors {self.descriptors.items() ^ before.descriptors.items()}")
        if self.threads > before.threads:
            more.append(f"{self.threads} threads, not {before.threads}")
        more += [f"mount {line}" for line in self.mounts if line not in before.mounts]
        more += [f"file {path}" for path in self.strays - before.strays]
        return more


def _mounts_of(pid: int) -> list[str]:
    """Without those of the docker engine, which serves others too; its containers are looked at by name."""
    return [line for line in _lines(f"/proc/{pid}/mountinfo") if "/docker/" not in line]


def descendants(pid: int) -> Iterator[int]:
    for task in _listed(f"/proc/{pid}/task"):
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            yield int(child)
            yield from descendants(int(child))


def _descriptors() -> dict[int, str]:
    found = {}
    for fd in _listed("/proc/self/fd"):
        with suppress(OSError):  # the one that listed them
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def cgroup_claims() -> list[Path]:
    """Our engines' own places in the host's cgroup trees; each jar is a directory in each."""
    claims: list[Path] = []
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup"):
            for folder, below, _ in os.walk(before.split()[4]):  # unlike rglob, while others' come and go
                claims += [Path(folder, name) for name in below if name.startswith(f"belljar-{os.getpid()}-")]
    return claims


def _strays(mark: str) -> Iterator[str]:
    for place in SHARED_PLACES:
        with suppress(OSError):
            for entry in os.scandir(place):
                with suppress(OSError):
                    if mark in entry.name or entry.stat(follow_symlinks=False).st_uid in JAR_UIDS:
                        yield entry.path


def _listed(path: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(path)
    return []


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def _lines(path: str) -> list[str]:
    return _read(path).splitlines()
