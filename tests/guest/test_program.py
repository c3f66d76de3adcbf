"""A program's output stream within its cap: past it discarded, or left where it is until there is room.
And a program for which there is no room at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from belljar.guest.program import Program, Sink


@pytest.fixture
def pipe() -> Iterator[tuple[Sink, int, int]]:
    """A sink, the end that a program writes to, and where the rest goes."""
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_blocking(read, False)
    yield Sink(read), write, null
    for fd in (read, write, null):
        os.close(fd)


def test_past_its_cap_output_is_counted_and_discarded(pipe: tuple[Sink, int, int]) -> None:
    sink, write, null = pipe
    sink.cap = 4
    os.write(write, b"abcdef")
    assert sink.read(null) == b"abcd"
    os.write(write, b"gh")
    assert (sink.read(null), sink.total) == (b"", 8)


def test_what_is_read_past_the_window_of_a_patient_reader_is_not_lost(pipe: tuple[Sink, int, int]) -> None:
    sink, write, null = pipe
    sink.cap, sink.patient = 4, True
    os.write(write, b"abcdef")
    assert sink.read(null) == b"abcdef"
    sink.cap += 1
    os.write(write, b"gh")
    assert (sink.full, sink.read(null), sink.total) == (True, b"gh", 8)


@pytest.mark.parametrize("room", range(7))
@pytest.mark.parametrize("kind", ["plain", "control", "terminal"])
def test_a_program_that_cannot_be_made_leaves_no_descriptor(kind: str, room: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    proc = os.open("/proc", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_with(room), hard))
    try:
        with pytest.raises(OSError, match="Too many open files|out of pty devices"):
            Program(proc, None, control=kind == "control", terminal=kind == "terminal")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(proc)
    assert set(os.listdir("/proc/self/fd")) == before


def _lowest_with(room: int) -> int:
    """The limit under which so many more descriptors can be had."""
    found = [os.open(os.devnull, os.O_RDONLY) for _ in range(room + 1)]
    for fd in found:
        os.close(fd)
    return found[-1]
