"""The clocks of one run: when a program has to be ended, why, and how hard to push next.

SIGTERM at the deadline, SIGKILL after the grace, and if the guest does not answer for a while, the end
of the jar. The clocks ring by themselves: a caller that does not read its events cannot delay them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from enum import Enum

from belljar.models import Limits, Stream, Verdict


class Push(Enum):
    """What to do to a program, gentlest first."""

    TERMINATE = int(signal.SIGTERM)
    KILL = int(signal.SIGKILL)
    DESTROY = -1


class Watch:
    def __init__(self, limits: Limits, push: Callable[[Push], None], patience_s: float) -> None:
        self._limits = limits
        self._push = push
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._started = self._heard = self._loop.time()
        self._begun = False
        self._ended: float | None = None
        self._last_push: Push | None = None
        self._wanted: Verdict | None = None
        self._timer = self._loop.call_at(self._deadline(), self._ring)
        self.reason: Verdict | None = None
        """Why we ended it; None when it ended by itself."""
        self.bytes = {Stream.STDOUT: 0, Stream.STDERR: 0}

    def start(self) -> bool:
        """The program begins to run; false when it had begun before."""
        if self._begun:
            return False
        self._begun = True
        self._started = self._heard = self._loop.time()
        return True

    def touch(self) -> None:
        self._heard = self._loop.time()

    def heard(self, stream: Stream, count: int) -> bool:
        """So many bytes more were written; false when that is above the cap."""
        self.bytes[stream] += count
        cap_kb = self._limits.stdout_kb if stream is Stream.STDOUT else self._limits.stderr_kb
        return self.bytes[stream] <= cap_kb << 10

    def stop(self, reason: Verdict) -> None:
        if self._last_push is None and self._ended is None:
            self._wanted = self._wanted or reason
            self._ring()

    def elapsed(self) -> float:
        return (self._ended or self._loop.time()) - self._started

    def close(self) -> None:
        """It is over: nothing rings any more."""
        self._ended = self._ended or self._loop.time()
        self._timer.cancel()

    def _ring(self) -> None:
        if self._last_push is None:
            self.reason = self._why()
            if self.reason is None:  # it has spoken since the clock was set
                self._timer = self._loop.call_at(self._deadline(), self._ring)
            elif self._limits.grace_s > 0:
                self._push_and_wait(Push.TERMINATE, self._limits.grace_s)
            else:
                self._push_and_wait(Push.KILL, self._patience_s)
        elif self._last_push is Push.TERMINATE:
            self._push_and_wait(Push.KILL, self._patience_s)
        else:
            self._push_and_wait(Push.DESTROY, self._patience_s)

    def _push_and_wait(self, push: Push, seconds: float) -> None:
        self._last_push = push
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._ring)
        self._push(push)

    def _deadline(self) -> float:
        deadline = self._started + self._limits.timeout_s
        if self._limits.idle_timeout_s > 0:
            deadline = min(deadline, self._heard + self._limits.idle_timeout_s)
        return deadline

    def _why(self) -> Verdict | None:
        now = self._loop.time()
        if self._wanted is not None:
            return self._wanted
        if now >= self._started + self._limits.timeout_s:
            return Verdict.TIMEOUT
        return Verdict.IDLE_TIMEOUT if now >= self._deadline() else None
