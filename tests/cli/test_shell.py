"""`belljar session shell` in a real terminal."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.cli.commands import BELLJAR, environment

if TYPE_CHECKING:
    from tests.cli.commands import Belljar, Service


class Person:
    """Somebody at a terminal."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def sees(self, text: str) -> None:
        until = time.monotonic() + 60
        while text.encode() not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0, until - time.monotonic()))
            assert ready, self._seen
            self._seen += os.read(self._master, 65536)
        self._seen = self._seen.partition(text.encode())[2]

    def resizes(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


@pytest.fixture
def person(caller: Belljar, service: Service) -> Iterator[Person]:
    session = caller("session", "start").out.strip()
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    process = subprocess.Popen(
        [*BELLJAR, "session", "shell", session],
        env=environment(service.data_dir, BELLJAR_RUNNER_URL=service.url, TERM="xterm"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    yield Person(master, process)
    process.kill()
    process.wait()
    os.close(master)
    caller("session", "stop", session)


def test_a_person_types_resizes_interrupts_and_leaves(person: Person) -> None:
    person.sees("$ ")
    person.type("stty size\r")
    person.sees("33 77")
    person.resizes(44, 99)
    person.type("until [ \"$(stty size)\" = '4'4' 99' ]; do sleep 0.1; done; stty size\r")
    person.sees("44 99")
    person.type("sh -c 'echo rea\"\"dy; exec sleep 100'\r")
    person.sees("ready")
    person.type("\x03")
    person.sees("$ ")
    person.type("exit 5\r")
    assert person.process.wait(60) == 5


def test_without_a_terminal_there_is_no_shell(caller: Belljar) -> None:
    ran = caller("session", "shell", "se-none")
    assert (ran.status, "terminal" in ran.err) == (2, True)
