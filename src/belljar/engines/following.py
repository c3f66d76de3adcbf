"""One program that runs in a jar: the guest's frames become events, the kernel's counters a verdict.

The verdict is ours: a wait status, what the cgroup counted, and whether a clock of ours ended it. What the
guest says of anything else only has to make sense; if it does not, the jar is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from belljar.engines.tunnels import TOLD, Tunnels, told
from belljar.engines.watch import Push, Watch
from belljar.errors import EngineUnavailable
from belljar.guest import protocol
from belljar.models import (
    Ended,
    Event,
    Grant,
    OnOutputLimit,
    Output,
    Owner,
    Shown,
    Started,
    Stream,
    Usage,
    Verdict,
)

PATIENCE_S = 5.0
"""How long a guest that was told to kill everything may take to say so."""
MAX_SHOWN = 64
"""Results that one cell may show; more are not passed on."""
MAX_SHOWN_BYTES = 8 << 20


class Channel(Protocol):
    """What is needed of a link."""

    lost: str | None

    def notice(self, stream: int, tell: Callable[[protocol.Frame], None]) -> None: ...
    async def write_body(self, stream: int, content: bytes) -> None: ...
    async def next(self, stream: int) -> protocol.Frame: ...
    def fail(self, why: str) -> None: ...


class Followed(Protocol):
    """What is needed of a jar."""

    grant: Grant
    owner: Owner | None
    posture: str
    held_by: Mapping[str, str]

    def counters(self) -> Mapping[str, int]: ...
    async def settle(self) -> None: ...

    @property
    def link(self) -> Channel: ...


class Following:
    def __init__(
        self,
        jar: Followed,
        stream: int,
        stdin: bytes,
        before: Mapping[str, int],
        push: Callable[[Push], None],
        tunnels: Tunnels | None = None,
    ) -> None:
        """`before`: the counters when the guest was not yet told; a program may be over before we go on."""
        self.stream = stream
        self.ended = False
        self._jar = jar
        self._stdin = stdin
        self._started = False
        self._shown = self._shown_bytes = 0
        self._before = before
        self._watch = Watch(jar.grant.limits, push, PATIENCE_S)
        jar.link.notice(stream, self._hear)
        self._tunnels = tunnels
        if tunnels is not None:
            tunnels.begin(stream, jar.owner)

    def cancel(self) -> None:
        self._watch.stop(Verdict.CANCELLED)

    async def events(self) -> AsyncIterator[Event]:
        """Started, Output…, Ended; the last always comes, whatever the guest does."""
        link = self._jar.link
        feeding = asyncio.create_task(link.write_body(self.stream, self._stdin))
        try:
            while not self.ended:
                try:
                    event = self._understand(await link.next(self.stream))
                except EngineUnavailable:
                    await self._jar.settle()
                    event = self._lost()
                except (protocol.ProtocolError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                    link.fail(f"the guest broke the rules: {error}")
                    event = self._lost()
                if event is not None:
                    self.ended = isinstance(event, Ended)
                    yield event
        finally:
            self._end_tunnels()
            self._watch.close()
            feeding.cancel()

    def _hear(self, frame: protocol.Frame) -> None:
        """When a frame arrives: the clocks must not depend on when it is read."""
        self._watch.touch()
        if frame.kind == protocol.END:
            self._watch.close()
            self._end_tunnels()  # nothing is decided after the end of the run whose record has to say it
        elif frame.kind == protocol.NOTE and frame.payload.startswith(b'{"started"'):
            if not self._watch.start():
                raise protocol.ProtocolError("a program that starts twice")
        elif frame.kind == protocol.NOTE and frame.payload.startswith(b'{"out"'):
            if self._jar.grant.on_output_limit is OnOutputLimit.KILL:
                self._watch.stop(Verdict.OUTPUT_LIMIT)  # the program writes past a cap

    def _end_tunnels(self) -> None:
        if self._tunnels is not None:
            self._tunnels.end(self.stream)

    def _understand(self, frame: protocol.Frame) -> Event | None:
        if frame.kind in (protocol.OUT, protocol.ERR):
            name = Stream.STDOUT if frame.kind == protocol.OUT else Stream.STDERR
            if not self._watch.heard(name, len(frame.payload)):
                raise protocol.ProtocolError("more output than was asked for")
            return Output(name, frame.payload)
        if frame.kind == protocol.NOTE:
            return self._noted(frame.json(), len(frame.payload))
        if frame.kind == protocol.END:
            return self._ended(frame.json())
        if frame.kind == TOLD:
            return told(frame)
        raise protocol.ProtocolError("a frame that is not the guest's to send")

    def _noted(self, note: Mapping[str, Any], size: int) -> Event | None:
        if "started" in note:
            if self._started:
                raise protocol.ProtocolError("a program that starts twice")
            self._started = True
            return Started(self._jar.posture)
        if "result" not in note:
            return None
        self._shown += 1
        self._shown_bytes += size
        forms = note["result"]
        if not isinstance(forms, dict) or not all(isinstance(mime, str) for mime in forms):
            raise protocol.ProtocolError("a result that is none")
        fits = self._shown <= MAX_SHOWN and self._shown_bytes <= MAX_SHOWN_BYTES
        return Shown(forms) if fits and _is_json(forms) else None

    def _ended(self, facts: Mapping[str, Any]) -> Ended:
        if "error" in facts:
            raise protocol.ProtocolError(f"it was not run: {facts['error']}")
        out, err = count(facts["out"]), count(facts["err"])
        if "done" in facts:  # a cell of a context that lives on
            code: int | None = 0 if facts["done"] is True else 1
            number = None
        else:
            status = count(facts["status"])
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        usage = self._usage(disk_full=bool(facts["full"]))
        failed = code != 0
        if self._watch.reason is not None:
            verdict = self._watch.reason
        elif usage.oom_kills and failed:
            verdict = Verdict.OOM
        elif usage.disk_full and failed:
            verdict = Verdict.DISK_FULL
        else:
            verdict = Verdict.SIGNALED if number is not None else Verdict.EXITED
        return Ended(
            verdict=verdict,
            exit_code=code,
            signal=number,
            stdout_bytes=out,
            stderr_bytes=err,
            usage=usage,
        )

    def _lost(self) -> Ended:
        """The guest is gone: the kernel's counters, or our own stopping of it, may still say why."""
        usage = self._usage(disk_full=False)
        verdict = self._watch.reason or (Verdict.OOM if usage.oom_kills else Verdict.LOST)
        return Ended(
            verdict=verdict,
            exit_code=None,
            signal=int(signal.SIGKILL),
            stdout_bytes=self._watch.bytes[Stream.STDOUT],
            stderr_bytes=self._watch.bytes[Stream.STDERR],
            usage=usage,
        )

    def _usage(self, *, disk_full: bool) -> Usage:
        before, after = self._before, self._jar.counters()
        return Usage(
            wall_s=self._watch.elapsed(),
            cpu_s=(after["cpu_us"] - before["cpu_us"]) / 1e6,
            memory_peak_mb=round(after["memory_peak"] / (1 << 20), 2),
            pids_peak=max(0, after["pids_peak"] - 1),  # without the guest
            oom_kills=max(0, after["oom_kills"] - before["oom_kills"]),  # a lost jar counts nothing any more
            pids_refused=after["pids_refused"] - before["pids_refused"],
            disk_full=disk_full,
            network_bytes_sent=after.get("network_sent", 0) - before.get("network_sent", 0),
            network_bytes_recv=after.get("network_received", 0) - before.get("network_received", 0),
            held_by=self._jar.held_by,
        )


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def count(value: object) -> int:
    """ProtocolError where it is none."""
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise protocol.ProtocolError("a count that cannot be")
    return value
