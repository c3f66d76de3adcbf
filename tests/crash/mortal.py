"""`belljar serve`, but it kills itself with SIGKILL at the point that is named to it on its standard input.

It says its pid first, and each point when it is set.

The points are named here and not in belljar: each is the beginning or the end of a step that is a method of its
own, so it can be reached from outside, and no service carries code that could kill it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from belljar.audit.ledger import LedgerStore
from belljar.cli import main
from belljar.engines.guestjar import GuestJar
from belljar.execution import lifecycle
from belljar.execution.workspace import Workspace


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # until it has come


def before(step: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **more: die()


def after(step: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def dies(*args: Any, **more: Any) -> None:
        await step(*args, **more)
        die()

    return dies


def after_blocking(step: Callable[..., Any]) -> Callable[..., Any]:
    def dies(*args: Any, **more: Any) -> None:
        step(*args, **more)
        die()

    return dies


def at_first(step: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
    async def dies(*args: Any, **more: Any) -> AsyncIterator[Any]:
        async for event in step(*args, **more):
            die()
            yield event

    return dies


class Point(NamedTuple):
    owner: type
    step: str
    when: Callable[[Callable[..., Any]], Callable[..., Any]]


POINTS: Mapping[str, Point] = {
    "before_accept": Point(LedgerStore, "accept", before),
    "after_accept": Point(LedgerStore, "accept", after),
    "started_row": Point(LedgerStore, "start", after),
    "jar_made": Point(GuestJar, "put", before),
    "staged": Point(GuestJar, "exec", before),
    "program_started": Point(GuestJar, "exec", at_first),
    "program_ended": Point(GuestJar, "collect", before),
    "collected": Point(GuestJar, "collect", after),
    "jar_gone": Point(GuestJar, "destroy", after),
    "folder_begun": Point(Workspace, "_write_tree", before),
    "folder_written": Point(Workspace, "store", after_blocking),
    "finished_row": Point(LedgerStore, "finish", after),
    "answered": Point(Response, "__call__", after),
}


def doom(name: str) -> None:
    point = POINTS[name]
    setattr(point.owner, point.step, point.when(getattr(point.owner, point.step)))


def listen() -> None:
    for line in sys.stdin:
        doom(line.strip())
        say(line)


def say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    say(f"{os.getpid()}\n")
    lifecycle.SOON_S = 0  # short as they are, runs are written down as running
    if sys.argv[1] in POINTS:  # before it has even started
        doom(sys.argv.pop(1))
    threading.Thread(target=listen, daemon=True).start()
    main()
