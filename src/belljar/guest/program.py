"""One running program in the jar: its pipes, its start, its output within the caps.

Descriptors are plain numbers here: a file object of the guest would close a program's descriptor
when the forked copy of it is collected. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import os
import signal
from typing import Any, NoReturn

from belljar.guest import warm

PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_SPLICE_F_NONBLOCK = 2
_PR_SET_DUMPABLE = 4


_libc = ctypes.CDLL(None)


class Sink:
    """One output stream: the first `cap` bytes are passed on, the rest is counted and discarded."""

    def __init__(self, read_fd: int) -> None:
        self.fd = read_fd
        self.cap = 0
        self.total = 0

    @property
    def full(self) -> bool:
        return self.total >= self.cap

    def read(self, null_fd: int) -> bytes | None:
        """What is to be passed on (may be empty), or None at the end of the stream."""
        try:
            if self.full:
                return self._discard(null_fd)
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return b""  # there was something, but the program took it back through /proc
        if not data:
            return None
        kept = data[: self.cap - self.total]
        self.total += len(data)
        return kept

    def _discard(self, null_fd: int) -> bytes | None:
        # splice moves page references: a program that writes gigabytes costs us no copying.
        try:
            count = os.splice(self.fd, null_fd, PIPE_BYTES, flags=_SPLICE_F_NONBLOCK)
        except BlockingIOError:
            raise
        except (AttributeError, OSError):
            count = len(os.read(self.fd, PIPE_BYTES))
        self.total += count
        return b"" if count else None


class Program:
    """A child that is ready to become a program, and then is one.

    It is forked before it is known what to run, while the host still checks the jar: most of what a
    fork costs is over when `start` tells it.
    """

    def __init__(self, proc_fd: int) -> None:
        stdin_read, self.stdin_fd = os.pipe()
        stdout_read, stdout_write = os.pipe()
        stderr_read, stderr_write = os.pipe()
        orders_read, self._orders_fd = os.pipe()
        self.stream = -1
        self.stdin_pending = bytearray()
        self.stdin_ended = False
        self.stdout = Sink(stdout_read)
        self.stderr = Sink(stderr_read)
        for read_fd in (stdout_read, stderr_read):
            os.set_blocking(read_fd, False)
            try:
                fcntl.fcntl(read_fd, _F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                pass  # the user's quota of large pipes is spent; small ones are only slower
        os.set_blocking(self.stdin_fd, False)
        # The child's own collections then leave our objects, and so the pages it shares with us, alone.
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            _enter((stdin_read, stdout_write, stderr_write), orders_read, proc_fd)
        for fd in (stdin_read, stdout_write, stderr_write, orders_read):
            os.close(fd)

    def start(self, stream: int, spec: dict[str, Any]) -> None:
        self.stream = stream
        self.stdout.cap = spec["stdout_cap"]
        self.stderr.cap = spec["stderr_cap"]
        orders = memoryview(json.dumps(spec).encode())
        try:
            while orders:
                orders = orders[os.write(self._orders_fd, orders) :]
        except BrokenPipeError:
            pass  # it is dead already, for want of memory; the reaper says how
        os.close(self._orders_fd)

    def push_stdin(self) -> bool:
        """Write what fits; false when the pipe is finished with and closed."""
        try:
            while self.stdin_pending:
                written = os.write(self.stdin_fd, memoryview(self.stdin_pending)[: 1 << 16])
                del self.stdin_pending[:written]
        except BlockingIOError:
            return True
        except OSError:  # the program closed its end
            self.stdin_pending.clear()
            self.stdin_ended = True
        if self.stdin_ended:
            self.close_stdin()
            return False
        return True

    def close_stdin(self) -> None:
        if self.stdin_fd >= 0:
            os.close(self.stdin_fd)
            self.stdin_fd = -1


def _enter(stdio: tuple[int, int, int], orders_fd: int, proc_fd: int) -> NoReturn:
    """In the forked child: leave everything of the guest behind, wait to be told what to run, run it."""
    spec: dict[str, Any] = {}
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, fd in enumerate((*stdio, proc_fd, orders_fd)):
            os.dup2(fd, number)  # a pipe made just now is above 4, so none is overwritten
        os.closerange(5, 1 << 30)
        # The guest is undumpable; a program may look at itself, now that nothing of the guest's is open.
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        _offer_to_oom_killer(3)
        os.close(3)
        os.umask(0o022)
        warm.prepare()
        spec = json.loads(_read_all(4))
        os.close(4)
        os.makedirs(spec["cwd"], exist_ok=True)
        os.chdir(spec["cwd"])
        os.environ.clear()
        os.environ.update(spec["env"])
        _run(spec)
    except OSError as error:
        _fail(spec["argv"][0], error)
    finally:
        os._exit(70)  # never back into the guest's loop


def _read_all(fd: int) -> bytes:
    data = bytearray()
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    return bytes(data)


def _offer_to_oom_killer(proc_fd: int) -> None:
    """Make the program the victim before the guest; the program cannot take this back."""
    try:
        fd = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc_fd)
    except OSError:
        return  # the guest may then die first, which is seen as OOM too
    try:
        os.write(fd, b"900")
    finally:
        os.close(fd)


def _run(spec: dict[str, Any]) -> NoReturn:
    argv = spec["argv"]
    if spec["warm"]:
        warm.run_as_main(argv[0], argv[1:])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; programs expect them
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], argv, spec["env"])


def _fail(name: str, error: OSError) -> NoReturn:
    """As a shell would: 127 when there is no such program, 126 when it cannot be run."""
    message = f"belljar: cannot run {ascii(name)}: {os.strerror(error.errno or errno.EIO)}\n"
    os.write(2, message.encode())
    os._exit(127 if error.errno == errno.ENOENT else 126)
