"""The guest: pid 1 of a jar, the only thing of ours inside it.

One loop over the channel to the host and the pipes of running programs. The host decides
everything (deadlines, caps, what to collect); the guest only does and tells. It is undumpable, so
a program of the same uid can read neither its memory nor its descriptors, and as pid 1 of its
namespace it cannot be killed from inside. When the channel closes, it ends, and with it the jar.

    put      write one file into an area, body as DATA
    exec     run a program; its output as OUT/ERR; END when it is over and, for a one-shot run,
             every other process of the jar is dead
    signal   signal everything in the jar but the guest
    collect  send back what was left, file by file

Standard library only: it is sent into the jar as text.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from belljar.guest import protocol, tree
from belljar.guest.program import Program, Sink

_PR_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None)
PROGRESS_S = 0.1
"""How often a program that writes past its cap is reported."""


class Agent:
    def __init__(
        self, read_fd: int, write_fd: int, areas: dict[str, int], proc_fd: int, timings: dict[str, float]
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._areas = areas
        """Directory descriptors of inputs, work and artifacts, opened before any program ran."""
        self._proc_fd = proc_fd
        self._timings = timings
        self._decoder = protocol.Decoder()
        self._programs: dict[int, Program] = {}
        self._next_program: Program | None = None
        """Forked ahead, for the first program of the jar."""
        self._uploads: dict[int, tree.Upload] = {}
        self._staged: dict[bytes, tuple[int, int, int]] = {}
        """Path to (inode, size, mtime) of what the host put into `work`; the rest is the program's."""
        self._null_fd = os.open("/dev/null", os.O_WRONLY)
        self._wake_fd, self._wake_write = os.pipe()
        self._poll = select.poll()
        self._readers: dict[int, tuple[Program, Sink, int]] = {}
        self._writers: dict[int, Program] = {}
        self._reported = 0.0

    def serve(self) -> None:
        """Work until the channel closes."""
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        for fd in (self._wake_fd, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # pid 1 does not hear what it has no handler for
        self._poll.register(self._read_fd, select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)
        self._tell(protocol.NOTE, 0, ready=self._timings)
        self._next_program = Program(self._proc_fd)
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._read_fd:
                    if not self._hear():
                        return
                elif fd == self._wake_fd:
                    os.read(self._wake_fd, 4096)
                    self._reap()
                elif fd in self._readers:
                    self._pass_on(*self._readers[fd])
                elif fd in self._writers:
                    self._feed(self._writers[fd])

    # The channel

    def _hear(self) -> bool:
        data = os.read(self._read_fd, 1 << 18)
        for frame in self._decoder.feed(data):
            if frame.kind == protocol.OPEN:
                request = frame.json()
                self._operations[request["op"]](self, frame.stream, request)
            elif frame.stream in self._uploads:
                self._upload(frame)
            elif frame.stream in self._programs:
                self._stdin(self._programs[frame.stream], frame)
        return bool(data)

    def _send(self, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[os.write(self._write_fd, view) :]

    def _tell(self, kind: int, stream: int, **fields: object) -> None:
        self._send(protocol.encode_json(kind, stream, **fields))

    # put

    def _put(self, stream: int, request: dict[str, Any]) -> None:
        try:
            self._uploads[stream] = tree.Upload(
                self._areas[request["area"]], os.fsencode(request["path"]), request["mode"]
            )
        except tree.Refusal as refusal:
            self._tell(protocol.END, stream, error=refusal.reason)

    def _upload(self, frame: protocol.Frame) -> None:
        upload = self._uploads[frame.stream]
        try:
            if frame.kind == protocol.DATA:
                upload.write(frame.payload)
                return
            # Dated back, because the clock of file times is coarse: a change made in the same tick shows.
            written = upload.close(time.time_ns() - 10**10)
        except tree.Refusal as refusal:
            upload.abandon()
            self._tell(protocol.END, frame.stream, error=refusal.reason)
        else:
            if upload.dirfd == self._areas["work"]:
                self._staged[upload.path] = (written.st_ino, written.st_size, written.st_mtime_ns)
            self._tell(protocol.END, frame.stream)
        del self._uploads[frame.stream]

    # exec

    def _exec(self, stream: int, request: dict[str, Any]) -> None:
        self._tell(protocol.NOTE, stream, started=True)
        program = self._next_program or Program(self._proc_fd)
        self._next_program = None
        program.start(stream, request)
        self._programs[stream] = program
        for kind, sink in ((protocol.OUT, program.stdout), (protocol.ERR, program.stderr)):
            self._readers[sink.fd] = (program, sink, kind)
            self._poll.register(sink.fd, select.POLLIN)

    def _stdin(self, program: Program, frame: protocol.Frame) -> None:
        if frame.kind == protocol.DATA:
            program.stdin_pending += frame.payload
        else:
            program.stdin_ended = True
        self._feed(program)

    def _feed(self, program: Program) -> None:
        fd = program.stdin_fd
        if fd < 0:
            program.stdin_pending.clear()
            return
        wanted = program.push_stdin() and bool(program.stdin_pending)
        if wanted and fd not in self._writers:
            self._writers[fd] = program
            self._poll.register(fd, select.POLLOUT)
        elif not wanted and fd in self._writers:
            self._forget_writer(fd)

    def _forget_writer(self, fd: int) -> None:
        del self._writers[fd]
        self._poll.unregister(fd)

    def _pass_on(self, program: Program, sink: Sink, kind: int) -> None:
        data = sink.read(self._null_fd)
        if data is None:
            self._poll.unregister(sink.fd)
            del self._readers[sink.fd]
            os.close(sink.fd)
        elif data:
            self._send(protocol.encode(kind, program.stream, data))
        if sink.total > sink.cap and time.monotonic() - self._reported > PROGRESS_S:
            self._reported = time.monotonic()
            self._tell(protocol.NOTE, program.stream, out=program.stdout.total, err=program.stderr.total)

    def _reap(self) -> None:
        """Every process that ended: the programs, and orphans that became ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._next_program is not None and self._next_program.pid == pid:
                self._next_program = None  # killed before it was needed; another is forked then
            for program in [p for p in self._programs.values() if p.pid == pid]:
                self._finish(program, status)

    def _finish(self, program: Program, status: int) -> None:
        """Kill what is left, so that nothing can race, write or hold a pipe; then say how it ended."""
        _kill_all(signal.SIGKILL)
        _wait_for_all()
        for sink in (program.stdout, program.stderr):
            while sink.fd in self._readers:  # no writer lives, so this comes to an end
                self._pass_on(*self._readers[sink.fd])
        if program.stdin_fd in self._writers:
            self._forget_writer(program.stdin_fd)
        program.close_stdin()
        del self._programs[program.stream]
        self._tell(
            protocol.END,
            program.stream,
            status=status,
            out=program.stdout.total,
            err=program.stderr.total,
            full=any(_is_full(place) for place in (self._areas["work"], "/tmp", "/dev/shm")),
        )

    def _signal(self, stream: int, request: dict[str, Any]) -> None:
        _kill_all(request["signal"])
        self._tell(protocol.END, stream)

    # collect

    def _collect(self, stream: int, request: dict[str, Any]) -> None:
        sender = _Sender(self._send, stream, request)
        if request["paths"] is None:
            sender.send_area(self._areas["work"], b"", self._staged)
            sender.send_area(self._areas["artifacts"], b"artifacts/", {})
        else:
            for path in request["paths"]:
                sender.send_file(self._areas["work"], os.fsencode(path), b"")
        self._tell(protocol.END, stream)

    _operations: dict[str, Callable[[Agent, int, dict[str, Any]], None]] = {
        "put": _put,
        "exec": _exec,
        "signal": _signal,
        "collect": _collect,
    }


class _Sender:
    """Sends files within the caps; everything left out is named with its reason."""

    def __init__(self, send: Callable[[bytes], None], stream: int, caps: dict[str, Any]) -> None:
        self._send = send
        self._stream = stream
        self._files_left = caps["max_files"]
        self._bytes_left = caps["max_bytes"]
        self._max_depth = caps["max_depth"]

    def send_area(self, area: int, prefix: bytes, staged: dict[bytes, tuple[int, int, int]]) -> None:
        # Twice the cap: staged files are listed too, and what is left out should be named.
        for entry in tree.listing(area, max_entries=2 * self._files_left + 1000, max_depth=self._max_depth):
            if isinstance(entry, tree.Skip):
                self._skip(prefix + entry.path, entry.reason)
            elif staged.get(entry.path) != (entry.inode, entry.size, entry.mtime_ns):
                self.send_file(area, entry.path, prefix)

    def send_file(self, area: int, path: bytes, prefix: bytes) -> None:
        if self._files_left <= 0:
            self._skip(prefix + path, "too_many")
            return
        try:
            fd, _ = tree.open_regular(area, path, self._bytes_left)
        except tree.Refusal as refusal:
            self._skip(prefix + path, refusal.reason)
            return
        self._files_left -= 1
        self._note(file=os.fsdecode(prefix + path))
        try:
            for chunk in tree.read_chunks(fd, self._bytes_left):
                self._bytes_left -= len(chunk)
                self._send(protocol.encode(protocol.DATA, self._stream, chunk))
            self._send(protocol.encode(protocol.EOF, self._stream))
        except tree.Refusal as refusal:  # instead of the EOF: what was sent so far does not count
            self._skip(prefix + path, refusal.reason)
        finally:
            os.close(fd)

    def _skip(self, path: bytes, reason: str) -> None:
        self._note(skipped=os.fsdecode(path), reason=reason)

    def _note(self, **fields: object) -> None:
        self._send(protocol.encode_json(protocol.NOTE, self._stream, **fields))


def _kill_all(number: int) -> None:
    try:
        os.kill(-1, number)  # from pid 1: every process of the namespace but this one
    except ProcessLookupError:
        pass


def _wait_for_all() -> None:
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _is_full(place: int | str) -> bool:
    try:
        space = os.statvfs(place)
    except OSError:
        return False
    return space.f_bavail == 0 or (space.f_files > 0 and space.f_favail == 0)
