"""`belljar session shell`: our terminal becomes one of the session, as long as the shell there lives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING

from belljar.errors import BadRequest

if TYPE_CHECKING:
    from belljar.client.terminals import AsyncTerminal

_READ = 1 << 16


def shell(session_id: str, term: str) -> int:
    """The exit status of the shell there."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadRequest("a shell needs a terminal; `belljar session run` takes a program", field="stdin")
    return asyncio.run(_shell(session_id, term))


async def _shell(session_id: str, term: str) -> int:
    from belljar.client import AsyncClient

    async with AsyncClient() as client:
        session = await client.get_session(session_id)
        columns, rows = os.get_terminal_size(0)  # not COLUMNS, which may be of another one
        async with session.terminal(rows, columns, term) as terminal:
            before = termios.tcgetattr(0)
            tty.setraw(0)
            try:
                await _connect(terminal)
            finally:
                termios.tcsetattr(0, termios.TCSADRAIN, before)
        return 125 if terminal.exit_code is None else terminal.exit_code


async def _connect(terminal: AsyncTerminal) -> None:
    """Bytes as they are in both directions: it is the person's own shell, and it wants the whole screen."""
    loop = asyncio.get_running_loop()
    typing = asyncio.create_task(_type(terminal))

    def resized() -> None:
        columns, rows = os.get_terminal_size(0)
        tasks.add(task := loop.create_task(terminal.resize(rows, columns)))
        task.add_done_callback(tasks.discard)

    tasks: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        async for data in terminal.output():
            while data:
                data = data[os.write(1, data) :]
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        typing.cancel()
        await asyncio.wait([typing])


async def _type(terminal: AsyncTerminal) -> None:
    """Reads no more than the line takes."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    while True:
        loop.add_reader(0, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(0)
        readable.clear()
        data = os.read(0, _READ)
        if not data:
            return
        await terminal.type(data)
