"""A jar against a guest that a program has taken over: whatever it says, the host keeps its head.

The guest is played by the tests, frame by frame.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from belljar.engines.base import WORK, Area, Command
from belljar.engines.guestjar import GuestJar
from belljar.engines.kept import KeptJar
from belljar.engines.link import Link
from belljar.errors import EngineUnavailable, PathNotAllowed
from belljar.guest import protocol
from belljar.models import Ended, Event, Grant, InputFile, Limits, Output, Started, Verdict

COUNTERS = {"memory_peak": 0, "oom_kills": 0, "cpu_us": 0, "pids_peak": 1, "pids_refused": 0}
LIMITS = Limits(stdout_kb=1, artifact_files=3, artifact_mb=1, timeout_s=5)
FIRST = 2
"""Stream of the first operation."""

STARTED = protocol.encode_json(protocol.NOTE, FIRST, started=True)
FACTS = {"status": 0, "out": 0, "err": 0, "full": False}


class Guest(asyncio.Transport):
    """Says what it is told to say, once somebody asks it for something."""

    def __init__(self, *says: bytes) -> None:
        super().__init__()
        self._says = list(says)
        self.link = Link()
        self.link.connection_made(self)
        self.paused = False
        self.closed = False

    def write(self, data: object) -> None:
        says, self._says = self._says, []
        for frame in says:
            asyncio.get_running_loop().call_soon(self.say, frame)

    def say(self, frame: bytes) -> None:
        if not self.closed:
            self.link.data_received(frame)

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self.link.connection_lost(None)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def jar_of(guest: Guest, limits: Limits = LIMITS, kill: Callable[[], None] | None = None) -> GuestJar:
    async def destroy() -> None: ...

    return GuestJar(
        Grant(limits=limits),
        guest.link,
        base_env={},
        held_by={},
        counters=lambda: COUNTERS,
        kill=kill or guest.abort,
        destroy=destroy,
        timings={},
    )


def end(**facts: object) -> bytes:
    return protocol.encode_json(protocol.END, FIRST, **facts)


def note(**fields: object) -> bytes:
    return protocol.encode_json(protocol.NOTE, FIRST, **fields)


async def told(guest: Guest) -> list[Event]:
    jar = jar_of(guest)
    events = [event async for event in jar.exec(Command(argv=("x",)))]
    await jar.destroy()
    return events


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(protocol.encode(protocol.END, FIRST, b"not json"), id="no-json"),
        pytest.param(protocol.encode(protocol.END, FIRST, b"[" * 100_000), id="deep-json"),
        pytest.param(protocol.encode(protocol.END, FIRST, b"[]"), id="no-object"),
        pytest.param(end(), id="no-facts"),
        pytest.param(end(**{**FACTS, "status": "zero"}), id="status-is-text"),
        pytest.param(end(**{**FACTS, "status": None}), id="status-is-null"),
        pytest.param(end(**{**FACTS, "status": 1 << 80}), id="status-is-huge"),
        pytest.param(end(**{**FACTS, "out": [1]}), id="count-is-a-list"),
        pytest.param(end(**{**FACTS, "out": float("inf")}), id="count-is-infinite"),
        pytest.param(protocol.encode(protocol.NOTE, FIRST, b"{"), id="broken-note"),
        pytest.param(protocol.encode(protocol.OUT, FIRST, bytes(1025)), id="more-than-the-cap"),
        pytest.param(protocol.encode(protocol.OUT, FIRST, bytes(600)) * 2, id="more-than-the-cap-in-parts"),
        pytest.param(protocol.HEADER.pack(99, FIRST, 0), id="unknown-kind"),
        pytest.param(
            protocol.HEADER.pack(protocol.OUT, FIRST, protocol.MAX_PAYLOAD + 1), id="frame-too-large"
        ),
    ],
)
async def test_a_run_whose_guest_breaks_the_rules_is_lost(says: bytes) -> None:
    events = await told(Guest(STARTED, says))
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.LOST
    assert sum(len(event.data) for event in events if isinstance(event, Output)) <= 1024


async def test_counts_are_never_less_than_what_was_heard() -> None:
    events = await told(
        Guest(STARTED, protocol.encode(protocol.OUT, FIRST, b"heard"), end(**{**FACTS, "out": -7}))
    )
    assert isinstance(events[-1], Ended)
    assert events[-1].stdout_bytes == 5


async def test_frames_of_streams_that_nobody_opened_are_ignored() -> None:
    stranger = protocol.encode(protocol.END, 77, b"{")
    events = await told(Guest(stranger, STARTED, stranger, end(**FACTS)))
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.EXITED


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(
            [note(file="a")] + [protocol.encode(protocol.DATA, FIRST, bytes(1 << 19))] * 3, id="bytes"
        ),
        pytest.param([note(file="a"), protocol.encode(protocol.EOF, FIRST)] * 4, id="files"),
        pytest.param([note(skipped="a", reason="symlink")] * 5000, id="skips"),
        pytest.param([note(file="a")] * 5000, id="file-in-file"),
        pytest.param([note(file="a"), end()], id="end-in-file"),
        pytest.param([note(skipped="a", reason="because")], id="unknown-reason"),
        pytest.param([note(skipped="a")], id="no-reason"),
        pytest.param([note()], id="nothing"),
        pytest.param([note(file="\ud800"), protocol.encode(protocol.EOF, FIRST)], id="half-a-character"),
        pytest.param([protocol.encode(protocol.NOTE, FIRST, b"[]")], id="no-object"),
        pytest.param([protocol.encode(protocol.DATA, FIRST, b"stray")], id="stray-data"),
    ],
)
async def test_a_guest_that_breaks_the_rules_of_collecting_loses_its_jar(says: list[bytes]) -> None:
    jar = jar_of(Guest(*says))
    with pytest.raises(EngineUnavailable):
        await jar.collect(None)
    await jar.destroy()


async def test_what_is_left_out_may_be_named_in_place_of_the_rest_of_a_file() -> None:
    cut = [
        note(file="a"),
        protocol.encode(protocol.DATA, FIRST, b"half"),
        note(skipped="a", reason="unreadable"),
    ]
    whole = [note(file="b"), protocol.encode(protocol.EOF, FIRST)]
    collected = await jar_of(Guest(*cut, *whole, end())).collect(None)
    assert [artifact.path for artifact in collected.artifacts] == ["b"]
    assert [skipped.path for skipped in collected.skipped] == ["a"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"null"])
async def test_a_senseless_answer_to_a_file_loses_the_jar(answer: bytes) -> None:
    jar = jar_of(Guest(protocol.encode(protocol.END, FIRST, answer)))
    with pytest.raises(EngineUnavailable):
        await jar.put(Area.WORK, [InputFile("a", b"x")])


async def test_a_guest_cannot_make_the_host_hold_more_than_it_reads() -> None:
    """Nobody reads stream 0 once the guest is ready; nobody need be reading the others in time."""
    guest = Guest()
    frame = protocol.encode(protocol.NOTE, 0, json.dumps({"x": "x" * 60_000}).encode())
    for _ in range(1000):
        if guest.paused or guest.closed:
            break
        guest.say(frame)
    assert guest.paused or guest.closed


async def test_all_the_output_that_was_granted_may_wait_for_its_reader() -> None:
    output = [protocol.encode(protocol.OUT, FIRST, bytes(1 << 20)) for _ in range(40)]
    guest = Guest(STARTED + b"".join(output) + end(**FACTS))
    events = [event async for event in jar_of(guest, Limits(stdout_kb=40 << 10)).exec(Command(argv=("x",)))]
    assert sum(len(event.data) for event in events if isinstance(event, Output)) == 40 << 20
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.EXITED


async def test_a_guest_that_had_to_wait_is_heard_to_its_end() -> None:
    chunks = [protocol.encode(protocol.DATA, FIRST, b"x") for _ in range(20_000)]
    guest = Guest(note(file="a"), *chunks, protocol.encode(protocol.EOF, FIRST), end())
    collected = await jar_of(guest).collect(None)
    assert collected.artifacts[0].content == b"x" * 20_000
    assert not guest.paused


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda jar: KeptJar(jar).listing(Area.WORK), id="listing"),
        pytest.param(lambda jar: jar.put(Area.WORK, [InputFile("a", b"x")]), id="put"),
        pytest.param(lambda jar: jar.collect(None), id="collect"),
    ],
)
@pytest.mark.parametrize("early", [True, False], ids=["before-it-comes", "when-it-came"])
async def test_an_answer_that_nobody_waits_for_any_more_costs_nothing(
    ask: Callable[[GuestJar], Coroutine[Any, Any, object]], early: bool
) -> None:
    guest = Guest()
    jar = jar_of(guest)
    for number in range(3):
        asking = asyncio.create_task(ask(jar))
        await asyncio.sleep(0)
        answer = protocol.encode(protocol.NOTE, FIRST + 2 * number, bytes(1 << 20)) * 20
        if early:
            asking.cancel()
            await asyncio.wait([asking])
            guest.say(answer)
        else:
            guest.say(answer)
            asking.cancel()
            await asyncio.wait([asking])
    assert jar.alive


async def test_a_run_ends_although_nobody_sees_its_guest_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it has to wait: then nobody reads the channel, and its end is not noticed."""
    monkeypatch.setattr("belljar.engines.following.PATIENCE_S", 0.1)
    killed = []
    jar = jar_of(Guest(STARTED), Limits(grace_s=0), kill=lambda: killed.append(True))
    events = jar.exec(Command(argv=("x",)))
    assert await anext(events)
    jar.cancel()
    async with asyncio.timeout(30):
        last = [event async for event in events][-1]
    assert isinstance(last, Ended)
    assert last.verdict is Verdict.CANCELLED
    assert killed


async def test_a_guest_cannot_start_the_clock_again() -> None:
    guest = Guest(STARTED)
    jar = jar_of(guest, Limits(timeout_s=0.3, grace_s=0))

    async def start_again() -> None:
        while True:
            await asyncio.sleep(0.05)
            guest.say(STARTED)

    again = asyncio.create_task(start_again())
    async with asyncio.timeout(30):
        events = [event async for event in jar.exec(Command(argv=("x",)))]
    again.cancel()
    assert [type(event) for event in events] == [Started, Ended]
    await jar.destroy()


async def test_a_file_that_is_refused_leaves_no_answer_to_the_others_behind() -> None:
    guest = Guest(end(error="outside"))
    jar = jar_of(guest)
    with pytest.raises(PathNotAllowed):
        await jar.put(Area.WORK, [InputFile(name, b"x") for name in "ab"])
    guest.say(protocol.encode(protocol.END, FIRST + 2, bytes(1 << 20)) * 40)
    assert jar.alive


async def test_a_context_that_nobody_hands_anything_may_speak_on() -> None:
    guest = Guest()
    jar = jar_of(guest)
    kept = KeptJar(jar)
    await kept.context("main", {}, WORK)
    guest.say(note(out=1, err=0) * 200_000)
    assert jar.alive
    guest.say(end(**FACTS))
    assert kept.contexts == ()


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["small", "large"])
async def test_a_guest_that_takes_no_file_loses_its_jar(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("belljar.engines.link.PATIENCE_S", 0.02)
    guest = Guest()
    guest.link.pause_writing()
    jar = jar_of(guest)
    async with asyncio.timeout(30):
        with pytest.raises(EngineUnavailable):
            await jar.put(Area.WORK, [InputFile("a", bytes(size))])
    assert not jar.alive


async def test_a_terminal_that_never_begins_loses_the_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belljar.engines.link.PATIENCE_S", 0.02)
    jar = jar_of(Guest())
    terminal = KeptJar(jar).terminal(Command(argv=("sh",)), 24, 80)
    async with asyncio.timeout(30):
        with pytest.raises(EngineUnavailable):
            await terminal.begin()
    assert not jar.alive
