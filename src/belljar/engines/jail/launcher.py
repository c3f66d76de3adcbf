"""The launcher: forks one jar per run from a warm Python.

Theory of operation. Four processes, from the most to the least trusted:

    host       the service or the command line. Starts one launcher, talks to it over a socket of
               packets: "make a jar" with one end of a channel; "it is made" with a pidfd; "it is
               gone" with what its cgroup had counted. Never forks itself: it has threads and an event
               loop. It may also ask for a blank ahead of time: a jar without limits, files or a channel,
               that waits for its order.
    launcher   this program. Pid 1 of its own pid namespace, in a read-only tree with nothing of
               the host in it (`boot`, `rootfs`). Has preloaded modules and holds directories of
               the cgroup parents. Single-threaded, so that forking it is safe.
    guest      pid 1 of a jar, forked by the launcher into new namespaces; walks through `_enclose`
               and, once its order is there, `_seal` below, and ends as `guest.agent` without any
               privilege. A step that fails ends the jar: nothing warns and goes on.
    program    what the caller sent. Forked by the guest, of the guest's uid.

The host closes its end or dies: the launcher's socket ends, the launcher ends, and the kernel kills
everything in its pid namespace. The guest's pidfd lets the host wait for and kill exactly that jar.
Standard library and our own modules from the bundle only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NamedTuple, NoReturn

from belljar.engines.cgroup import Cgroup, Doors, Parents
from belljar.engines.jail import mounts, network, privileges, userns
from belljar.engines.jail import syscalls as sc
from belljar.guest import protocol
from belljar.guest.agent import Agent

MAX_MESSAGE = 1 << 16

_NAMESPACES = (
    sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS
)


def main(settings: dict[str, Any]) -> NoReturn:
    os.close(settings["bundle"])
    sys.path.remove("")  # of `python3 -c`; a script's folder takes its place
    for module in settings["preload"]:
        importlib.import_module(module)
    # What is here now is shared by every fork: keep the collector from touching, and so copying, it.
    gc.collect()
    sc.release_free_memory()
    gc.freeze()
    gc.disable()
    Launcher(settings).serve()
    os._exit(0)


class Launcher:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._parents: Parents = settings["cgroups"]
        self._seccomp = settings["seccomp"]
        self._masks = mounts.masks()
        self._control = socket.socket(fileno=settings["control"])
        self._jars: dict[int, str] = {}
        """Pid of each guest to the name of its jar."""
        self._blanks: dict[str, Blank] = {}

    def serve(self) -> None:
        """Until the host is gone."""
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        self._tell({"ready": os.getpid()})
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 1)
                if not message:
                    return
                self._obey(json.loads(message), fds)

    def _tell(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def _obey(self, order: dict[str, Any], fds: list[int]) -> None:
        name = order["jar"]
        try:
            if name not in self._blanks:
                self._blanks[name] = self._fork(name, order["uid"])
            if fds:
                self._make(self._blanks.pop(name), order, fds[0])
        except OSError as error:
            # A child that gets no order ends by itself, and is reaped and cleaned up after as any other.
            if fds:
                self._tell({"jar": name, "failed": f"launcher: {error}"})
            if name not in self._jars.values():
                self._clean(name)
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, name: str, uid: int) -> Blank:
        """A jar that knows nothing yet of what it is for."""
        clock = _Clock()
        cgroup = Cgroup(self._parents, name)
        doors = Doors(None, [])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            cgroup.create()
            doors = cgroup.open_doors()
            clock.mark("cgroup")
            pid = sc.fork_into(_NAMESPACES, doors.v2)
            if pid == 0:
                ours.close()
                self._become_guest(theirs, doors)
            clock.mark("fork")
            self._jars[pid] = name
            userns.map_ids(pid, uid)
            ours.send(b"mapped")
            return Blank(name, pid, ours, clock.seconds)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            doors.close()

    def _make(self, blank: Blank, order: dict[str, Any], channel_fd: int) -> None:
        """Limits first, then the order: there is no moment in which a program runs without them."""
        with blank.orders:
            if self._parents:
                Cgroup(self._parents, blank.name).set_limits(order["cgroup"])
            pidfd = os.pidfd_open(blank.pid)
            try:
                socket.send_fds(blank.orders, [json.dumps(order).encode()], [channel_fd])
                self._tell({"jar": blank.name, "made": blank.timings}, (pidfd,))
            finally:
                os.close(pidfd)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._jars.pop(pid, None)
            if name is not None:
                blank = self._blanks.pop(name, None)
                if blank is not None:
                    blank.orders.close()
                self._clean(name)

    def _clean(self, name: str) -> None:
        cgroup = Cgroup(self._parents, name)
        news = {"jar": name, "gone": "", "counted": cgroup.counters() if self._parents else {}}
        try:
            cgroup.remove()
        except OSError as error:
            news["gone"] = f"cgroup is still in use: {error}"
        self._tell(news)

    def _become_guest(self, orders: socket.socket, doors: Doors) -> NoReturn:
        """In the child; never returns."""
        channel_fd = None
        try:
            signal.set_wakeup_fd(-1)
            clock = _Clock()
            proc_fd = self._enclose(orders, doors, clock)
            message, fds, _, _ = socket.recv_fds(orders, MAX_MESSAGE, 1)
            if fds:  # else the launcher has no use for this jar any more
                channel_fd = fds[0]
                self._seal(json.loads(message), channel_fd, proc_fd, clock).serve()
        except BaseException as error:
            if channel_fd is not None:
                text = f"{type(error).__name__}: {error}"
                os.write(channel_fd, protocol.encode_json(protocol.NOTE, 0, failed=text[:1000]))
        finally:
            os._exit(0)

    def _enclose(self, orders: socket.socket, doors: Doors, clock: _Clock) -> int:
        """The containment that is the same for every jar. Returns the guest's own descriptor of /proc."""
        doors.walk_in()
        if orders.recv(16) != b"mapped":
            raise OSError("the launcher gave up on this jar")
        clock.mark("join")
        userns.become_inside()
        # After the move: the root of the namespace is where we are now, so a program sees "/".
        sc.unshare(sc.CLONE_NEWCGROUP)
        socket.sethostname("belljar")
        network.raise_loopback()
        clock.mark("namespaces")
        proc_fd = mounts.mount_proc(self._masks)
        mounts.mount_terminals()
        userns.hold_back(proc_fd)
        clock.mark("proc")
        sc.drop_bounding_set()
        clock.mark("bounding set")
        return proc_fd

    def _seal(self, order: dict[str, Any], channel_fd: int, proc_fd: int, clock: _Clock) -> Agent:
        """The rest, by order. Up to `give_up` the child is all-powerful, over its own jar only."""
        clock.mark("wait")
        areas = mounts.mount_workspace(order["workspace_mb"], order["workspace_files"], order["tmp_mb"])
        clock.mark("mounts")
        privileges.close_descriptors([channel_fd, proc_fd, *areas.values()])
        privileges.set_rlimits(order["nofile"], order["processes"], order["data_bytes"])
        privileges.stay_on(order["cpus"])
        privileges.give_up(self._seccomp)
        clock.mark("seccomp")
        os.chdir(mounts.WORKSPACE + "/work")
        return Agent(channel_fd, channel_fd, areas, proc_fd, clock.seconds)


class Blank(NamedTuple):
    """A jar that waits for its order."""

    name: str
    pid: int
    orders: socket.socket
    timings: dict[str, float]


class _Clock:
    """How long each part of the sealing took, for `belljar bench`."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def mark(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = now - self._last
        self._last = now
