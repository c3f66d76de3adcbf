"""The oracle: runs a hostile program in a jar, and says whether it was contained.

Contained means all of: the goal was not reached and no canary came out, the run ended as it had to, no
process, cgroup, mount or file of it is left, this process and the launcher hold what they held before, a
benign run right after is fine, and a neighbour that ran all the while is untouched. Then the same program
is run where the layer that guards against it is missing: there it must reach its goal.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tests.hostile.attacks import SMALL, TACTICS, Attack, Control, answers
from tests.hostile.canaries import Canaries, Standing, cgroup_claims, demoted

from belljar.engines.base import Area, Command, Engine, Jar
from belljar.execution import runs
from belljar.execution.requests import SCRIPTS
from belljar.models import (
    Ended,
    Grant,
    InputFile,
    Language,
    Limits,
    OnOutputLimit,
    Output,
    RunRequest,
    RunResult,
    Verdict,
)

T = TypeVar("T")

BENIGN_S = 30.0
"""Far more than a benign run takes, on a machine as busy as it may be."""
SETTLED_S = 45.0
"""For a connection of the engine's own: now and then it asks docker what was left behind. And for descriptors of a
launcher that makes the next jar."""
BARE_S = 40.0
HEAD_START_S = 0.1
"""Of an accomplice that runs beside."""


class Glass:
    def __init__(
        self,
        runner: asyncio.Runner,
        engine: Engine,
        unfiltered: Engine,
        canaries: Canaries,
        has_stock: Callable[[], bool],
    ) -> None:
        """`has_stock`: whether jars that the engines make ahead are there."""
        self._has_stock = has_stock
        self._runner = runner
        self._unfiltered = unfiltered
        self.engine = engine
        self.canaries = canaries
        self.neighbour = Neighbour(canaries.token)
        self.notes: list[tuple[str, object]] = []
        """What the summary counts: of each program, that it ran, that it was contained, by which control."""
        self._mark = ""
        self.wait(self.neighbour.move_in(engine))
        self._claims = cgroup_claims()
        self.has_cgroup = bool(self._claims) or engine.name != "jail"
        """False for an ordinary user without delegation: limits are held by weaker layers."""

    def close(self) -> None:
        self.wait(self.neighbour.move_out())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def contains(self, attack: Attack) -> RunResult:
        """Run it in a jar, check everything, and show that it is an attack."""
        with self.watching(attack.control):
            result = self.wait(self._with_accomplice(attack))
            brought_out = _everything(result)
            assert os.fsencode(attack.goal) not in brought_out, f"it reached its goal: {result}"
            expected = {attack.verdict}
            if attack.ends_gvisor and self.engine.name == "gvisor":
                expected |= {Verdict.LOST, Verdict.OOM, Verdict.TIMEOUT}
            assert result.verdict in expected, result
            if result.verdict is Verdict.EXITED and attack.exit_code is not None:
                assert result.exit_code == attack.exit_code, result
        if attack.control is not Control.PROBE:
            self._show_effective(attack)
        return result

    @contextmanager
    def watching(self, control: Control) -> Iterator[None]:
        """Whatever is done in between has to leave the host as it was."""
        self.notes.append(("hostile", "run"))
        self._mark = f"mark-{secrets.token_hex(6)}"
        self._wait_for_stock()
        before = Standing.now(self._mark, self._claims)
        yield
        self._wait_for_stock()
        deadline = time.monotonic() + SETTLED_S
        while left := Standing.now(self._mark, self._claims).more_than(before):
            passing = all(what.startswith(("descriptors ", "process ")) for what in left)
            assert passing, f"left on the host: {left}"
            assert time.monotonic() < deadline, f"left on the host: {left}"
            self.wait(asyncio.sleep(0.05))
        touched = self.canaries.touched()
        assert not touched, f"reached: {touched}"
        assert self.canaries.files_are_untouched(), "files of the host were changed"
        assert self.canaries.decoy.poll() is None, "the decoy is dead"
        assert self.neighbour.is_well, "the neighbour was touched, or is gone"
        self._run_benign()
        self.notes.append(("hostile", "contained"))
        if control is Control.PROBE:
            self.notes.append(("hostile", "probe"))

    def _wait_for_stock(self) -> None:
        while not self._has_stock():
            self.wait(asyncio.sleep(0.005))

    async def _with_accomplice(self, attack: Attack) -> RunResult:
        if not attack.accomplice:
            return await self.attack(attack)
        helping = asyncio.create_task(self.attack(replace(attack, code=attack.accomplice)))
        if attack.at_once:
            await asyncio.sleep(HEAD_START_S)
        else:
            await helping
        result = await self.attack(attack)
        assert (await helping).exit_code == 0, helping.result()
        return result

    async def attack(self, attack: Attack) -> RunResult:
        return await self.run(
            attack.code,
            limits=attack.limits,
            on_output_limit=attack.on_output_limit,
            language=attack.language,
            start=attack.start,
            stdin=attack.stdin,
            inputs=attack.inputs,
            output_files=attack.output_files,
            env={**self._environment(), **attack.env},
        )

    async def run(
        self,
        code: str,
        *,
        limits: Limits = SMALL,
        on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE,
        engine: Engine | None = None,
        **request: Any,
    ) -> RunResult:
        """Any program, in a jar of its own. No canary may come out of it."""
        engine = engine or self.engine
        grant = Grant(limits=limits, on_output_limit=on_output_limit, accept_weaker_limits=True)
        result = await runs.run(
            engine,
            await engine.fit(grant, request.get("language")),
            RunRequest(
                code=textwrap.dedent(code), files=(InputFile("tactics.py", TACTICS.encode()),), **request
            ),
        )
        assert self.canaries.token.encode() not in _everything(result), "a canary came out"
        return result

    def _environment(self) -> dict[str, str]:
        return {**self.canaries.whereabouts, **self.neighbour.whereabouts, "MARK": self._mark}

    def _run_benign(self) -> None:
        async def benign() -> RunResult:
            async with asyncio.timeout(BENIGN_S):
                return await self.run("print(6 * 7)")

        result = self.wait(benign())
        assert (result.verdict, result.exit_code, result.stdout) == (Verdict.EXITED, 0, b"42\n"), result

    def _show_effective(self, attack: Attack) -> None:
        env = {**self._environment(), **attack.env}
        if attack.control is Control.ROOMY:
            result = self.wait(
                self.run(
                    attack.code, limits=attack.roomy, language=attack.language, stdin=attack.stdin, env=env
                )
            )
            brought_out = _everything(result)
        elif attack.control is Control.UNFILTERED:
            result = self.wait(
                self.run(attack.code, engine=self._unfiltered, language=attack.language, env=env)
            )
            brought_out = _everything(result)
        else:
            brought_out = run_bare(attack, env)
        touched = self.canaries.touched()
        self.canaries.empty_drop()
        effective = (
            os.fsencode(attack.goal) in brought_out or self.canaries.token.encode() in brought_out or touched
        )
        if not effective and attack.ends_gvisor and self.engine.name == "gvisor":
            self.notes.append(("hostile", "probe"))
            return
        if (
            not effective
            and attack.control is Control.UNFILTERED
            and (
                self.engine.name
                != "jail"  # whose programs have a user namespace; elsewhere no capability is left
                or _is_lacking(brought_out)
            )
        ):
            self.notes.append(("hostile", "probe"))
            return
        assert effective, f"not an attack: with its guard removed it says {brought_out[:2000]!r}"
        self.notes.append(("hostile", "effective"))


class Neighbour:
    """A jar of somebody else that runs all the while, with a secret in every place where one may be."""

    whereabouts = {"NEIGHBOUR_PORT": "40404", "NEIGHBOUR_ABSTRACT": "neighbour"}

    _PROGRAM = """\
        import os, select, signal, socket, sys

        secret = os.environ["NEIGHBOUR_SECRET"]
        for folder in ("/workspace/work", "/workspace/artifacts", "/tmp", "/dev/shm"):
            with open(f"{folder}/neighbour.txt", "w") as file:
                file.write(secret)
        tcp = socket.create_server(("0.0.0.0", int(os.environ["NEIGHBOUR_PORT"])))
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\\0" + os.environ["NEIGHBOUR_ABSTRACT"])
        unix.listen()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready", flush=True)
        select.select([tcp, unix], [], [])
        print("touched", flush=True)
        signal.pause()
        """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self.words = b""
        self._ready = asyncio.Event()
        self._jar: Jar | None = None
        self._stay: asyncio.Task[Ended] | None = None

    async def move_in(self, engine: Engine) -> None:
        limits = Limits(timeout_s=3600, grace_s=BENIGN_S, memory_mb=64)
        self._jar = await engine.create(Grant(limits=limits, accept_weaker_limits=True))
        await self._jar.put(Area.WORK, [InputFile("main.py", textwrap.dedent(self._PROGRAM).encode())])
        self._stay = asyncio.create_task(self._live(self._jar))
        await asyncio.wait_for(self._ready.wait(), BENIGN_S)

    async def move_out(self) -> None:
        assert self._jar is not None
        assert self._stay is not None
        self._jar.cancel()
        ended = await self._stay
        await self._jar.destroy()
        assert (ended.verdict, ended.exit_code) == (Verdict.CANCELLED, 0)

    @property
    def is_well(self) -> bool:
        return self.words == b"ready\n" and self._stay is not None and not self._stay.done()

    async def _live(self, jar: Jar) -> Ended:
        env = {"NEIGHBOUR_SECRET": self._secret, **self.whereabouts}
        async for event in jar.exec(Command(argv=("/workspace/work/main.py",), warm=True, env=env)):
            if isinstance(event, Output):
                self.words += event.data
                self._ready.set()
            elif isinstance(event, Ended):
                return event
        raise AssertionError("the last event is Ended")


_INTERPRETERS = {Language.PYTHON: "python3", Language.BASH: "bash", Language.JAVASCRIPT: "node"}
_AS_ROOT = (
    *("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
    # A bystander to be killed; this shell is pid 1, which nothing inside can kill.
    *("sh", "-c", 'sleep 30 & export HOST_PID=$!; "$@"; kill -0 $HOST_PID || echo bystander REACHED', "sh"),
)


def run_bare(attack: Attack, env: dict[str, str]) -> bytes:
    """What the program says and leaves outside: a bounded process of an ordinary user.

    `OUTSIDE` tells the program, for the few that have to play the careless supervisor themselves.
    """
    folder = Path(tempfile.mkdtemp(prefix="bare-"))
    folder.chmod(0o777)
    (folder / "tactics.py").write_text(TACTICS)
    env = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "OUTSIDE": "1", **env}
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # what is compiled names the goal, too
    processes = []
    try:
        if attack.accomplice:
            processes.append(_start_bare(replace(attack, code=attack.accomplice), folder, env))
            time.sleep(HEAD_START_S) if attack.at_once else processes[0].wait(BARE_S)
        processes.append(_start_bare(attack, folder, env))
        said, _ = processes[-1].communicate(attack.stdin, timeout=BARE_S)
        deadline = time.monotonic() + attack.linger_s
        while os.fsencode(attack.goal) not in (left := b"\n".join(_carelessly_collected(folder))):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        said += left
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    finally:
        _kill_marked(env["MARK"])
        for process in processes:
            process.kill()
            process.communicate()
        shutil.rmtree(folder)
    return bytes(said)


def _start_bare(attack: Attack, folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    script = folder / SCRIPTS[attack.language]
    script.write_text(textwrap.dedent(attack.code))
    bounds = (
        "prlimit",
        f"--core={64 << 20}",
        "--cpu=10",
        f"--fsize={256 << 20}",
        "--nofile=4096",
        "--nproc=2048",
    )
    space = _AS_ROOT if attack.control is Control.ROOT else ()
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [*bounds, *space, _INTERPRETERS[attack.language], str(script)],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **demoted(),  # type: ignore[call-overload]
    )
    return process


def _carelessly_collected(folder: Path) -> Iterator[bytes]:
    """What a host gets that trusts names, follows links and thinks that an open file is there to be read."""
    for path in [*folder.glob("*"), *folder.glob("*/*")]:
        if path.name == "tactics.py" or path.name in SCRIPTS.values():  # ours, and they name the goal
            continue
        yield os.fsencode(path)
        if path.is_file():
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except BlockingIOError:
                yield b"stalled by a lease: REACHED"
                continue
            except PermissionError:
                continue
            with open(fd, "rb") as file:
                yield file.read(1 << 16)


def _kill_marked(mark: str) -> None:
    """Every process that has this run's mark in its environment is the run's own."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"MARK={mark}".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def _is_lacking(said: bytes) -> bool:
    """This kernel was built without what the program tries to use."""
    return {"EAFNOSUPPORT", "ENOSYS", "EPROTONOSUPPORT"}.issuperset(answers(said).values())


def _everything(result: RunResult) -> bytes:
    """All bytes of a result that a program had a hand in."""
    names = [artifact.path for artifact in result.artifacts] + [skip.path for skip in result.skipped]
    contents = [artifact.content for artifact in result.artifacts]
    return b"\n".join([result.stdout, result.stderr, *(name.encode() for name in names), *contents])
