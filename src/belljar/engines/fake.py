"""A jar in memory: for tests of what stands above an engine, belljar's own and its users'.

Nothing runs on the host. The host's half is the real one (`link.GuestJar`: clocks, caps, verdicts),
the guest behind it is pretended: files are a dictionary, and programs are lines of a small shell

    commands    bash cat echo env exit false head kill ln mkdir mkfifo printf pwd rm sleep trap true wait yes
    around them && || ; & # quotes $NAME $? $$ < > >> 2> 2>> >&2 2>&1

which bash runs the same way. There is no word splitting, and links are kept but never followed. Other
programs, such as a Python that says what a test wants to hear, are given as functions:

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
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from belljar.engines.base import WORK, Area, Check, Probe
from belljar.engines.link import GuestJar, Link
from belljar.errors import GrantNotEnforceable
from belljar.guest import protocol, tree
from belljar.models import Grant, Language, Limits

__all__ = ["FakeEngine", "Files", "Process"]

_WORKSPACE = posixpath.dirname(WORK)
_WRITABLE = (WORK, f"{_WORKSPACE}/{Area.ARTIFACTS}", "/tmp")
_PAGE = 4096
"""What a file takes of a tmpfs is rounded up to this."""
_CHUNK = 1 << 16
_PROGRESS_S = 0.1
_ENV = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"}


class FakeEngine:
    name = "fake"

    def __init__(self, *, programs: Mapping[str, Program] | None = None) -> None:
        self._programs = {**_COMMANDS, **(programs or {})}
        self._jars: set[GuestJar] = set()

    async def probe(self) -> Probe:
        return Probe(self.name, (Check("memory", True, "all that it needs"),))

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        commands = {Language.PYTHON: "python3", Language.BASH: "bash", Language.JAVASCRIPT: "node"}
        return {language: (name,) for language, name in commands.items() if name in self._programs}

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
            counters=lambda: {
                "memory_peak": 0,
                "oom_kills": 0,
                "cpu_us": 0,
                "pids_peak": 2,
                "pids_refused": 0,
            },
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


class _Kind(Enum):
    FOLDER = "folder"
    FIFO = "fifo"


class Files:
    """The jar's writable tree. A node is a file's content, a link's target, or a kind of its own."""

    def __init__(self, max_bytes: int, max_files: int) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        folders = (_WORKSPACE, *(f"{_WORKSPACE}/{area}" for area in Area), "/tmp")
        self.nodes: dict[str, bytearray | str | _Kind] = dict.fromkeys(folders, _Kind.FOLDER)

    @property
    def full(self) -> bool:
        return self._room() < _PAGE or len(self.nodes) >= self._max_files

    def read(self, path: str) -> bytes:
        node = self.nodes.get(path)
        if node is _Kind.FOLDER:
            raise _os_error(errno.EISDIR, path)
        if not isinstance(node, bytearray):
            raise _os_error(errno.ENOENT, path)
        return bytes(node)

    def add(self, path: str, node: bytearray | str | _Kind, *, as_guest: bool = False) -> None:
        """In place of what was there; only the guest may write to `inputs`."""
        parent = self.nodes.get(posixpath.dirname(path))
        if not as_guest and not path.startswith(tuple(f"{folder}/" for folder in _WRITABLE)):
            raise _os_error(errno.EROFS, path)
        if parent is not _Kind.FOLDER:
            raise _os_error(errno.ENOENT if parent is None else errno.ENOTDIR, path)
        if self.nodes.get(path) is _Kind.FOLDER:
            raise _os_error(errno.EISDIR, path)
        if path not in self.nodes and len(self.nodes) >= self._max_files:
            raise _os_error(errno.ENOSPC, path)
        self.nodes[path] = node

    def append(self, path: str, content: bytearray, data: bytes) -> None:
        """To a file that was opened; as much as there is room for."""
        room = self._room() + -len(content) % _PAGE
        content += data[:room]
        if len(data) > room:
            raise _os_error(errno.ENOSPC, path)

    def make_folders(self, path: str, *, as_guest: bool = False) -> None:
        for folder in reversed([path, *_parents(path)]):
            if self.nodes.get(folder) is not _Kind.FOLDER and folder != "/":
                if folder in self.nodes:
                    raise _os_error(errno.EEXIST, folder)
                self.add(folder, _Kind.FOLDER, as_guest=as_guest)

    def beneath(self, folder: str) -> list[str]:
        return sorted(
            (path for path in self.nodes if path.startswith(folder + "/")),
            key=lambda path: (path.count("/"), path),
        )

    def _room(self) -> int:
        pages = sum(-(-len(node) // _PAGE) for node in self.nodes.values() if isinstance(node, bytearray))
        return max(0, self._max_bytes - pages * _PAGE)


class _Guest(asyncio.WriteTransport):
    """Answers the host as `guest.agent` does; the wire between them is a function call."""

    def __init__(self, limits: Limits, programs: Mapping[str, Program]) -> None:
        super().__init__()
        self.link = Link()
        self._loop = asyncio.get_running_loop()
        self._programs = programs
        self._files = Files(limits.workspace_mb << 20, limits.workspace_files)
        self._decoder = protocol.Decoder()
        self._uploads: dict[int, tuple[str, bytearray]] = {}
        self._staged: dict[str, bytearray] = {}
        self._running: tuple[int, _Shell] | None = None
        self._alive = True
        self.link.connection_made(self)

    def write(self, data: Any) -> None:
        operations = {"put": self._put, "exec": self._exec, "signal": self._signal, "collect": self._collect}
        for frame in self._decoder.feed(bytes(data)):
            if frame.kind == protocol.OPEN:
                request = frame.json()
                operations[request["op"]](frame.stream, request)
            elif frame.stream in self._uploads:
                self._upload(frame)
            elif self._running is not None and self._running[0] == frame.stream:
                self._running[1].stdin.feed(frame.payload if frame.kind == protocol.DATA else None)

    def abort(self) -> None:
        if self._alive:
            self._alive = False
            if self._running is not None:
                self._running[1].deliver(signal.SIGKILL)
            self._loop.call_soon(self.link.connection_lost, None)

    def _send(self, frame: bytes) -> None:
        if self._alive:
            self._loop.call_soon(self.link.data_received, frame)

    def _tell(self, kind: int, stream: int, **fields: object) -> None:
        self._send(protocol.encode_json(kind, stream, **fields))

    def _put(self, stream: int, request: dict[str, Any]) -> None:
        names = request["path"].split("/")
        path = posixpath.join(_WORKSPACE, request["area"], *names)
        if any(name in ("", ".", "..") or "\0" in name for name in names):
            self._tell(protocol.END, stream, error=tree.OUTSIDE)
            return
        try:
            self._files.make_folders(posixpath.dirname(path), as_guest=True)
            content = bytearray()
            self._files.add(path, content, as_guest=True)
            self._uploads[stream] = (path, content)
        except OSError as error:
            self._tell(protocol.END, stream, error=_PUT_REASON[error.errno])

    def _upload(self, frame: protocol.Frame) -> None:
        path, content = self._uploads[frame.stream]
        try:
            if frame.kind == protocol.DATA:
                self._files.append(path, content, frame.payload)
                return
        except OSError as error:
            del self._files.nodes[path]
            self._tell(protocol.END, frame.stream, error=_PUT_REASON[error.errno])
        else:
            self._staged[path] = content
            self._tell(protocol.END, frame.stream)
        del self._uploads[frame.stream]

    def _exec(self, stream: int, request: dict[str, Any]) -> None:
        self._tell(protocol.NOTE, stream, started=True)
        sinks = [
            _Sink(lambda data, kind=kind: self._send(protocol.encode(kind, stream, data)), request[cap])
            for kind, cap in ((protocol.OUT, "stdout_cap"), (protocol.ERR, "stderr_cap"))
        ]
        for sink in sinks:
            sink.past_cap = lambda: self._tell(protocol.NOTE, stream, out=sinks[0].total, err=sinks[1].total)

        def ended(status: int) -> None:
            self._running = None
            out, err = (sink.total for sink in sinks)
            self._tell(protocol.END, stream, status=status, out=out, err=err, full=self._files.full)

        argv = (["python3"] if request["warm"] else []) + request["argv"]
        shell = _Shell(self._programs, self._files, request["env"], request["cwd"])
        self._running = (stream, shell)
        shell.start(argv, sinks[0].write, sinks[1].write, ended)

    def _signal(self, stream: int, request: dict[str, Any]) -> None:
        if self._running is not None:
            self._running[1].deliver(request["signal"])
        self._tell(protocol.END, stream)

    def _collect(self, stream: int, request: dict[str, Any]) -> None:
        self._files_left, self._bytes_left = request["max_files"], request["max_bytes"]
        if request["paths"] is None:
            for area in (Area.WORK, Area.ARTIFACTS):
                prefix = "artifacts/" if area is Area.ARTIFACTS else ""
                self._collect_area(stream, f"{_WORKSPACE}/{area}", prefix, request["max_depth"])
        else:
            for path in request["paths"]:
                self._collect_file(stream, WORK, path, "")
        self._tell(protocol.END, stream)

    def _collect_area(self, stream: int, area: str, prefix: str, max_depth: int) -> None:
        for path in self._files.beneath(area):
            shown = path.removeprefix(area + "/")
            node = self._files.nodes[path]
            depth = shown.count("/") + 1
            if node is _Kind.FOLDER:
                if depth == max_depth:
                    self._tell(protocol.NOTE, stream, skipped=prefix + shown, reason=tree.TOO_DEEP)
            elif depth <= max_depth and self._staged.get(path) is not node:
                self._collect_file(stream, area, shown, prefix)

    def _collect_file(self, stream: int, area: str, path: str, prefix: str) -> None:
        node = self._files.nodes.get(f"{area}/{path}")
        way = [self._files.nodes.get(f"{area}/{parent}") for parent in _parents(path)]
        reason = None
        if isinstance(node, str) or any(isinstance(parent, str) for parent in way):
            reason = tree.SYMLINK
        elif node is None:
            reason = tree.MISSING
        elif isinstance(node, _Kind):
            reason = tree.NOT_REGULAR
        elif self._files_left <= 0:
            reason = tree.TOO_MANY
        elif len(node) > self._bytes_left:
            reason = tree.TOO_LARGE
        if reason is None and isinstance(node, bytearray):
            self._files_left -= 1
            self._bytes_left -= len(node)
            self._tell(protocol.NOTE, stream, file=prefix + path)
            for frame in protocol.encode_body(stream, bytes(node)):
                self._send(frame)
        else:
            self._tell(protocol.NOTE, stream, skipped=prefix + path, reason=reason)


Write = Callable[[bytes], Awaitable[None]]


class _Sink:
    """One output stream: the first `cap` bytes are passed on, the rest is counted."""

    def __init__(self, send: Callable[[bytes], None], cap: int) -> None:
        self._send = send
        self._cap = cap
        self._reported = 0.0
        self.total = 0
        self.past_cap: Callable[[], None] = lambda: None

    async def write(self, data: bytes) -> None:
        kept = data[: max(0, self._cap - self.total)]
        self.total += len(data)
        if kept:
            self._send(kept)
        now = asyncio.get_running_loop().time()
        if self.total > self._cap and now - self._reported > _PROGRESS_S:
            self._reported = now
            self.past_cap()
        await asyncio.sleep(0)


class _Stdin:
    """What the host sends, for whoever reads it first."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._rest = b""

    def feed(self, data: bytes | None) -> None:
        self._chunks.put_nowait(data)

    async def read(self, count: int) -> bytes:
        """Up to `count` bytes; none at the end."""
        if not self._rest:
            self._rest = await self._chunks.get() or b""
            if not self._rest:
                self.feed(None)  # the end stays the end
        data, self._rest = self._rest[:count], self._rest[count:]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One command as it runs."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    files: Files
    read: Callable[[int], Awaitable[bytes]]
    """Of stdin: up to so many bytes; none at the end."""
    out: Write
    err: Write
    shell: _Shell = field(repr=False)

    def path(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(self.cwd, name))

    def options(self, *known: str) -> tuple[str, ...]:
        """The arguments without these options."""
        return tuple(argument for argument in self.argv[1:] if argument not in known)


Program = Callable[[Process], Awaitable[int]]
"""Given its process, a program returns its exit status."""


class _Exit(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class _Shell:
    """One program with its signals and its children."""

    def __init__(
        self, programs: Mapping[str, Program], files: Files, env: Mapping[str, str], cwd: str
    ) -> None:
        self._programs = programs
        self._files = files
        self._env = env
        self._cwd = cwd
        self._main: asyncio.Task[int] | None = None
        self._command: asyncio.Task[int] | None = None
        self._killed_by = 0
        self._pending = ""
        self._status = 0
        self.traps: dict[int, str] = {}
        self.background: list[asyncio.Task[int]] = []
        self.stdin = _Stdin()

    def start(self, argv: list[str], out: Write, err: Write, ended: Callable[[int], None]) -> None:
        """Run it; `ended` is told the wait status, see os.waitstatus_to_exitcode."""
        self._main = asyncio.create_task(self._whole(argv, out, err))

        def finish(task: asyncio.Task[int]) -> None:
            for child in self.background:
                child.cancel()
            ended(self._killed_by if task.cancelled() else (task.result() & 0xFF) << 8)

        self._main.add_done_callback(finish)

    def deliver(self, number: int) -> None:
        action = self.traps.get(number) if number != signal.SIGKILL else None
        if action is None and self._main is not None:
            self._killed_by = number
            self._main.cancel()
        elif action and self._command is not None:
            self._pending = action
            self._command.cancel()

    async def _whole(self, argv: list[str], out: Write, err: Write) -> int:
        try:
            self._files.make_folders(self._cwd)
            if posixpath.basename(argv[0]) not in self._programs:
                raise _os_error(errno.ENOENT, argv[0])
            return await self.call(argv, self.stdin.read, out, err)
        except _Exit as end:
            return end.status
        except OSError as error:
            await err(f"belljar: cannot run {argv[0]!a}: {error.strerror}\n".encode())
            return 127 if error.errno == errno.ENOENT else 126

    async def call(
        self, argv: list[str], read: Callable[[int], Awaitable[bytes]], out: Write, err: Write
    ) -> int:
        program = self._programs.get(posixpath.basename(argv[0]))
        if program is None:
            await err(f"bash: {argv[0]}: command not found\n".encode())
            return 127
        try:
            return await program(
                Process(
                    argv=tuple(argv),
                    env=self._env,
                    cwd=self._cwd,
                    files=self._files,
                    read=read,
                    out=out,
                    err=err,
                    shell=self,
                )
            )
        except OSError as error:
            await err(f"{argv[0]}: {error.filename}: {error.strerror}\n".encode())
            return 1
        except (ValueError, LookupError):
            await err(f"{argv[0]}: the fake engine does not know it with these arguments\n".encode())
            return 2

    async def script(self, text: str, arguments: tuple[str, ...], process: Process) -> int:
        """Run every line of it, with the streams of the process that called for it."""
        for line in _parsed(text):
            if (line.after == "&&" and self._status) or (line.after == "||" and not self._status):
                continue
            running = asyncio.create_task(self._line(line, arguments, process))
            if line.background:
                self.background.append(running)
                self._status = 0
                continue
            self._command = running
            try:
                self._status = await running
            except asyncio.CancelledError:
                if not self._pending:
                    raise
                action, self._pending = self._pending, ""
                self._status = await self.script(action, arguments, process)
        return self._status

    async def _line(self, line: _Line, arguments: tuple[str, ...], process: Process) -> int:
        values = {**self._env, "?": str(self._status), "$": "2"}
        values |= {str(number): text for number, text in enumerate(arguments)}
        words = [_expanded(word, values) for word in line.words]
        read, streams = process.read, {1: process.out, 2: process.err}
        try:
            for operator, word in line.redirects:
                target = _expanded(word, values)
                path = process.path(target)
                if operator == "<":
                    read = _reader(self._files.read(path))
                elif operator in _DUPLICATES:
                    onto, source = _DUPLICATES[operator]
                    streams[onto] = streams[source]
                else:
                    streams[2 if operator[0] == "2" else 1] = self._opened(path, operator.endswith(">>"))
        except OSError as error:
            await process.err(f"bash: {target}: {error.strerror}\n".encode())
            return 1
        return await self.call(words, read, streams[1], streams[2]) if words else 0

    def _opened(self, path: str, appending: bool) -> Write:
        content = bytearray()
        if path != "/dev/null":
            before = self._files.nodes.get(path)
            if appending and isinstance(before, bytearray):
                content += before
            self._files.add(path, content)

        async def write(data: bytes) -> None:
            if path != "/dev/null":
                self._files.append(path, content, data)
            await asyncio.sleep(0)

        return write


_TOKEN = re.compile(
    r"""(?P<nothing>[ \t]+|\#[^\n]*)
      | (?P<operator>&&|\|\||2>&1|1?>&2|2?>>?|<|;|&|\n)
      | (?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\;&|<>()`])+)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(
    r"""'(?P<literal>[^']*)'|"(?P<quoted>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<plain>[^'"\\]+)""", re.DOTALL
)
_VARIABLE = re.compile(r"""\\(?P<escaped>["\\$`])|\$\{?(?P<name>\w+|[?$])\}?""")
_DUPLICATES = {">&2": (1, 2), "1>&2": (1, 2), "2>&1": (2, 1)}


@dataclass(slots=True)
class _Line:
    after: str
    words: list[str] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    background: bool = False


def _parsed(text: str) -> Iterator[_Line]:
    line, position, redirect = _Line(""), 0, ""
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"not in the subset: {text[position:]}")
        position = token.end()
        operator = token["operator"]
        if token["word"] and redirect:
            line.redirects.append((redirect, token["word"]))
            redirect = ""
        elif token["word"]:
            line.words.append(token["word"])
        elif operator in _DUPLICATES:
            line.redirects.append((operator, ""))
        elif operator and operator[-1] in "<>":
            redirect = operator
        elif operator:
            line.background = operator == "&"
            if line.words or line.redirects:
                yield line
            line = _Line(operator if operator in ("&&", "||") else "")
    if line.words or line.redirects:
        yield line


def _expanded(word: str, values: Mapping[str, str]) -> str:
    def variables(text: str) -> str:
        return _VARIABLE.sub(lambda found: found["escaped"] or values.get(found["name"], ""), text)

    text = ""
    for piece in _PIECE.finditer(word):
        text += piece["literal"] or piece["escaped"] or variables(piece["quoted"] or piece["plain"] or "")
    return text


async def _bash(process: Process) -> int:
    if process.argv[1] == "-c":
        return await process.shell.script(process.argv[2], process.argv[3:] or ("bash",), process)
    text = process.files.read(process.path(process.argv[1])).decode()
    return await process.shell.script(text, process.argv[1:], process)


async def _cat(process: Process) -> int:
    for name in process.options():
        await process.out(process.files.read(process.path(name)))
    while len(process.argv) == 1 and (data := await process.read(_CHUNK)):
        await process.out(data)
    return 0


async def _echo(process: Process) -> int:
    silent = process.argv[1:2] == ("-n",)
    await process.out((" ".join(process.argv[1 + silent :]) + ("" if silent else "\n")).encode())
    return 0


async def _env(process: Process) -> int:
    await process.out("".join(f"{name}={value}\n" for name, value in process.env.items()).encode())
    return 0


async def _exit(process: Process) -> int:
    raise _Exit(int(process.argv[1]) if len(process.argv) > 1 else 0)


async def _false(process: Process) -> int:
    return 1


async def _head(process: Process) -> int:
    option, count, *names = process.argv[1:]
    if option != "-c":
        raise ValueError(option)
    left, read = int(count), process.read
    if names == ["/dev/zero"]:
        read = _zeros
    elif names:
        read = _reader(process.files.read(process.path(names[0])))
    while left and (data := await read(min(left, _CHUNK))):
        left -= len(data)
        await process.out(data)
    return 0


async def _kill(process: Process) -> int:
    """`kill -TERM $$`: there is nobody else to kill."""
    process.shell.deliver(signal.Signals[f"SIG{process.argv[1].removeprefix('-')}"])
    return 0


async def _ln(process: Process) -> int:
    target, name = process.options("-s")
    process.files.add(process.path(name), target)
    return 0


async def _mkdir(process: Process) -> int:
    for name in process.options("-p"):
        process.files.make_folders(process.path(name))
    return 0


async def _mkfifo(process: Process) -> int:
    process.files.add(process.path(process.argv[1]), _Kind.FIFO)
    return 0


async def _printf(process: Process) -> int:
    text = process.argv[1]
    for argument in process.argv[2:]:
        text = text.replace("%s", argument, 1)
    await process.out(text.encode().decode("unicode_escape").encode("latin-1"))
    return 0


async def _pwd(process: Process) -> int:
    await process.out(f"{process.cwd}\n".encode())
    return 0


async def _rm(process: Process) -> int:
    for name in process.options("-f", "-r", "-rf"):
        path = process.path(name)
        for below in [path, *process.files.beneath(path)]:
            process.files.nodes.pop(below, None)
    return 0


async def _sleep(process: Process) -> int:
    await asyncio.sleep(float(process.argv[1]))
    return 0


async def _trap(process: Process) -> int:
    for name in process.argv[2:]:
        process.shell.traps[signal.Signals[f"SIG{name}"]] = process.argv[1]
    return 0


async def _true(process: Process) -> int:
    return 0


async def _wait(process: Process) -> int:
    await asyncio.gather(*process.shell.background, return_exceptions=True)
    return 0


async def _yes(process: Process) -> int:
    while True:
        await process.out(b"y\n" * (_CHUNK // 2))


_COMMANDS: Mapping[str, Program] = {
    "bash": _bash,
    "cat": _cat,
    "echo": _echo,
    "env": _env,
    "exit": _exit,
    "false": _false,
    "head": _head,
    "kill": _kill,
    "ln": _ln,
    "mkdir": _mkdir,
    "mkfifo": _mkfifo,
    "printf": _printf,
    "pwd": _pwd,
    "rm": _rm,
    "sleep": _sleep,
    "trap": _trap,
    "true": _true,
    "wait": _wait,
    "yes": _yes,
}

_PUT_REASON = {
    errno.EISDIR: tree.NOT_REGULAR,
    errno.EEXIST: tree.MISSING,
    errno.ENOTDIR: tree.MISSING,
    errno.ENOSPC: tree.TOO_LARGE,
}


async def _zeros(count: int) -> bytes:
    return bytes(count)


def _reader(content: bytes) -> Callable[[int], Awaitable[bytes]]:
    left = memoryview(content)

    async def read(count: int) -> bytes:
        nonlocal left
        data, left = left[:count], left[count:]
        return bytes(data)

    return read


def _parents(path: str) -> list[str]:
    """Nearest first."""
    parents = []
    while path := posixpath.dirname(path):
        parents.append(path)
        if path == "/":
            break
    return parents


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
