"""A jar in memory: for tests of what stands above an engine, belljar's own and its users'.

Nothing runs on the host. The host's half is the real one (`link.GuestJar`: clocks, caps, verdicts).
The guest is pretended: files are a dictionary, programs are bash scripts of a few commands (`do_…`
below), joined by `&&`, `||`, `;`, `&` and newlines, with `$NAME`, `$?`, `$$`, `<`, `>`, `>>`, `>&2`. Real
bash runs them the same way, except that here quotes do not keep `$` from being replaced. Other programs,
such as a Python that says what a test wants to hear, are given as functions:

    async def python3(process: Process) -> int:
        await process.out(b"42\\n")
        return 0

    engine = FakeEngine(programs={"python3": python3})
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import posixpath
import re
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from belljar.engines.base import WORK, Area, Check, Probe
from belljar.engines.link import GuestJar, Link
from belljar.errors import GrantNotEnforceable
from belljar.guest import protocol, tree
from belljar.models import Grant, Language, Limits

__all__ = ["FakeEngine", "Files", "Process"]

_WORKSPACE = posixpath.dirname(WORK)
_AREAS = {area: f"{_WORKSPACE}/{area}" for area in Area}
_ENV = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"}
_NO_COUNTERS = {"memory_peak": 0, "oom_kills": 0, "cpu_us": 0, "pids_peak": 2, "pids_refused": 0}
_INTERPRETERS = {Language.PYTHON: "python3", Language.BASH: "bash", Language.JAVASCRIPT: "node"}
_PAGE = 4096
_CHUNK = 1 << 16
_PROGRESS_S = 0.1


class FakeEngine:
    name = "fake"

    def __init__(self, *, programs: Mapping[str, Program] | None = None) -> None:
        self._programs = programs or {}
        self._jars: set[GuestJar] = set()

    async def probe(self) -> Probe:
        return Probe(self.name, (Check("memory", True, "there is always enough for a fake"),))

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        return {
            language: (name,) for language, name in _INTERPRETERS.items() if name in ("bash", *self._programs)
        }

    async def create(self, grant: Grant) -> GuestJar:
        if grant.network.enabled:
            raise GrantNotEnforceable("the fake engine has no network", field="network")
        guest = _Guest(grant.limits, self._programs)

        async def destroy() -> None:
            self._jars.discard(jar)

        jar = GuestJar(
            grant,
            guest.link,
            base_env=_ENV,
            held_by=dict.fromkeys(("memory", "pids", "cpu"), "nothing"),
            counters=lambda: _NO_COUNTERS,
            kill=guest.abort,
            destroy=destroy,
            timings={},
        )
        jar.posture = hashlib.sha256(b"fake").hexdigest()
        self._jars.add(jar)
        return jar

    async def close(self) -> None:
        for jar in list(self._jars):
            await jar.destroy()


class Files:
    """The jar's tree by absolute path: bytes are a file, a string is a link, None is a folder.

    Links are never followed. A file that is written again is another object, so a change can be seen.
    """

    def __init__(self, max_bytes: int, max_files: int) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self.nodes: dict[str, bytearray | str | None] = dict.fromkeys(
            ("/", "/tmp", _WORKSPACE, *_AREAS.values())
        )

    @property
    def full(self) -> bool:
        return self._room() < _PAGE or len(self.nodes) >= self._max_files

    def read(self, path: str) -> bytes:
        node = self.nodes.get(path, "")
        if not isinstance(node, bytearray):
            raise _error(errno.EISDIR if node is None else errno.ENOENT, path)
        return bytes(node)

    def add(self, path: str, node: bytearray | str | None) -> None:
        parent = self.nodes.get(posixpath.dirname(path), "")
        if parent is not None:
            raise _error(errno.ENOTDIR if parent else errno.ENOENT, path)
        if self.nodes.get(path, "") is None:
            raise _error(errno.EISDIR, path)
        if path not in self.nodes and len(self.nodes) >= self._max_files:
            raise _error(errno.ENOSPC, path)
        self.nodes[path] = node

    def make_folders(self, path: str) -> None:
        for folder in [*map(str, reversed(PurePosixPath(path).parents)), path]:
            if folder not in self.nodes:
                self.add(folder, None)
            elif self.nodes[folder] is not None:
                raise _error(errno.ENOTDIR, folder)

    def append(self, path: str, content: bytearray, data: bytes) -> None:
        """As much as there is room for."""
        room = self._room() + -len(content) % _PAGE
        content += data[:room]
        if len(data) > room:
            raise _error(errno.ENOSPC, path)

    def beneath(self, folder: str) -> list[str]:
        """Relative to it, shallow ones first."""
        found = [path.removeprefix(folder + "/") for path in self.nodes if path.startswith(folder + "/")]
        return sorted(found, key=lambda path: (path.count("/"), path))

    def _room(self) -> int:
        sizes = (len(node) for node in self.nodes.values() if isinstance(node, bytearray))
        return max(0, self._max_bytes - sum(-(-size // _PAGE) * _PAGE for size in sizes))


class _Guest(asyncio.WriteTransport):
    """Answers the host as `guest.agent` does. It is its own wire: writing to it is being heard."""

    def __init__(self, limits: Limits, programs: Mapping[str, Program]) -> None:
        super().__init__()
        self.link = Link()
        self._loop = asyncio.get_running_loop()
        self._programs = programs
        self._files = Files(limits.workspace_mb << 20, limits.workspace_files)
        self._decoder = protocol.Decoder()
        self._uploads: dict[int, tuple[str, bytearray]] = {}
        self._staged: dict[str, bytearray] = {}
        self._shells: dict[int, _Shell] = {}
        self._alive = True
        self.link.connection_made(self)

    def write(self, data: Any) -> None:
        for frame in self._decoder.feed(bytes(data)):
            if frame.kind == protocol.OPEN:
                request = frame.json()
                getattr(self, f"_{request.pop('op')}")(frame.stream, **request)
            elif frame.stream in self._uploads:
                self._upload(frame)
            elif frame.stream in self._shells:
                stdin = self._shells[frame.stream].stdin
                stdin.feed_data(frame.payload) if frame.kind == protocol.DATA else stdin.feed_eof()

    def abort(self) -> None:
        if self._alive:
            self._signal(0, signal.SIGKILL)
            self._alive = False
            self._loop.call_soon(self.link.connection_lost, None)

    def _send(self, frame: bytes) -> None:
        if self._alive:
            self._loop.call_soon(self.link.data_received, frame)

    def _tell(self, kind: int, stream: int, **fields: object) -> None:
        self._send(protocol.encode_json(kind, stream, **fields))

    def _put(self, stream: int, area: str, path: str, mode: int) -> None:
        name = f"{_AREAS[Area(area)]}/{path}"
        try:
            if posixpath.normpath(name) != name or "\0" in name:
                raise _error(errno.EXDEV, path)
            self._files.make_folders(posixpath.dirname(name))
            self._uploads[stream] = (name, bytearray())
            self._files.add(*self._uploads[stream])
        except OSError as error:
            self._uploads.pop(stream, None)
            self._tell(protocol.END, stream, error=_PUT_REASON[error.errno])

    def _upload(self, frame: protocol.Frame) -> None:
        path, content = self._uploads[frame.stream]
        try:
            if frame.kind == protocol.DATA:
                self._files.append(path, content, frame.payload)
                return
            self._staged[path] = content
            self._tell(protocol.END, frame.stream)
        except OSError:
            del self._files.nodes[path]
            self._tell(protocol.END, frame.stream, error=tree.TOO_LARGE)
        del self._uploads[frame.stream]

    def _exec(self, stream: int, argv: list[str], warm: bool, env: dict[str, str], cwd: str, **caps: int) -> None:
        def report() -> None:
            self._tell(protocol.NOTE, stream, out=out.total, err=err.total)

        def ended(status: int) -> None:
            del self._shells[stream]
            full = self._files.full
            self._tell(protocol.END, stream, status=status, out=out.total, err=err.total, full=full)

        def sink(kind: int, cap: int) -> _Sink:
            return _Sink(lambda data: self._send(protocol.encode(kind, stream, data)), cap, report)

        out, err = sink(protocol.OUT, caps["stdout_cap"]), sink(protocol.ERR, caps["stderr_cap"])
        self._tell(protocol.NOTE, stream, started=True)
        shell = self._shells[stream] = _Shell(self._programs)
        argv = ["python3", *argv] if warm else argv
        process = Process(tuple(argv), env, cwd, self._files, shell.stdin, out.write, err.write)
        shell.start(process, ended)

    def _signal(self, stream: int, signal: int) -> None:
        for shell in self._shells.values():
            shell.deliver(signal)
        self._tell(protocol.END, stream)

    def _collect(
        self, stream: int, paths: list[str] | None, max_files: int, max_bytes: int, max_depth: int
    ) -> None:
        for name, path, reason in self._wanted(paths, max_depth):
            content = self._files.nodes.get(path)
            reason = reason or self._fault(path)
            if not reason and max_files <= 0:
                reason = tree.TOO_MANY
            if reason or not isinstance(content, bytearray) or len(content) > max_bytes:
                self._tell(protocol.NOTE, stream, skipped=name, reason=reason or tree.TOO_LARGE)
                continue
            max_files -= 1
            max_bytes -= len(content)
            self._tell(protocol.NOTE, stream, file=name)
            for frame in protocol.encode_body(stream, bytes(content)):
                self._send(frame)
        self._tell(protocol.END, stream)

    def _wanted(self, paths: list[str] | None, max_depth: int) -> Iterator[tuple[str, str, str]]:
        """Name to the host, place in the tree, and why it is left out if that is known."""
        for name in paths or ():
            yield name, f"{WORK}/{name}", ""
        for area, prefix in ((WORK, ""), (_AREAS[Area.ARTIFACTS], "artifacts/")) if paths is None else ():
            for name in self._files.beneath(area):
                path = f"{area}/{name}"
                depth = name.count("/") + 1
                if self._files.nodes[path] is None:
                    if depth == max_depth:
                        yield prefix + name, path, tree.TOO_DEEP
                elif depth <= max_depth and self._staged.get(path) is not self._files.nodes[path]:
                    yield prefix + name, path, ""

    def _fault(self, path: str) -> str:
        way = [self._files.nodes.get(str(step), b"") for step in (path, *PurePosixPath(path).parents)]
        if any(isinstance(node, str) for node in way):
            return tree.SYMLINK
        if path not in self._files.nodes:
            return tree.MISSING
        return tree.NOT_REGULAR if self._files.nodes[path] is None else ""


@dataclass(slots=True)
class _Sink:
    """One output stream: the first `cap` bytes are sent, the rest is counted and sometimes reported."""

    send: Callable[[bytes], None]
    cap: int
    report: Callable[[], None]
    total: int = 0
    reported: float = 0.0

    async def write(self, data: bytes) -> None:
        if kept := data[: max(0, self.cap - self.total)]:
            self.send(kept)
        self.total += len(data)
        now = asyncio.get_running_loop().time()
        if self.total > self.cap and now > self.reported + _PROGRESS_S:
            self.reported = now
            self.report()
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Process:
    """One command as it runs."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    files: Files
    stdin: asyncio.StreamReader
    out: Callable[[bytes], Awaitable[None]]
    err: Callable[[bytes], Awaitable[None]]

    def path(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(self.cwd, name))

    def new_path(self, name: str) -> str:
        """For writing to."""
        path = self.path(name)
        if not path.startswith((f"{WORK}/", f"{_AREAS[Area.ARTIFACTS]}/", "/tmp/")):
            raise _error(errno.EROFS, name)
        return path


Program = Callable[[Process], Awaitable[int]]
"""Given its process, a program returns its exit status."""


class _Exit(Exception):
    """The script said `exit`."""


class _Shell:
    """One running program: its commands, its signals, its children."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = programs
        self._status = 0
        self._killed_by = 0
        self._traps: dict[int, str] = {}
        self._trapped = ""
        self._main: asyncio.Task[int]
        self._command: asyncio.Task[int] | None = None
        self._background: list[asyncio.Task[int]] = []
        self.stdin = asyncio.StreamReader()

    def start(self, process: Process, ended: Callable[[int], None]) -> None:
        """Run it; `ended` is told a wait status, see os.waitstatus_to_exitcode."""

        def finish(task: asyncio.Task[int]) -> None:
            for child in self._background:
                child.cancel()
            ended(self._killed_by if task.cancelled() else (task.result() & 0xFF) << 8)

        self._main = asyncio.create_task(self._whole(process))
        self._main.add_done_callback(finish)

    def deliver(self, number: int) -> None:
        action = self._traps.get(number)
        if action is None or number == signal.SIGKILL:
            self._killed_by = number
            self._main.cancel()
        elif action and self._command is not None:
            self._trapped = action
            self._command.cancel()

    async def _whole(self, process: Process) -> int:
        try:
            process.files.make_folders(process.cwd)
            return await self._call(process, "belljar: cannot run {!a}: No such file or directory")
        except _Exit:
            return self._status

    async def _call(self, process: Process, missing: str) -> int:
        name = process.argv[0]
        program = self._programs.get(name) or getattr(self, f"do_{name}", None)
        if program is None:
            await process.err(missing.format(name).encode() + b"\n")
            return 127
        try:
            return int(await program(process))
        except OSError as error:
            await process.err(f"{name}: {error.filename}: {error.strerror}\n".encode())
            return 1
        except (LookupError, ValueError) as error:
            await process.err(f"{name}: the fake engine cannot do this: {error}\n".encode())
            return 2

    async def _script(self, text: str, process: Process) -> int:
        for after, words, background in _commands(text):
            if (after == "&&" and self._status) or (after == "||" and not self._status):
                continue
            command = asyncio.create_task(self._run(words, process))
            if background:
                self._background.append(command)
                self._status = 0
                continue
            self._command = command
            try:
                self._status = await command
            except asyncio.CancelledError:
                if not self._trapped:
                    raise
                action, self._trapped = self._trapped, ""
                self._status = await self._script(action, process)
        return self._status

    async def _run(self, words: list[str], process: Process) -> int:
        values = {**process.env, "?": str(self._status), "$": "2"}
        argv: list[str] = []
        unread = iter(re.sub(r"\$(\w+|[?$])", lambda found: values.get(found[1], ""), word) for word in words)
        try:
            for word in unread:
                if word == ">&":
                    process = replace(process, out={"1": process.out, "2": process.err}[next(unread)])
                elif word == "<":
                    process = replace(process, stdin=_reader(process.files.read(process.path(next(unread)))))
                elif word in (">", ">>"):
                    process = replace(process, out=_opened(process, next(unread), word == ">>"))
                else:
                    argv.append(word)
        except OSError as error:
            await process.err(f"bash: {error.filename}: {error.strerror}\n".encode())
            return 1
        return await self._call(replace(process, argv=tuple(argv)), "bash: {}: command not found") if argv else 0

    async def do_bash(self, process: Process) -> int:
        if process.argv[1] == "-c":
            return await self._script(process.argv[2], process)
        return await self._script(process.files.read(process.path(process.argv[1])).decode(), process)

    async def do_cat(self, process: Process) -> int:
        for name in process.argv[1:]:
            await process.out(process.files.read(process.path(name)))
        while len(process.argv) == 1 and (data := await process.stdin.read(_CHUNK)):
            await process.out(data)
        return 0

    async def do_echo(self, process: Process) -> int:
        await process.out(" ".join(process.argv[1:]).encode() + b"\n")
        return 0

    async def do_env(self, process: Process) -> int:
        await process.out("".join(f"{name}={value}\n" for name, value in process.env.items()).encode())
        return 0

    async def do_exit(self, process: Process) -> int:
        self._status = int(process.argv[1])
        raise _Exit

    async def do_false(self, process: Process) -> int:
        return 1

    async def do_head(self, process: Process) -> int:
        """`head -c COUNT`, of stdin or of /dev/zero."""
        _, left, zeros = process.argv[2], int(process.argv[2]), process.argv[3:] == ("/dev/zero",)
        while left:
            wanted = min(left, _CHUNK)
            data = bytes(wanted) if zeros else await process.stdin.read(wanted)
            if not data:
                break
            left -= len(data)
            await process.out(data)
        return 0

    async def do_kill(self, process: Process) -> int:
        """`kill -TERM $$`: there is nobody else."""
        self.deliver(signal.Signals[f"SIG{process.argv[1].removeprefix('-')}"])
        return 0

    async def do_ln(self, process: Process) -> int:
        process.files.add(process.new_path(process.argv[3]), process.argv[2])
        return 0

    async def do_mkdir(self, process: Process) -> int:
        process.files.make_folders(process.new_path(process.argv[-1]))
        return 0

    async def do_printf(self, process: Process) -> int:
        await process.out(process.argv[1].encode().decode("unicode_escape").encode("latin-1"))
        return 0

    async def do_pwd(self, process: Process) -> int:
        await process.out(process.cwd.encode() + b"\n")
        return 0

    async def do_rm(self, process: Process) -> int:
        path = process.new_path(process.argv[-1])
        for name in [path, *(f"{path}/{below}" for below in process.files.beneath(path))]:
            process.files.nodes.pop(name, None)
        return 0

    async def do_sleep(self, process: Process) -> int:
        await asyncio.sleep(float(process.argv[1]))
        return 0

    async def do_trap(self, process: Process) -> int:
        self._traps[signal.Signals[f"SIG{process.argv[2]}"]] = process.argv[1]
        return 0

    async def do_true(self, process: Process) -> int:
        return 0

    async def do_wait(self, process: Process) -> int:
        await asyncio.gather(*self._background, return_exceptions=True)
        return 0

    async def do_yes(self, process: Process) -> int:
        while True:
            await process.out(b"y\n" * (_CHUNK // 2))


_PUT_REASON = {
    errno.EISDIR: tree.NOT_REGULAR,
    errno.ENOTDIR: tree.MISSING,
    errno.ENOSPC: tree.TOO_LARGE,
    errno.EXDEV: tree.OUTSIDE,
}


def _commands(text: str) -> Iterator[tuple[str, list[str], bool]]:
    """The operator before each command, its words, and whether it goes to the background."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;<>\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    after, words = "", list[str]()
    for token in [*lexer, "\n"]:
        operator = token.strip("\n") or ";"
        if operator not in ("&&", "||", ";", "&") or not token:
            words.append(token)
            continue
        if words:
            yield after, words, operator == "&"
        after, words = operator, []


def _opened(process: Process, name: str, appending: bool) -> Callable[[bytes], Awaitable[None]]:
    content = bytearray()
    path = process.new_path(name)
    before = process.files.nodes.get(path)
    if appending and isinstance(before, bytearray):
        content += before
    process.files.add(path, content)

    async def write(data: bytes) -> None:
        process.files.append(path, content, data)
        await asyncio.sleep(0)

    return write


def _reader(content: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return reader


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
