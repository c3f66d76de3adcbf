"""How a run's output is told: promptly to who listens, in few pieces to nobody, and never changed afterwards."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from belljar.execution import events
from belljar.execution.events import EventLog, RunEvent
from belljar.models import Output, Stream

if TYPE_CHECKING:
    import pytest

OUT, ERR = Stream.STDOUT, Stream.STDERR


def write(log: EventLog, stream: Stream, data: bytes) -> None:
    log.add_engine_event(Output(stream, data))


def stored(log: EventLog) -> list[RunEvent]:
    return [RunEvent.from_line(line) for line in log.lines()]


def bytes_of(told: Sequence[RunEvent], stream: Stream) -> bytes:
    return b"".join(base64.b64decode(event.data["data_b64"]) for event in told if event.kind == stream)


async def test_what_nobody_has_heard_is_told_in_larger_pieces() -> None:
    log = EventLog()
    for _ in range(100_000):
        write(log, OUT, b"x")
    told = stored(log)
    assert bytes_of(told, OUT) == b"x" * 100_000
    assert len(told) == -(-100_000 // events.PIECE_BYTES)


async def test_the_order_of_both_streams_is_kept() -> None:
    log = EventLog()
    for stream, data in ((OUT, b"a"), (OUT, b"b"), (ERR, b"c"), (OUT, b"d")):
        write(log, stream, data)
    log.add("ended")
    write(log, OUT, b"e")
    told = [(event.number, event.kind, event.data.get("text")) for event in stored(log)]
    assert told == [
        (1, "stdout", "ab"),
        (2, "stderr", "c"),
        (3, "stdout", "d"),
        (4, "ended", None),
        (5, "stdout", "e"),
    ]


async def test_there_are_few_events_however_the_streams_alternate() -> None:
    log = EventLog()
    for _ in range(100_000):
        write(log, OUT, b"o")
        write(log, ERR, b"e")
    told = stored(log)
    assert (bytes_of(told, OUT), bytes_of(told, ERR)) == (b"o" * 100_000, b"e" * 100_000)
    assert len(told) < events.MANY + 100


async def test_who_listens_hears_each_piece_at_once_and_what_was_heard_stays() -> None:
    log = EventLog()
    heard = []
    listening = log.follow()
    for number in range(5):
        write(log, OUT, b"%d" % number)
        heard.append(await anext(listening))
    assert [event.data["text"] for event in heard] == ["0", "1", "2", "3", "4"]
    assert stored(log) == heard


async def test_who_waits_is_woken_by_a_single_byte() -> None:
    log = EventLog()
    waiting = asyncio.ensure_future(anext(log.follow()))
    await asyncio.sleep(0)
    write(log, OUT, b"x")
    async with asyncio.timeout(10):
        assert (await waiting).data["text"] == "x"


async def test_a_listener_of_many_events_is_told_small_ones_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MANY", 10)
    monkeypatch.setattr(events, "PAUSE_S", 3600)
    log = EventLog()
    heard: list[RunEvent] = []

    async def listen() -> None:
        async for event in log.follow():
            heard.append(event)

    listening = asyncio.create_task(listen())
    for _ in range(50_000):
        write(log, OUT, b"x")
        await asyncio.sleep(0)
    log.close()
    await listening
    assert heard == stored(log)
    assert bytes_of(heard, OUT) == b"x" * 50_000
    assert len(heard) < 10 + 50_000 / events.PIECE_BYTES + 2


async def test_a_listener_of_many_events_does_not_wait_for_a_full_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MANY", 0)
    log = EventLog()
    write(log, OUT, b"x")
    async with asyncio.timeout(10):
        assert (await anext(log.follow())).data["text"] == "x"


@given(
    st.lists(st.tuples(st.sampled_from((OUT, ERR, None)), st.binary(min_size=1, max_size=3000)), max_size=60)
)
async def test_no_byte_is_lost_and_a_late_reader_hears_the_same(
    said: list[tuple[Stream | None, bytes]],
) -> None:
    log = EventLog()
    early: list[RunEvent] = []
    for stream, data in said:
        if stream is not None:
            write(log, stream, data)
        else:  # somebody comes, and hears all that there is
            log.add("alert")
            listening = log.follow(len(early))
            while len(early) < len(stored(log)):
                early.append(await anext(listening))
    log.close()
    late = [event async for event in log.follow()]
    assert late == stored(log)
    assert late[: len(early)] == early
    assert [event.number for event in late] == list(range(1, len(late) + 1))
    for stream in (OUT, ERR):
        assert bytes_of(late, stream) == b"".join(data for to, data in said if to is stream)
