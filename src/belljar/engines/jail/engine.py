"""Jars as forks of the launcher: the host's half of the embedded engine.

`launcher.py` has the theory of operation. Here: decide what to ask for, and check what was made.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from belljar.engines import inspection
from belljar.engines.base import Probe
from belljar.engines.cgroup import Cgroup, limits_for
from belljar.engines.environment import TYPESCRIPT, WARM, environment
from belljar.engines.following import PATIENCE_S
from belljar.engines.guestjar import GuestJar
from belljar.engines.jail import posture, probe
from belljar.engines.jail.delegation import SHORTAGES, Claim, NoDelegation, claim
from belljar.engines.jail.launcher_process import LauncherProcess
from belljar.engines.jail.trees import Tree, host_tree, rootfs_tree
from belljar.engines.jail.uids import Uids
from belljar.engines.jail.watchdog import Watchdog
from belljar.engines.tunnels import NO_WAY_OUT, WayOut
from belljar.errors import BadRequest, EngineUnavailable, GrantNotEnforceable
from belljar.models import Grant, Language

_WEAKER = {"memory": "rlimit and watchdog", "pids": "rlimit", "cpu": "affinity"}


_LEAST = {"memory_mb": 8, "nofile": 32, "workspace_files": 5}
"""What a jar needs for itself: memory and descriptors of the guest, folders of the workspace and a script."""


class JailEngine:
    name = "jail"

    def __init__(
        self,
        *,
        rootfs: str | None = None,
        preload: tuple[str, ...] = (),
        cgroup_parent: str | None = None,
        uid_base: int = 2_000_000,
        way_out: WayOut | None = None,
    ) -> None:
        self._tree = rootfs_tree(rootfs) if rootfs else host_tree()
        self._interpreters = _interpreters(self._tree)
        self._preload = preload
        self._cgroup_parent = cgroup_parent
        self._uid_base = uid_base
        self._way_out = way_out
        self._opening: asyncio.Task[LauncherProcess] | None = None
        self._jars: set[GuestJar] = set()
        self._claim: Claim | None = None
        self._no_cgroup = ""
        self._uids: Uids | None = None
        self._blank: tuple[str, int] | None = None
        """Name and uid of the jar that the launcher has forked ahead."""
        self._namespaces = inspection.namespaces("self")

    async def probe(self) -> Probe:
        return await asyncio.to_thread(probe.probe, self._cgroup_parent)

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        return self._interpreters

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        if (fault := _too_small(grant)) is not None:
            limit, why = fault
            raise BadRequest(why, field=f"limits.{limit}")
        return grant  # it has no images

    async def create(self, grant: Grant) -> GuestJar:
        if grant.network.enabled and self._way_out is None:
            raise GrantNotEnforceable(NO_WAY_OUT, field="network")
        if (fault := _too_small(grant)) is not None:
            limit, why = fault
            raise GrantNotEnforceable(why, field=limit)
        launcher = await self._ready_launcher()
        if self._claim is None and not grant.accept_weaker_limits:
            raise GrantNotEnforceable(
                f"memory, pids and cpu cannot be limited: {self._no_cgroup}; delegate a cgroup to this user "
                "(see `belljar doctor`), or accept weaker limits (sandbox.jail.accept_weaker_limits)",
                field="limits",
            )
        return await self._make(launcher, grant)

    async def close(self) -> None:
        for jar in list(self._jars):
            await jar.destroy()
        if self._opening is not None:
            opening, self._opening = self._opening, None
            with suppress(EngineUnavailable):
                await (await opening).close()
        self._forget_blank()
        if self._claim is not None:
            await asyncio.to_thread(self._claim.release)
            self._claim = None
        self._no_cgroup = ""
        if self._uids is not None:
            self._uids.close()
            self._uids = None

    async def _ready_launcher(self) -> LauncherProcess:
        """The one that runs, or a new one. A caller that is cancelled does not stop it for the others."""
        if self._opening is None or (self._opening.done() and not _lives(self._opening)):
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> LauncherProcess:
        self._forget_blank()
        try:
            if self._uids is None:
                self._uids = Uids(self._uid_base)
            if self._claim is None and not self._no_cgroup:
                try:
                    self._claim = await asyncio.to_thread(claim, self._cgroup_parent)
                except NoDelegation as reason:
                    self._no_cgroup = str(reason)
            parents = self._claim.parents if self._claim else {}
            return await LauncherProcess.start(self._tree, self._preload, parents, WARM)
        except OSError as error:
            raise _refused(error) from error

    def _forget_blank(self) -> None:
        if self._blank is not None and self._uids is not None:
            self._uids.give_back(self._blank[1])
        self._blank = None

    async def _make(self, launcher: LauncherProcess, grant: Grant) -> GuestJar:
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
            link, pidfd, pid, gone, timings = await launcher.make(name, order)
        except BaseException as error:
            self._uids.give_back(uid)
            if isinstance(error, OSError):
                raise _refused(error) from error
            raise
        cgroup, watchdog = None, None
        if self._claim is not None:
            cgroup = Cgroup(self._claim.parents, name)
        else:
            watchdog = Watchdog(pid, limits.memory_mb << 20, lambda: link.let("signal", signal=9))

        def counters() -> Mapping[str, int]:
            if cgroup is not None:
                return cgroup.remember(gone.result()) if gone.done() else cgroup.counters()
            assert watchdog is not None
            return watchdog.counters()

        def kill() -> None:
            if pidfd >= 0:  # a clock may still ask when all is over, and the number be another's
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

        def kill_programs() -> None:
            if cgroup is not None:
                with suppress(OSError):  # it may be gone; the guest is told as well
                    cgroup.kill_all_but(pid)

        async def destroy() -> None:
            nonlocal pidfd
            if watchdog is not None:
                watchdog.close()
            await asyncio.wait({gone})
            os.close(pidfd)
            pidfd = -1
            self._jars.discard(jar)
            if self._uids is not None:
                self._uids.give_back(uid)

        jar = _Jail(
            grant,
            link,
            base_env={**self._tree.env, **environment(limits.cpu_cores)},
            held_by=self._claim.held_by if self._claim else _WEAKER,
            counters=counters,
            kill=kill,
            kill_programs=kill_programs,
            destroy=destroy,
            timings=timings,
            way_out=self._way_out,
            gone=gone,
        )
        self._jars.add(jar)
        try:
            expected = posture.Expected(
                uid=uid if os.getuid() == 0 else None,
                namespaces=self._namespaces,
                nofile=limits.nofile,
                cgroup=name if cgroup else None,
                controllers=self._claim.parents.keys() if self._claim else (),
                limits=wanted if cgroup else {},
            )
            jar.posture = posture.check(pid, expected, cgroup.limits() if cgroup else {})
            await jar.open_network()
        except BaseException as error:
            await jar.destroy()
            if isinstance(error, OSError):
                if error.errno in SHORTAGES:
                    raise _refused(error) from error
                raise EngineUnavailable("the jar died before it could be checked") from error
            raise
        if self._blank is None and not launcher.dead:
            # While this one is used, so that the next need not wait for its namespaces.
            with suppress(EngineUnavailable):  # no uid is left for it now
                self._blank = self._name()
                launcher.fork_ahead(*self._blank)
        return jar

    def _name(self) -> tuple[str, int]:
        assert self._uids is not None
        return f"jar-{secrets.token_hex(8)}", self._uids.take()


class _Jail(GuestJar):
    def __init__(self, *args: Any, gone: asyncio.Future[Mapping[str, int]], **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._gone = gone

    async def settle(self) -> None:
        """Its cgroup may go at any moment; the launcher tells what it had counted to the end."""
        self._kill()
        await asyncio.wait({self._gone}, timeout=PATIENCE_S)


def _interpreters(tree: Tree) -> Mapping[Language, tuple[str, ...]]:
    found: dict[Language, tuple[str, ...]] = {Language.PYTHON: (tree.python,)}
    if tree.has("bash"):
        found[Language.BASH] = ("bash",)
    if tree.has("node"):
        found[Language.JAVASCRIPT] = ("node",)
        found[Language.TYPESCRIPT] = ("sh", "-c", TYPESCRIPT)
    return found


def _too_small(grant: Grant) -> tuple[str, str] | None:
    """A limit that no jar could live with, and why."""
    for limit, least in _LEAST.items():
        granted = getattr(grant.limits, limit)
        if granted < least:
            return limit, f"{limit} is {granted}, but a jar takes {least} for itself; grant more"
    return None


def _lives(opening: asyncio.Task[LauncherProcess]) -> bool:
    return not opening.cancelled() and opening.exception() is None and not opening.result().dead


def _refused(error: OSError) -> EngineUnavailable:
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    fix = "`belljar doctor` looks for the cause"
    if error.errno in SHORTAGES:
        fix = "let this service have more (open files, memory), or fewer runs at a time"
    return EngineUnavailable(f"no jar could be made: {what}; {fix}")
