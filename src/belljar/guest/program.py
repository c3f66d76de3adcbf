"""One running program in the jar: its pipes, its start, its output within the caps.

Descriptors are plain numbers here: a file object of the guest would close a program's descriptor
when the forked copy of it is collected. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import marshal
import os

from belljar.guest import cells, protocol, warm

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
    from typing import Any, NoReturn
else:
    import _signal as signal  # without the enumerations, which bring eight other modules

CANNOT_RUN = 126
"""What a program that is there and cannot be run ends with, as in a shell; one that is not there with 127."""
PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_SPLICE_F_NONBLOCK = 2
_PR_SET_DUMPABLE = 4
_PASSES = 1000
"""At most, until one finds nobody new: who forks to be away when the signal comes is met sooner or later."""


_libc = ctypes.CDLL(None)


class Sink:
    """One output stream: the first `cap` bytes are passed on, the rest is counted and discarded."""

    def __init__(self, read_fd: int) -> None:
        self.fd = read_fd
        self.cap = 0
        self.total = 0
        self.patient = False
        """Past the cap nothing is discarded: it is not read before there is room again."""

    @property
    def full(self) -> bool:
        return self.total >= self.cap

    def read(self, null_fd: int) -> bytes | None:
        """What is to be passed on (may be empty), or None at the end of the stream."""
        try:
            if self.full and not self.patient:
                return self._discard(null_fd)
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return b""  # there was something, but the program took it back through /proc
        except OSError:
            return None  # a terminal that nobody has open any more
        if not data:
            return None
        kept = data if self.patient else data[: self.cap - self.total]
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

    def __init__(
        self, proc_fd: int, oom_fd: int | None, *, control: bool = False, terminal: bool = False
    ) -> None:
        """`oom_fd`: of `open_oom_score`. `control`: with a way to hand it code and hear what became of it.
        `terminal`: its standard streams are a terminal of its own, pty(7).

        Raises:
            OSError: no process can be had, or no terminal, or no descriptor; none is left open then.
        """
        self._proc_fd = proc_fd
        self.kept = False
        """It belongs to a session: what it leaves running when it ends goes on."""
        self.stdin_open = False
        """More may come for it to read, after what came with it."""
        self.is_terminal = terminal
        self.stream = self.speaks_on = -1
        self.stdin_pending = bytearray()
        self.stdin_ended = False
        self.results_fd = self._cells_fd = -1
        self._decoder = protocol.Decoder()
        made: list[int] = []
        try:
            self._make(made, oom_fd, control)
        except OSError:
            for fd in made:
                os.close(fd)
            raise

    def _make(self, made: list[int], oom_fd: int | None, control: bool) -> None:
        """`made`: descriptors, as long as there is no process that they are for."""

        def pair(ends: tuple[int, int]) -> tuple[int, int]:
            made.extend(ends)
            return ends

        inherited: tuple[int, ...] = ()
        if control:
            cells_read, self._cells_fd = pair(os.pipe())
            self.results_fd, results_write = pair(os.pipe())
            inherited = (cells_read, results_write)
        if self.is_terminal:
            stdout_read, stdin_read = pair(os.openpty())
            self.stdin_fd = os.dup(stdout_read)
            made.append(self.stdin_fd)
            stdout_write = stdin_read
        else:
            stdin_read, self.stdin_fd = pair(os.pipe())
            stdout_read, stdout_write = pair(os.pipe())
        stderr_read, stderr_write = pair(os.pipe())
        orders_read, self._orders_fd = pair(os.pipe())
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
        self.pid = _fork_first_victim(oom_fd)
        if self.pid == 0:
            errors = stdout_write if self.is_terminal else stderr_write
            _enter((stdin_read, stdout_write, errors), orders_read, inherited, self.is_terminal)
        for fd in {stdin_read, stdout_write, stderr_write, orders_read, *inherited}:
            os.close(fd)

    def start(self, stream: int, spec: dict[str, Any]) -> None:
        self.stream = self.speaks_on = stream
        self.kept = spec.get("kept", False)
        self.stdin_open = spec.get("stdin_open", False)
        self.stdout.patient = self.is_terminal
        if self.is_terminal:
            self.resize(*spec["terminal"])
        self.stdout.cap = spec["stdout_cap"]
        self.stderr.cap = spec["stderr_cap"]
        orders = memoryview(marshal.dumps(spec))
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

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal; the kernel tells what runs in it."""
        import struct
        import termios

        fcntl.ioctl(self.stdin_fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def close_stdin(self) -> None:
        if self.stdin_fd >= 0:
            os.close(self.stdin_fd)
            self.stdin_fd = -1

    def speak_on(self, stream: int, stdout_cap: int, stderr_cap: int) -> None:
        """From now on its output belongs to this stream, counted anew."""
        self.speaks_on = stream
        for sink, cap in ((self.stdout, stdout_cap), (self.stderr, stderr_cap)):
            sink.total, sink.cap = 0, cap

    def be_silent(self) -> None:
        """What it writes from now on is nobody's."""
        self.speak_on(self.stream, 0, 0)

    def hand_over(self, frame: bytes) -> None:
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self._cells_fd, view) :]
        except BrokenPipeError:
            pass  # it is dead; the reaper says how

    def results(self) -> Iterator[protocol.Frame]:
        """What it says of the code it was handed. ProtocolError when that makes no sense."""
        return self._decoder.feed(os.read(self.results_fd, 1 << 18))

    def close_control(self) -> None:
        for fd in (self._cells_fd, self.results_fd):
            os.close(fd)

    def signal(self, number: int, *, alone: bool = False) -> None:
        """To it and to what it started, but for what has made a session of its own."""
        told: set[int] = set()
        # What it starts when it is told to end is its answer; what it starts when it is killed dies, too.
        for _ in range(_PASSES if number == signal.SIGKILL else 1):
            left = {self.pid, *(() if alone else _members(self._proc_fd, self.pid))} - told
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            told |= left


def _members(proc_fd: int, session: int) -> Iterator[int]:
    """Processes whose session a program leads; setsid(2)."""
    for name in os.listdir(proc_fd):
        if name.isdigit():
            try:
                fd = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=proc_fd)
            except OSError:
                continue  # it has just ended
            try:
                if int(os.read(fd, 4096).rpartition(b")")[2].split()[3]) == session:
                    yield int(name)
            except OSError:
                pass
            finally:
                os.close(fd)


def open_oom_score(proc_fd: int) -> int | None:
    """The guest's own oom_score_adj, to be written before every fork. Only while the guest is dumpable."""
    try:
        return os.open("self/oom_score_adj", os.O_RDWR, dir_fd=proc_fd)
    except OSError:
        return None  # the guest may then die before its programs, which is seen as OOM too


def _fork_first_victim(oom_fd: int | None) -> int:
    """os.fork() of a child that the kernel ends before the guest when memory runs out.

    The score is inherited, so the child never holds a /proc that can be written by, and cannot take it back.
    """
    if oom_fd is None:
        return os.fork()
    score = os.pread(oom_fd, 16, 0)
    os.write(oom_fd, b"900")
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            os.write(oom_fd, score)
    return pid


def _enter(
    stdio: tuple[int, int, int], orders_fd: int, inherited: tuple[int, ...], terminal: bool
) -> NoReturn:
    """In the forked child: leave everything of the guest behind, wait to be told what to run, run it."""
    spec: dict[str, Any] = {}
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, fd in enumerate((*stdio, orders_fd, *inherited)):
            os.dup2(fd, number)  # a pipe made just now is above 5, so none is overwritten
        os.closerange(4 + len(inherited), 1 << 30)
        if terminal:
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # The guest is undumpable; a program may look at itself, now that nothing of the guest's is open.
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        os.umask(0o022)
        warm.prepare()
        spec = marshal.loads(_read_all(3))
        os.close(3)
        _change_to(spec["cwd"])
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


def _change_to(folder: str) -> None:
    try:
        os.chdir(folder)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)


def _run(spec: dict[str, Any]) -> NoReturn:
    argv = spec["argv"]
    if spec["warm"]:
        os.environ.clear()
        os.environ.update(spec["env"])
        if spec.get("cells"):
            cells.serve(4, 5)
        # What comes after the cap is counted, and kept by nobody.
        by_line = spec["stdout_cap"] if spec["env"].get("PYTHONUNBUFFERED") else 0
        warm.run_as_main(argv[0], argv[1:], by_line=by_line)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; programs expect them
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], argv, spec["env"])


def _fail(name: str, error: OSError) -> NoReturn:
    message = f"belljar: cannot run {ascii(name)}: {os.strerror(error.errno or errno.EIO)}\n"
    os.write(2, message.encode())
    os._exit(127 if error.errno == errno.ENOENT else CANNOT_RUN)
