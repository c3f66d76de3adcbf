"""A jar in memory: for tests of what stands above an engine, belljar's own and its users'.

Nothing runs on the host. The host's half is the real one (`guestjar`: clocks, caps, verdicts); only the
guest is pretended. Its files are a dictionary and its programs bash scripts of a few commands; `fake_shell`
says which. Others, such as a Python that says what a test wants to hear, are given as functions:

    async def python3(process: Process) -> int:
        await process.out(b"42\\n")
        return 0

    engine = FakeEngine(programs={"python3": python3})
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import posixpath
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from belljar.engines.base import WORK, Area, Check, Probe
from belljar.engines.fake_shell import AREAS, Files, Process, Program, Shell
from belljar.engines.guestjar import GuestJar
from belljar.engines.link import Link
from belljar.errors import GrantNotEnforceable
from belljar.guest import protocol, tree
from belljar.models import Grant, Language, Limits

__all__ = ["FakeEngine", "Process"]

_ENV = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"}
_NO_COUNTERS = {"memory_peak": 0, "oom_kills": 0, "cpu_us": 0, "pids_peak": 2, "pids_refused": 0}
_INTERPRETERS = {Language.PYTHON: "python3", Language.BASH: "bash", Language.JAVASCRIPT: "node"}
_PROGRESS_S = 0.1
_REASON_OF = {
    errno.EISDIR: tree.NOT_REGULAR,
    errno.ENAMETOOLONG: tree.MISSING,
    errno.ENOSPC: tree.TOO_LARGE,
    errno.ENOTDIR: tree.MISSING,
}


class FakeEngine:
    name = "fake"

    def __init__(self, *, programs: Mapping[str, Program] | None = None) -> None:
        self._programs = programs or {}
        self._jars: set[GuestJar] = set()

    async def probe(self) -> Probe:
        return Probe(self.name, (Check("memory", True, "a fake needs little"),))

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        have = {"bash", *self._programs}
        return {language: (name,) for language, name in _INTERPRETERS.items() if name in have}

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        return grant  # it has no images

    async def create(self, grant: Grant) -> GuestJar:
        if grant.network.enabled:
            raise GrantNotEnforceable("the fake engine has no network", field="network")
        guest = _Guest(grant.limits, self._programs)

        async def destroy() -> None:
            await guest.wait()
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


class _Guest(asyncio.Transport):
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
        self._shells: dict[int, Shell] = {}
        self._alive = True
        self.link.connection_made(self)

    def write(self, data: Any) -> None:
        for frame in self._decoder.feed(bytes(data)):
            if frame.kind == protocol.OPEN:
                request = frame.request()
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

    def pause_reading(self) -> None:
        """What it sends is bounded by what it holds."""

    def resume_reading(self) -> None: ...

    async def wait(self) -> None:
        await asyncio.gather(*(shell.wait() for shell in self._shells.values()))

    def _send(self, frame: bytes) -> None:
        if self._alive:
            self._loop.call_soon(self.link.data_received, frame)

    def _tell(self, kind: int, stream: int, **fields: object) -> None:
        self._send(protocol.encode_json(kind, stream, **fields))

    def _put(self, stream: int, area: str, path: str, mode: int) -> None:
        if not _is_plain(path):
            self._tell(protocol.END, stream, error=tree.OUTSIDE)
            return
        place, content = f"{AREAS[Area(area)]}/{path}", bytearray()
        try:
            self._files.make_folders(posixpath.dirname(place))
            self._files.add(place, content)
        except OSError as error:
            self._tell(protocol.END, stream, error=_REASON_OF[error.errno or 0])
        else:
            self._uploads[stream] = (place, content)

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

    def _exec(
        self, stream: int, argv: list[str], warm: bool, env: dict[str, str], cwd: str, **caps: int
    ) -> None:
        def report() -> None:
            self._tell(protocol.NOTE, stream, out=out.total, err=err.total)

        def ended(status: int) -> None:
            full = self._files.full
            self._tell(protocol.END, stream, status=status, out=out.total, err=err.total, full=full)

        def sink(kind: int, cap: int) -> _Sink:
            return _Sink(lambda data: self._send(protocol.encode(kind, stream, data)), cap, report)

        out, err = sink(protocol.OUT, caps["stdout_cap"]), sink(protocol.ERR, caps["stderr_cap"])
        self._tell(protocol.NOTE, stream, started=True)
        shell = self._shells[stream] = Shell(self._programs)
        command = ("python3", *argv) if warm else tuple(argv)
        shell.start(Process(command, env, cwd, self._files, shell.stdin, out.write, err.write), ended)

    def _signal(self, stream: int, signal: int) -> None:
        for shell in self._shells.values():
            shell.deliver(signal)
        self._tell(protocol.END, stream)

    def _collect(
        self,
        stream: int,
        paths: list[str] | None,
        max_files: int,
        max_bytes: int,
        max_depth: int,
        kept: bool,
        all_of_it: bool,
    ) -> None:
        chosen = self._left(max_depth) if paths is None else ((path, self._place(path)) for path in paths)
        for name, path in chosen:
            content = self._files.nodes.get(path)
            reason = self._fault(name, path, max_files, max_bytes, max_depth)
            if reason or not isinstance(content, bytearray):
                self._tell(protocol.NOTE, stream, skipped=name, reason=reason)
                continue
            max_files -= 1
            max_bytes -= len(content)
            self._tell(protocol.NOTE, stream, file=name)
            for frame in protocol.encode_body(stream, bytes(content)):
                self._send(frame)
        self._tell(protocol.END, stream)

    def _left(self, max_depth: int) -> Iterator[tuple[str, str]]:
        """The name and the place of all that was made or changed, and of folders that are too deep."""
        for area, prefix in ((Area.WORK, ""), (Area.ARTIFACTS, "artifacts/")):
            for name in self._files.beneath(AREAS[area]):
                path = f"{AREAS[area]}/{name}"
                node = self._files.nodes[path]
                depth = name.count("/") + 1
                if (
                    depth == max_depth
                    if node is None
                    else depth <= max_depth and node is not self._staged.get(path)
                ):
                    yield prefix + name, path

    def _place(self, name: str) -> str:
        """Of a file that was asked for, by the name that it comes back under."""
        place, prefix = f"{WORK}/{name}", f"{Area.ARTIFACTS}/"
        if name.startswith(prefix) and place not in self._files.nodes:
            return f"{AREAS[Area.ARTIFACTS]}/{name.removeprefix(prefix)}"
        return place

    def _fault(self, name: str, path: str, max_files: int, max_bytes: int, max_depth: int) -> str:
        node = self._files.nodes.get(path, b"")
        if not _is_plain(name):
            return tree.OUTSIDE
        if any(
            isinstance(self._files.nodes.get(str(step)), str) for step in (path, *PurePosixPath(path).parents)
        ):
            return tree.SYMLINK
        if node is None:
            return tree.TOO_DEEP if name.count("/") + 1 >= max_depth else tree.NOT_REGULAR
        if not isinstance(node, bytearray):
            return tree.MISSING
        if max_files <= 0:
            return tree.TOO_MANY
        return tree.TOO_LARGE if len(node) > max_bytes else ""


@dataclass(slots=True)
class _Sink:
    """One output stream: the first `cap` bytes are sent, the rest is counted and now and then reported."""

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


def _is_plain(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
