"""The host's handle on the launcher: start it, ask it for jars, hear what becomes of them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from belljar.engines import seccomp
from belljar.engines.jail.trees import Tree
from belljar.engines.link import Link
from belljar.engines.transport import SocketTransport
from belljar.errors import EngineUnavailable
from belljar.guest import bundle

START_S = 20.0
"""How long the launcher may take to come up, preloading included."""
MAKE_S = 10.0
_GONE = "the jail's launcher is gone"
_MODULES = (
    "belljar.guest.bundle",
    *bundle.GUEST,
    "belljar.engines.cgroup",
    "belljar.engines.kernelfs",
    *(
        f"belljar.engines.jail.{name}"
        for name in (
            "syscalls",
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


class Made(NamedTuple):
    """A jar whose guest is ready."""

    link: Link
    pidfd: int
    pid: int
    """As the host numbers it; the launcher's own number is of its namespace."""
    gone: asyncio.Future[Mapping[str, int]]
    """Done when the jar is dead and its cgroup removed: what that had counted, empty if nobody can tell."""
    timings: dict[str, float]


@dataclass(slots=True)
class _Making:
    """What the launcher has said of one jar so far."""

    made: asyncio.Future[tuple[int, dict[str, float]]]
    gone: asyncio.Future[Mapping[str, int]]


class LauncherProcess:
    """The host's handle on one launcher process."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, errors: IO[bytes]) -> None:
        self._process = process
        self._control = control
        self._errors = errors
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._making: dict[str, _Making] = {}
        self.dead = False

    @classmethod
    async def start(
        cls, tree: Tree, preload: tuple[str, ...], parents: Mapping[str, int], env: Mapping[str, str]
    ) -> LauncherProcess:
        settings = {
            "tree": {
                "rootfs": tree.rootfs,
                "python_prefix": tree.python_prefix,
                "python": tree.python,
                "env": {**tree.env, **env},
            },
            "preload": preload,
            "cgroups": dict(parents),
            "seccomp": seccomp.compile_profile(seccomp.load_profile(), platform.machine()),
        }
        with ExitStack() as unless_started:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            unless_started.enter_context(ours)
            with theirs:
                errors = unless_started.enter_context(tempfile.TemporaryFile())
                process = await asyncio.to_thread(_spawn, settings, theirs, list(parents.values()), errors)
            unless_started.pop_all()
        launcher = cls(process, ours, errors)
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, launcher._hear)
        try:
            async with asyncio.timeout(START_S):
                await launcher._ready
        except BaseException as error:
            process.kill()  # while it preloads, it does not see its socket end
            await launcher.close()
            if isinstance(error, TimeoutError):
                raise EngineUnavailable(
                    f"the jail's launcher did not start within {START_S:.0f} s; what it preloads may hang"
                ) from None
            raise
        return launcher

    async def make(self, name: str, order: Mapping[str, object]) -> Made:
        if self.dead:
            raise EngineUnavailable(_GONE)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        making = self._making[name] = _Making(loop.create_future(), loop.create_future())
        link = Link()
        SocketTransport(ours, link)
        try:
            async with asyncio.timeout(MAKE_S):
                await self._send(json.dumps(order).encode(), theirs)
                pidfd, timings = await making.made
                note = (await link.next(0)).json()
            if "ready" not in note:
                raise EngineUnavailable(f"the jar could not be sealed: {note.get('failed')}")
            pid = _host_pid(pidfd)
        except BaseException as error:
            theirs.close()
            link.close()  # the guest ends with its channel
            await asyncio.wait({making.gone})
            # Asked of the future: a caller may be cancelled when it is there, but not yet in our hands.
            if making.made.done() and not making.made.cancelled() and making.made.exception() is None:
                os.close(making.made.result()[0])
            if isinstance(error, TimeoutError):
                raise EngineUnavailable(f"no jar could be made within {MAKE_S:.0f} s") from None
            raise
        return Made(link, pidfd, pid, making.gone, {**timings, **note["ready"]})

    async def _send(self, message: bytes, channel: socket.socket) -> None:
        with channel:
            while not self.dead:
                try:
                    socket.send_fds(self._control, [message], [channel.fileno()])
                    return
                except BlockingIOError:  # many orders are waiting there already
                    await asyncio.sleep(0.001)
                except OSError as error:
                    self._lose(f"it cannot be reached: {error.strerror}")
        raise EngineUnavailable(_GONE)

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
            if fds:
                making.made.set_result((fds[0], news["made"]))
            else:  # the kernel had no number for it
                _fail(making.made, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        elif "failed" in news and not making.made.done():
            making.made.set_exception(EngineUnavailable(f"no jar could be made: {news['failed']}"))
        elif "gone" in news:
            making.gone.set_result(news["counted"])
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
            making.gone.set_result({})
        self._making.clear()

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
            file.write(bundle.pack(_MODULES, {**settings, "control": control.fileno(), "bundle": fd}))
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


def _host_pid(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="utf-8") as file:
        for line in file:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1  # it died already, which its check will find


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: nobody may be waiting for it
