"""What runs in a jar of the fake engine: a few commands of a shell, over files in memory.

A script is commands (`do_…` below, and programs given as functions) joined by `&&`, `||`, `;`, `&` and
newlines, with quotes, comments, `$NAME`, `$?`, `$$`, `<`, `>`, `>>` and `>&2`. Bash runs it the same way; of
the rest of bash, such as splitting what a variable holds into words, there is nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import re
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from belljar.engines.base import WORK, Area

__all__ = ["AREAS", "Files", "Process", "Program", "Shell", "os_error"]

WORKSPACE = posixpath.dirname(WORK)
AREAS = {area: f"{WORKSPACE}/{area}" for area in Area}
_WRITABLE = tuple(f"{place}/" for place in (AREAS[Area.WORK], AREAS[Area.ARTIFACTS], "/tmp"))
_PAGE = 4096
"""A file takes a whole number of these."""
_CHUNK = 1 << 16

_TOKEN = re.compile(
    r"""[ \t]+ | \#[^\n]*
      | (?P<operator> && | \|\| | >> | >& | [;&<>\n])
      | (?P<word> (?: '[^']*' | "(?:\\.|[^"\\])*" | \\. | [^\s'"\\;&|<>()`] )+)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|\$(\w+|[?$])""", re.DOTALL)
_PIECE_IN_QUOTES = re.compile(r"""\\(["\\$`])|\$(\w+|[?$])""")


class Files:
    """A tree by absolute path: bytes are a file, a string is a link, None is a folder.

    Links are never followed. A file that is written again is another object, so a change can be seen.
    """

    def __init__(self, max_bytes: int, max_files: int) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self.nodes: dict[str, bytearray | str | None] = dict.fromkeys(
            ("/", "/tmp", WORKSPACE, *AREAS.values())
        )

    @property
    def full(self) -> bool:
        return self._room() < _PAGE or len(self.nodes) >= self._max_files

    def read(self, path: str) -> bytes:
        node = self.nodes.get(path, "")
        if not isinstance(node, bytearray):
            raise os_error(errno.EISDIR if node is None else errno.ENOENT, path)
        return bytes(node)

    def add(self, path: str, node: bytearray | str | None) -> None:
        parent = self.nodes.get(posixpath.dirname(path), "")
        if parent is not None:
            raise os_error(errno.ENOTDIR if parent else errno.ENOENT, path)
        if self.nodes.get(path, "") is None:
            raise os_error(errno.EISDIR, path)
        if len(posixpath.basename(path).encode()) > 255:
            raise os_error(errno.ENAMETOOLONG, path)
        if path not in self.nodes and len(self.nodes) >= self._max_files:
            raise os_error(errno.ENOSPC, path)
        self.nodes[path] = node

    def append(self, path: str, content: bytearray, data: bytes) -> None:
        """To a file of this tree; as much as there is room for."""
        room = self._room() + -len(content) % _PAGE
        content += data[:room]
        if len(data) > room:
            raise os_error(errno.ENOSPC, path)

    def make_folders(self, path: str) -> None:
        for folder in [*map(str, reversed(PurePosixPath(path).parents)), path]:
            if folder not in self.nodes:
                self.add(folder, None)
            elif self.nodes[folder] is not None:
                raise os_error(errno.ENOTDIR, folder)

    def beneath(self, folder: str) -> list[str]:
        """Relative to it, shallow ones first."""
        found = [path.removeprefix(folder + "/") for path in self.nodes if path.startswith(folder + "/")]
        return sorted(found, key=lambda path: (path.count("/"), path))

    def _room(self) -> int:
        sizes = (len(node) for node in self.nodes.values() if isinstance(node, bytearray))
        return max(0, self._max_bytes - sum(-(-size // _PAGE) * _PAGE for size in sizes))


@dataclass(frozen=True, slots=True)
class Process:
    """One command as it runs; what a program given as a function gets."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    files: Files
    stdin: asyncio.StreamReader
    out: Callable[[bytes], Awaitable[None]]
    err: Callable[[bytes], Awaitable[None]]

    def path(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(self.cwd, name))

    def path_to_write(self, name: str) -> str:
        path = self.path(name)
        if not path.startswith(_WRITABLE):
            raise os_error(errno.EROFS, name)
        return path


Program = Callable[[Process], Awaitable[int]]
"""Returns its exit status. What it raises goes to stderr, and the status is 1."""


class _Exit(Exception):
    """The script said `exit`."""


class Shell:
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
            self._killed_by, self._trapped = number, ""
            self._main.cancel()
        elif action and self._command is not None:
            self._trapped = action
            self._command.cancel()

    async def wait(self) -> None:
        """Until nothing of it runs."""
        await asyncio.gather(self._main, *self._background, return_exceptions=True)

    async def _whole(self, process: Process) -> int:
        try:
            process.files.make_folders(process.cwd)
        except OSError as error:
            await process.err(f"belljar: cannot run {process.argv[0]!a}: {error.strerror}\n".encode())
            return 126
        try:
            return await self._call(process, "belljar: cannot run {!a}: No such file or directory\n")
        except _Exit:
            return self._status

    async def _call(self, process: Process, missing: str) -> int:
        name = process.argv[0]
        program = self._programs.get(name) or getattr(self, f"do_{name}", None)
        if program is None:
            await process.err(missing.format(name).encode())
            return 127
        try:
            return int(await program(process))
        except _Exit:
            raise
        except OSError as error:
            await process.err(f"{name}: {error.filename}: {error.strerror}\n".encode())
        except Exception:
            await process.err(traceback.format_exc().encode())
        return 1

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
            if self._trapped:
                action, self._trapped = self._trapped, ""
                self._status = await self._script(action, process)
        return self._status

    async def _run(self, words: list[tuple[str, str]], process: Process) -> int:
        """Words are each preceded by their redirection, if any."""
        values = {**process.env, "?": str(self._status), "$": "2"}
        argv = []
        try:
            for redirection, unexpanded in words:
                word = _expanded(unexpanded, values)
                if redirection == "<":
                    process = replace(process, stdin=_reader(process.files.read(process.path(word))))
                elif redirection == ">&":
                    process = replace(process, out={"1": process.out, "2": process.err}[word])
                elif redirection:
                    process = replace(process, out=_opened(process, word, appending=redirection == ">>"))
                elif word or {"'", '"'} & set(unexpanded):  # a variable that is empty is no word
                    argv.append(word)
        except OSError as error:
            await process.err(f"bash: {error.filename}: {error.strerror}\n".encode())
            return 1
        if not argv:
            return 0
        return await self._call(replace(process, argv=tuple(argv)), "bash: {}: command not found\n")

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
        left, zeros = int(process.argv[2]), process.argv[3:] == ("/dev/zero",)
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
        """`ln -s TARGET NAME`"""
        process.files.add(process.path_to_write(process.argv[3]), process.argv[2])
        return 0

    async def do_mkdir(self, process: Process) -> int:
        """`mkdir -p NAME`"""
        process.files.make_folders(process.path_to_write(process.argv[2]))
        return 0

    async def do_printf(self, process: Process) -> int:
        """With escapes, without arguments."""
        await process.out(process.argv[1].encode().decode("unicode_escape").encode("latin-1"))
        return 0

    async def do_pwd(self, process: Process) -> int:
        await process.out(process.cwd.encode() + b"\n")
        return 0

    async def do_rm(self, process: Process) -> int:
        path = process.path_to_write(process.argv[-1])
        for name in [path, *(f"{path}/{below}" for below in process.files.beneath(path))]:
            process.files.nodes.pop(name, None)
        return 0

    async def do_sleep(self, process: Process) -> int:
        await asyncio.sleep(float(process.argv[1]))
        return 0

    async def do_trap(self, process: Process) -> int:
        """`trap ACTION TERM`; an empty action ignores the signal."""
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


def _commands(text: str) -> Iterator[tuple[str, list[tuple[str, str]], bool]]:
    """The operator before each command, its words with their redirections, and whether `&` follows."""
    after, redirection, words = "", "", list[tuple[str, str]]()
    position = 0
    text += "\n"
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise NotImplementedError(f"the fake engine's shell has no {text[position:]!r}")
        position = token.end()
        operator = token["operator"]
        if token["word"] is not None:
            words.append((redirection, token["word"]))
            redirection = ""
        elif operator in ("<", ">", ">>", ">&"):
            redirection = operator
        elif operator is not None:
            if words:
                yield after, words, operator == "&"
            if words or operator != "\n":
                after, words = operator, []


def _expanded(word: str, values: Mapping[str, str]) -> str:
    def piece(found: re.Match[str]) -> str:
        literal, quoted, escaped, name = found.groups()
        if quoted is not None:
            return _PIECE_IN_QUOTES.sub(lambda inner: inner[1] or values.get(inner[2], ""), quoted)
        return values.get(name, "") if name else literal or escaped or ""

    return _PIECE.sub(piece, word)


def _opened(process: Process, name: str, *, appending: bool) -> Callable[[bytes], Awaitable[None]]:
    content = bytearray()
    path = process.path_to_write(name)
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


def os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
