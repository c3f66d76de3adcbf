"""One container from create to remove: its streams, its first process, its cgroup."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from belljar.engines import inspection
from belljar.engines.cgroup import Cgroup, limits_for
from belljar.engines.docker import labels, posture
from belljar.engines.docker.api import Api, Failed
from belljar.engines.docker.channel import Attached
from belljar.engines.docker.container import WORKSPACE, check_readback, writable
from belljar.errors import EngineUnavailable
from belljar.models import Limits

_LAST_WORDS = 2000
_REMOVED_S = 2.0
"""How long the engine may take to remove a container whose process is dead."""
_FORCED_S = 30.0
"""And how long when it is told to; then its entry is the reaper's."""
_NOTHING = {"memory_peak": 0, "oom_kills": 0, "cpu_us": 0, "pids_peak": 0, "pids_refused": 0}


class Container:
    """Made and attached to, then started; whatever happens, `remove` leaves nothing of it."""

    def __init__(self, api: Api, name: str, config: Mapping[str, Any], *, gvisor: bool = False) -> None:
        self._api = api
        self._gvisor = gvisor
        self.name = name
        self.config = config
        self.id = ""
        self.timings: dict[str, float] = {}
        self._errors = bytearray()
        self._streams: Attached | None = None
        self._pidfd = -1
        self._pid = -1
        self._bell = -1
        self._rung = 0
        """How often: when memory ran out, and once when the cgroup went."""
        self._folders: Sequence[int] = ()
        self._cgroup: Cgroup | None = None
        self._counted: Mapping[str, int] = _NOTHING

    async def create(self, streams: asyncio.Protocol, aside: Callable[[bytes], None] | None = None) -> None:
        """There and attached to, not yet running. Without `aside`, stderr is kept for an error message."""
        begun = time.perf_counter()
        creating = asyncio.create_task(
            self._api.ask("POST", "containers/create", body=self.config, name=self.name)
        )
        try:
            self.id = (await asyncio.shield(creating))["Id"]
        except asyncio.CancelledError:
            await asyncio.wait({creating})  # what is there can be removed; what is about to be there cannot
            raise
        self._streams = await self._api.attach(self.id, streams, aside or self._remember)
        self.timings["create"] = time.perf_counter() - begun

    async def start(self) -> None:
        begun = time.perf_counter()
        await self._api.ask("POST", f"containers/{self.id}/start")
        self.timings["start"] = time.perf_counter() - begun

    def send(self, data: bytes) -> None:
        """To its stdin."""
        assert self._streams is not None
        self._streams.write(data)

    def send_eof(self) -> None:
        assert self._streams is not None
        self._streams.write_eof()

    async def signal(self, name: str) -> None:
        """To its first process, by the engine; what is over already needs none."""
        with suppress(Failed):
            await self._api.ask("POST", f"containers/{self.id}/kill", signal=name)

    async def wait(self) -> int:
        """Until it has run and is over; its exit code, 128 and more for a signal."""
        answer = await self._api.wait(self.id, "next-exit")
        return int(answer["StatusCode"])

    async def settle(self) -> None:
        """Until it is over: whether memory was what ended it, the engine may know if nobody else does."""
        await self._api.wait(self.id, "not-running")
        state = (await self._api.ask("GET", f"containers/{self.id}/json"))["State"]
        if state["OOMKilled"] and not self._counted["oom_kills"]:
            self._counted = {**self._counted, "oom_kills": 1}

    async def look(self) -> Mapping[str, Any]:
        """The engine's word on it, which must be what was asked for."""
        found: Mapping[str, Any] = await self._api.ask("GET", f"containers/{self.id}/json")
        check_readback(self.config, found)
        return found

    def take_hold(self, pid: int) -> None:
        """Of the process and its cgroup, so that both can be reached whatever the engine does."""
        try:
            self._pidfd = os.pidfd_open(pid)
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._cgroup, parents = posture.find_cgroup(pid, self.id)
        except OSError as error:
            raise EngineUnavailable(f"the container died at once{self.last_words()}") from error
        self._pid = pid
        self._folders = tuple(parents.values())
        with suppress(OSError):  # only root may
            self._cgroup.ring(self._bell)

    def check(self, limits: Limits, host: Mapping[str, str], *, gvisor: bool) -> str:
        """Digest of what the live process was found to be."""
        assert self._cgroup is not None
        wanted = limits_for(limits.memory_mb, limits.pids, limits.cpu_cores)
        try:
            held = self._cgroup.limits()
            if gvisor:
                digest = posture.check_sandbox(self._pid, wanted=wanted, held=held)
            else:
                digest = posture.check(
                    self._pid,
                    host=host,
                    nofile=limits.nofile,
                    writable=writable(self.config),
                    wanted=wanted,
                    held=held,
                )
            with suppress(PermissionError):
                # The same numbers once more: version 1 counts what waits in sockets apart, and runc does not
                # pass on a limit for that. Only root may.
                self._cgroup.set_limits(wanted)
        except OSError as error:
            raise EngineUnavailable("the container died before it could be checked") from error
        return digest

    def counters(self) -> Mapping[str, int]:
        """What its cgroup has counted; when it is gone, what it had counted when it was last asked."""
        if self._cgroup is not None and self._folders:
            counted = self._cgroup.counters()
            with suppress(BlockingIOError):
                self._rung += os.eventfd_read(self._bell)
            told = max(self._counted["oom_kills"], self._rung > 1)  # by the engine, or the bell
            self._counted = {**counted, "oom_kills": max(told, counted["oom_kills"])}
        return self._counted

    def is_full(self) -> bool:
        """Whether its workspace has no room left. Only of a container that ran nothing but our guest."""
        try:
            space = os.statvfs(f"/proc/{self._pid}/root{WORKSPACE}")
        except OSError:
            return False
        return space.f_bavail == 0 or space.f_favail == 0

    def kill(self) -> None:
        """At once, without the engine where we may; else the engine does it when the container is removed.

        gVisor's kernel is the engine's to kill: of one with many processes that dies otherwise, Docker 20.10
        never learns that it is over.
        """
        self.counters()
        if self._streams is not None:
            self._streams.abort()
        if not self._gvisor:
            self._kill_first_process()

    def _kill_first_process(self) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def kill_programs(self) -> None:
        """Everything but the first process. Not for gVisor: its kernel needs the helpers that are there."""
        if self._cgroup is not None:
            with suppress(OSError):  # only root may; the guest is told as well
                self._cgroup.kill_all_but(self._pid)

    async def remove(self) -> None:
        """Raises Failed where the engine is away: the processes are dead, the container's entry is not."""
        self.kill()
        was_killed = self._pidfd >= 0 and not self._gvisor
        try:
            if was_killed and self.config["HostConfig"]["AutoRemove"]:
                # The engine removes it by itself, and sooner than it would if it were asked to.
                with suppress(Failed, TimeoutError):
                    async with asyncio.timeout(_REMOVED_S):
                        await labels.until_gone(self._api, self.name)
                    return
            async with asyncio.timeout(_FORCED_S):
                await labels.remove(self._api, self.name)
        except TimeoutError:
            raise Failed(f"the docker engine does not remove {self.name}") from None
        finally:
            self._kill_first_process()
            for fd in (*self._folders, self._pidfd, self._bell):
                if fd >= 0:
                    os.close(fd)
            self._folders, self._pidfd, self._bell = (), -1, -1

    def last_words(self) -> str:
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return f": {ascii(lines[-1])[1:-1]}" if lines else ""

    def _remember(self, data: bytes) -> None:
        self._errors += data
        del self._errors[:-_LAST_WORDS]


def lacks(error: Failed, program: str) -> bool:
    """Whether a container did not start because its image has no such program."""
    said = str(error)
    return f'"{program}"' in said and ("not found" in said or "no such file" in said)


def host_namespaces() -> Mapping[str, str]:
    return inspection.namespaces("self")
