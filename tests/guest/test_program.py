"""A program's output stream within its cap: past it discarded, or left where it is until there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from belljar.guest.program import Sink


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
