"""Jars as forks of the launcher: the host's half of the embedded engine.

`launcher.py` has the theory of operation. Here: start it, ask it for jars, check what it made.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.engines import seccomp
from belljar.engines.base import Probe
from belljar.engines.jail import posture, probe
from belljar.engines.jail.cgroup import Cgroup, limits_for
from belljar.engines.jail.delegation import Claim, NoDelegation, claim
from belljar.engines.jail.uids import Uids
from belljar.engines.jail.watchdog import Watchdog
from belljar.engines.link import GuestJar, Link
from belljar.engines.transport import SocketTransport
from belljar.errors import EngineUnavailable, GrantNotEnforceable
from belljar.guest import bundle
from belljar.models import Grant, Language

START_S = 20.0
"""How long the launcher may take to come up, preloading included."""
MAKE_S = 10.0
_MODULES = (
    "belljar.guest.bundle",
    *bundle.GUEST,
    *(
        f"belljar.engines.jail.{name}"
        for name in (
            "syscalls",
            "cgroup",
            "userns",
            "network",
            "mounts",
            "privileges",
            "rootfs",
            "boot",
            "launcher",
        )
    ),
)
_TYPESCRIPT = """\
if command -v esbuild >/dev/null; then
    script=/tmp/$(basename "$0" .ts).mjs
    esbuild "$0" "--outfile=$script" \\
        --log-level=error --bundle --platform=node --format=esm --sourcemap=inline || exit
    exec node --enable-source-maps "$script" "$@"
elif node --experimental-strip-types --no-warnings -e 0 2>/dev/null; then
    exec node --experimental-strip-types --no-warnings "$0" "$@"
fi
echo 'belljar: no TypeScript here: it takes esbuild, or node 22.6 or newer' >&2
exit 127
"""
"""Run by `sh -c` with the script as $0. Which way works is seen inside, where it has to work."""
_COMMON_ENV = {
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",  # caches would come back as artifacts
}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Told the CPU limit, numeric libraries do not start a thread per core of the host."""
_WARM_ENV = {**_COMMON_ENV, **dict.fromkeys(_THREADS, "1")}  # the launcher must stay single-threaded
_WEAKER = {"memory": "rlimit and watchdog", "pids": "rlimit", "cpu": "affinity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What a jar sees as its root; `rootfs.enter` builds it."""

    rootfs: str | None
    python_prefix: str | None
    """The host's Python where it is not below /usr; seen as /opt/python."""
    python: str
    """The interpreter, as named inside."""
    env: Mapping[str, str]
    """The launcher's environment, and what every program has at least."""

    def has(self, program: str) -> bool:
        root = Path(self.rootfs or "/")
        return any((root / folder / program).exists() for folder in ("usr/local/bin", "usr/bin", "bin"))


def host_tree() -> Tree:
    """The host's /usr and the Python that runs us."""
    prefix = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    path = "/usr/local/bin:/usr/bin:/bin"
    if prefix == "/usr" or prefix.startswith("/usr/"):
        return Tree(rootfs=None, python_prefix=None, python=executable, env={"PATH": path})
    inside = "/opt/python/" + os.path.relpath(executable, prefix)
    env = {"PATH": f"{os.path.dirname(inside)}:{path}"}
    if list(Path(prefix, "lib").glob("libpython*.so*")):
        env["LD_LIBRARY_PATH"] = "/opt/python/lib"  # its own idea of the place is the host's
    return Tree(rootfs=None, python_prefix=prefix, python=inside, env=env)


def rootfs_tree(rootfs: str) -> Tree:
    """Any root directory with a python3 in it."""
    for inside in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(rootfs, inside.lstrip("/")).exists():
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
            return Tree(rootfs=os.path.realpath(rootfs), python_prefix=None, python=inside, env=env)
    raise EngineUnavailable(f"sandbox.jail.rootfs: there is no python3 in {rootfs}")


@dataclass(slots=True)
class _Making:
    """What the launcher has said of one jar so far."""

    made: asyncio.Future[tuple[int, dict[str, float]]]
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class JailEngine:
    name = "jail"

    def __init__(
        self,
        *,
        rootfs: str | None = None,
        preload: tuple[str, ...] = (),
        cgroup_parent: str | None = None,
        uid_base: int = 2_000_000,
    ) -> None:
        self._tree = rootfs_tree(rootfs) if rootfs else host_tree()
        self._preload = preload
        self._cgroup_parent = cgroup_parent
        self._uid_base = uid_base
        self._starting = asyncio.Lock()
        self._launcher: _Launcher | None = None
        self._claim: Claim | None = None
        self._no_cgroup = ""
        self._uids: Uids | None = None
        self._blank: tuple[str, int] | None = None
        """Name and uid of the jar that the launcher has forked ahead."""
        self._namespaces = posture.namespaces("self")

    async def probe(self) -> Probe:
        return await asyncio.to_thread(probe.probe, self._cgroup_parent)

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        found: dict[Language, tuple[str, ...]] = {Language.PYTHON: (self._tree.python,)}
        if self._tree.has("bash"):
            found[Language.BASH] = ("bash",)
        if self._tree.has("node"):
            found[Language.JAVASCRIPT] = ("node",)
            found[Language.TYPESCRIPT] = ("sh", "-c", _TYPESCRIPT)
        return found

    async def create(self, grant: Grant) -> GuestJar:
        if grant.network.enabled:
            raise GrantNotEnforceable("the jail engine has no way out to the network yet", field="network")
        launcher = await self._ready_launcher()
        if self._claim is None and not grant.accept_weaker_limits:
            raise GrantNotEnforceable(
                f"memory, pids and cpu cannot be limited: {self._no_cgroup}; delegate a cgroup to this user "
                "(see `belljar doctor`), or accept weaker limits (sandbox.jail.accept_weaker_limits)",
                field="limits",
            )
        return await self._make(launcher, grant)

    async def close(self) -> None:
        if self._launcher is not None:
            await self._launcher.close()
            self._launcher = None
        self._forget_blank()
        if self._claim is not None:
            await asyncio.to_thread(self._claim.release)
            self._claim = None
        if self._uids is not None:
            self._uids.close()
            self._uids = None

    async def _ready_launcher(self) -> _Launcher:
        async with self._starting:
            if self._uids is None:
                self._uids = Uids(self._uid_base)
                try:
                    self._claim = await asyncio.to_thread(claim, self._cgroup_parent)
                except NoDelegation as reason:
                    self._no_cgroup = str(reason)
            if self._launcher is None or self._launcher.dead:
                self._forget_blank()
                self._launcher = await _Launcher.start(
                    self._tree, self._preload, self._claim.parents if self._claim else {}
                )
            return self._launcher

    def _forget_blank(self) -> None:
        if self._blank is not None and self._uids is not None:
            self._uids.give_back(self._blank[1])
        self._blank = None

    async def _make(self, launcher: _Launcher, grant: Grant) -> GuestJar:
        assert self._uids is not None
        limits = grant.limits
        name, uid = self._blank or self._name()
        self._blank = None
        wanted = limits_for(limits.memory_mb, limits.pids, limits.cpu_cores)
        order = {
            "jar": name,
            "uid": uid,
            "cgroup": wanted,
            "workspace_mb": limits.workspace_mb,
            "workspace_files": limits.workspace_files,
            "tmp_mb": limits.tmp_mb,
            "nofile": limits.nofile,
            # The cgroup's limit, which counts what it refuses, is to be met first; the guest is one process.
            "processes": limits.pids + 1 if self._claim is None else 2 * limits.pids + 1,
            # Where no cgroup holds them, weaker layers do.
            "data_bytes": None if self._claim else limits.memory_mb << 20,
            "cpus": None if self._claim else math.ceil(limits.cpu_cores),
        }
        try:
            link, pidfd, gone, timings = await launcher.make(name, order)
        except BaseException:
            self._uids.give_back(uid)
            raise
        pid = _host_pid(pidfd)
        cgroup, watchdog = None, None
        if self._claim is not None:
            cgroup = Cgroup(self._claim.parents, name)
            counters = cgroup.counters
        else:
            watchdog = Watchdog(pid, limits.memory_mb << 20, lambda: link.open("signal", signal=9))
            counters = watchdog.counters

        def kill() -> None:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

        def kill_programs() -> None:
            if cgroup is not None:
                cgroup.kill_all_but(pid)

        async def destroy() -> None:
            if watchdog is not None:
                watchdog.close()
            await gone.wait()
            os.close(pidfd)
            if self._uids is not None:
                self._uids.give_back(uid)

        jar = GuestJar(
            grant,
            link,
            base_env=self._environment(limits.cpu_cores),
            held_by=self._claim.held_by if self._claim else _WEAKER,
            counters=counters,
            kill=kill,
            kill_programs=kill_programs,
            destroy=destroy,
            timings=timings,
        )
        try:
            jar.posture = posture.check(
                pid,
                uid=uid if os.getuid() == 0 else None,
                hosts=self._namespaces,
                limits=wanted if cgroup else None,
                held=cgroup.limits() if cgroup else None,
            )
        except BaseException as error:
            await jar.destroy()
            if isinstance(error, OSError):
                raise EngineUnavailable("the jar died before it could be checked") from error
            raise
        if self._blank is None and not launcher.dead:
            # While this one is used, so that the next need not wait for its namespaces.
            self._blank = self._name()
            launcher.fork_ahead(*self._blank)
        return jar

    def _name(self) -> tuple[str, int]:
        assert self._uids is not None
        return f"jar-{secrets.token_hex(8)}", self._uids.take()

    def _environment(self, cpu_cores: float) -> dict[str, str]:
        return {
            **self._tree.env,
            **_COMMON_ENV,
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            **dict.fromkeys(_THREADS, str(max(1, round(cpu_cores)))),
        }


class _Launcher:
    """The host's handle on one launcher process."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, errors: Any) -> None:
        self._process = process
        self._control = control
        self._errors = errors
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._making: dict[str, _Making] = {}
        self.dead = False

    @classmethod
    async def start(cls, tree: Tree, preload: tuple[str, ...], parents: Mapping[str, int]) -> _Launcher:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = tempfile.TemporaryFile()
        settings = {
            "tree": {
                "rootfs": tree.rootfs,
                "python_prefix": tree.python_prefix,
                "python": tree.python,
                "env": {**tree.env, **_WARM_ENV},
            },
            "preload": preload,
            "control": theirs.fileno(),
            "cgroups": dict(parents),
            "seccomp": base64.b64encode(
                seccomp.compile_profile(seccomp.load_profile(), platform.machine())
            ).decode(),
        }
        process = await asyncio.to_thread(_spawn, settings, theirs, list(parents.values()), errors)
        theirs.close()
        launcher = cls(process, ours, errors)
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, launcher._hear)
        try:
            async with asyncio.timeout(START_S):
                await launcher._ready
        except TimeoutError:
            await launcher.close()
            raise EngineUnavailable(f"the jail's launcher did not start within {START_S:.0f} s") from None
        except BaseException:
            await launcher.close()
            raise
        return launcher

    async def make(
        self, name: str, order: Mapping[str, object]
    ) -> tuple[Link, int, asyncio.Event, dict[str, float]]:
        loop = asyncio.get_running_loop()
        making = self._making[name] = _Making(loop.create_future())
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno()])
        except OSError as error:
            ours.close()
            self._lose(f"the launcher cannot be reached: {error}")
            raise EngineUnavailable("the jail's launcher is gone") from error
        finally:
            theirs.close()
        link = Link()
        SocketTransport(ours, link)
        pidfd = None
        try:
            async with asyncio.timeout(MAKE_S):
                pidfd, timings = await making.made
                note = (await link.next(0)).json()
            if "ready" not in note:
                raise EngineUnavailable(f"the jar could not be sealed: {note.get('failed')}")
        except BaseException as error:
            link.close()
            if pidfd is not None:
                await making.gone.wait()
                os.close(pidfd)
            if isinstance(error, TimeoutError):
                raise EngineUnavailable(f"no jar could be made within {MAKE_S:.0f} s") from None
            raise
        return link, pidfd, making.gone, {**timings, **note["ready"]}

    def fork_ahead(self, name: str, uid: int) -> None:
        """Have a blank ready under that name. If it fails, `make` will, and say why."""
        with suppress(OSError):
            self._control.send(json.dumps({"jar": name, "uid": uid}).encode())

    async def close(self) -> None:
        """The launcher ends when its socket does, and every jar with it."""
        self._lose("the engine was closed")
        await asyncio.to_thread(self._process.wait)
        self._errors.close()

    def _hear(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message:
            self._lose(self._last_words())
            return
        news = json.loads(message)
        if "ready" in news:
            self._ready.set_result(None)
            return
        making = self._making.get(news["jar"])
        if making is None:  # a blank that nobody asked for yet
            return
        if "made" in news and not making.made.done():
            making.made.set_result((fds[0], news["made"]))
        elif "failed" in news and not making.made.done():
            making.made.set_exception(EngineUnavailable(f"no jar could be made: {news['failed']}"))
        elif "gone" in news:
            making.gone.set()
            del self._making[news["jar"]]
        else:
            for fd in fds:
                os.close(fd)

    def _lose(self, why: str) -> None:
        if self.dead:
            return
        self.dead = True
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        error = EngineUnavailable(f"the jail's launcher ended: {why}")
        _fail(self._ready, error)
        for making in self._making.values():
            _fail(making.made, error)
            making.gone.set()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _spawn(
    settings: Mapping[str, object], control: socket.socket, inherited: list[int], errors: Any
) -> subprocess.Popen[bytes]:
    """The host's Python with the bundle on a descriptor; `boot` takes it from there."""
    fd = os.memfd_create("belljar", 0)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(bundle.pack(_MODULES, {**settings, "bundle": fd}))
        os.lseek(fd, 0, os.SEEK_SET)
        return subprocess.Popen(
            bundle.command(sys.executable, fd, "belljar.engines.jail.boot", "-I", "-S"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[control.fileno(), fd, *inherited],
            env={},
            cwd="/",
        )
    finally:
        os.close(fd)


def _fail(future: asyncio.Future[Any], error: EngineUnavailable) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: nobody may be waiting for it


def _host_pid(pidfd: int) -> int:
    """A pidfd's process as the host numbers it; the launcher's own number is of its namespace."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise EngineUnavailable("the jar died before it could be checked")
