"""A guest that was taken over speaks to the host: whatever it says, the host stays sound.

No program that we know of can take it over; here the test itself is the guest, at its end of the channel.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from tests.hostile.attacks import SMALL

from belljar.engines import following
from belljar.engines import link as links
from belljar.engines.base import Area, Command
from belljar.engines.guestjar import GuestJar
from belljar.engines.kept import KeptJar
from belljar.engines.link import Link
from belljar.errors import BelljarError, EngineUnavailable
from belljar.guest import protocol
from belljar.models import Ended, Event, Grant, Verdict

EXEC = 2
"""The stream of the first thing that the host asks for."""


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BII", kind, stream, len(payload)) + payload


def note(kind: int, stream: int = EXEC, **fields: object) -> bytes:
    return frame(kind, stream, json.dumps(fields).encode())


STARTED = note(protocol.NOTE, started=True)
ENDED = note(protocol.END, status=0, out=0, err=0, full=False)


@asynccontextmanager
async def forger() -> AsyncIterator[tuple[GuestJar, asyncio.StreamWriter]]:
    """A jar, and the end of its channel at which its guest should sit."""
    ours, theirs = socket.socketpair()
    _, link = await asyncio.get_running_loop().create_connection(Link, sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    counters = dict.fromkeys(("memory_peak", "oom_kills", "cpu_us", "pids_peak", "pids_refused"), 0)

    async def nothing() -> None:
        return

    jar = GuestJar(
        Grant(limits=SMALL),
        link,
        base_env={},
        held_by={},
        counters=lambda: counters,
        kill=lambda: None,
        destroy=nothing,
        timings={},
    )
    drain = asyncio.create_task(reader.read())
    try:
        yield jar, writer
    finally:
        await jar.destroy()
        drain.cancel()
        writer.close()
        await asyncio.sleep(0)


async def outcome(said: bytes) -> Ended:
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(said)
        events: list[Event] = [event async for event in jar.exec(Command(argv=("x",)))]
    assert isinstance(events[-1], Ended)
    assert sum(isinstance(event, Ended) for event in events) == 1
    return events[-1]


BROKEN = [
    pytest.param(frame(protocol.END, EXEC, b"not json"), id="end-is-no-json"),
    pytest.param(frame(protocol.END, EXEC, b"[]"), id="end-is-no-object"),
    pytest.param(frame(protocol.END, EXEC, b"[" * 100_000), id="end-is-deep"),
    pytest.param(frame(protocol.END, EXEC, b"{}"), id="end-is-empty"),
    pytest.param(note(protocol.END, status="x", out=0, err=0, full=False), id="status-is-text"),
    pytest.param(note(protocol.END, status=None, out=0, err=0, full=False), id="status-is-null"),
    pytest.param(note(protocol.END, status=10**30, out=0, err=0, full=False), id="status-is-huge"),
    pytest.param(note(protocol.END, status=[0], out=0, err=0, full=False), id="status-is-a-list"),
    pytest.param(note(protocol.END, status=0, out={}, err=0, full=False), id="count-is-an-object"),
    pytest.param(note(protocol.END, status=0, out=-5, err=0, full=False), id="count-is-negative"),
    pytest.param(
        frame(protocol.END, EXEC, b'{"status": 0, "out": 1e999, "err": 0, "full": false}'),
        id="count-is-infinite",
    ),
    pytest.param(
        frame(protocol.END, EXEC, b'{"status": 0, "out": NaN, "err": 0, "full": false}'), id="count-is-nan"
    ),
    pytest.param(frame(protocol.END, EXEC, b'{"status": ' + b"9" * 5000 + b"}"), id="number-is-endless"),
    pytest.param(frame(protocol.NOTE, EXEC, b"not json"), id="note-is-no-json"),
    pytest.param(frame(99, EXEC, b""), id="kind-is-unknown"),
    pytest.param(struct.pack(">BII", protocol.OUT, EXEC, 2**32 - 1), id="frame-is-4-gigabytes"),
    pytest.param(frame(protocol.OUT, EXEC, bytes((SMALL.stdout_kb << 10) + 1)), id="output-past-the-cap"),
    pytest.param(frame(protocol.EOF, EXEC, b""), id="frame-that-is-not-the-guests"),
    pytest.param(b"\xff" * 100_000, id="noise"),
]


@pytest.mark.parametrize("said", BROKEN)
async def test_guest_that_breaks_the_rules_is_lost(said: bytes) -> None:
    ended = await outcome(STARTED + said)
    assert ended.verdict is Verdict.LOST
    assert ended.stdout_bytes >= 0


async def test_guest_that_hangs_up_is_lost() -> None:
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(STARTED + frame(protocol.OUT, EXEC, b"last words"))
        writer.close()
        events = [event async for event in jar.exec(Command(argv=("x",)))]
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.LOST


async def test_frames_of_streams_that_nobody_opened_are_dropped() -> None:
    foreign = b"".join(note(protocol.END, stream, status=0) for stream in (1, 3, 4, 6, 2**32 - 1))
    ended = await outcome(foreign + STARTED + foreign + ENDED)
    assert (ended.verdict, ended.exit_code) == (Verdict.EXITED, 0)


async def test_second_end_is_not_heard() -> None:
    ended = await outcome(STARTED + ENDED + note(protocol.END, status=256, out=0, err=0, full=False))
    assert (ended.verdict, ended.exit_code) == (Verdict.EXITED, 0)


@pytest.mark.parametrize("stream", [0, EXEC], ids=["greeting", "program"])
async def test_flood_of_frames_does_not_fill_the_host(stream: int) -> None:
    """Nobody reads, or nobody reads as fast; 200 MB may be sent and 64 may be kept."""
    chatter = note(protocol.NOTE, stream, out=0, err=0, padding="x" * 60_000) * 50
    before = _peak_kb()

    async def flood(writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(70):
                writer.write(chatter)
                await writer.drain()
        except ConnectionError:
            pass  # the host has had enough

    async with forger() as (jar, writer):
        writer.write(STARTED)
        async for _ in jar.exec(Command(argv=("x",))):
            with suppress(TimeoutError):  # the host takes no more until what it has is read
                async with asyncio.timeout(1.5):
                    await flood(writer)
            break
    assert _peak_kb() - before < 64 << 10


COLLECTED: list[tuple[str, Callable[[int], bytes]]] = [
    ("bad-json", lambda stream: frame(protocol.NOTE, stream, b"{")),
    ("no-name", lambda stream: note(protocol.NOTE, stream, what="?")),
    ("bad-reason", lambda stream: note(protocol.NOTE, stream, skipped="a", reason="because")),
    (
        "too-many-files",
        lambda stream: (note(protocol.NOTE, stream, file="a") + frame(protocol.EOF, stream, b"")) * 51,
    ),
    ("too-many-skips", lambda stream: note(protocol.NOTE, stream, skipped="a", reason="symlink") * 9000),
    (
        "too-many-bytes",
        lambda stream: (
            note(protocol.NOTE, stream, file="a") + frame(protocol.DATA, stream, bytes(1 << 20)) * 5
        ),
    ),
    ("file-without-end", lambda stream: note(protocol.NOTE, stream, file="a") + note(protocol.END, stream)),
    ("name-is-a-list", lambda stream: note(protocol.NOTE, stream, skipped=["a"], reason=["symlink"])),
]


@pytest.mark.parametrize("said", [pytest.param(said, id=name) for name, said in COLLECTED])
async def test_collecting_from_a_liar_is_an_error_of_ours(said: Callable[[int], bytes]) -> None:
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(said(EXEC))
        with pytest.raises(EngineUnavailable):
            await jar.collect(None)


async def test_artifact_of_a_liar_is_what_was_received() -> None:
    """Its name is shown harmless, its size counted here."""
    name = "folder/\x1b[2J\npasswd"
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(
            note(protocol.NOTE, EXEC, file=name, size=10**12)
            + frame(protocol.DATA, EXEC, b"12345")
            + frame(protocol.EOF, EXEC, b"")
            + note(protocol.END, EXEC)
        )
        left = await jar.collect(None)
    (artifact,) = left.artifacts
    assert (artifact.size, artifact.content) == (5, b"12345")
    assert artifact.path.isprintable()


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", "..", "a//b", "a/./b", "", "a\0b"])
async def test_path_that_leads_outside_is_not_taken_from_a_liar(path: str) -> None:
    """Whoever lands artifacts in a folder joins these to it."""
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(
            note(protocol.NOTE, EXEC, file=path) + frame(protocol.EOF, EXEC, b"") + note(protocol.END, EXEC)
        )
        with pytest.raises(EngineUnavailable):
            await jar.collect(None)


async def test_silent_guest_does_not_hold_the_collector_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATIENCE_S", 0.2)
    async with forger() as (jar, _), asyncio.timeout(30):
        with pytest.raises(BelljarError):
            await jar.collect(None)


def entries(*listed: object) -> bytes:
    return note(protocol.NOTE, entries=listed) + note(protocol.END)


LISTED = [
    pytest.param(frame(protocol.NOTE, EXEC, b"[]") + note(protocol.END), id="no-object"),
    pytest.param(frame(protocol.OUT, EXEC, b"\xff") + note(protocol.END), id="no-json"),
    pytest.param(note(protocol.NOTE, entries=7) + note(protocol.END), id="entries-are-a-number"),
    pytest.param(entries("a"), id="entry-is-text"),
    pytest.param(entries({"path": "a"}), id="no-kind"),
    pytest.param(entries({"path": 1, "kind": 1}), id="path-is-a-number"),
    pytest.param(entries({"path": "\ud800", "kind": "regular"}), id="half-a-character"),
    pytest.param(entries({"path": "a", "kind": "regular", "size": -1}), id="size-is-negative"),
    pytest.param(entries({"path": "a", "kind": "regular", "mtime_ns": []}), id="time-is-a-list"),
    pytest.param(frame(protocol.NOTE, EXEC, bytes(1 << 20)) * 60 + note(protocol.END), id="too-many-bytes"),
    pytest.param(frame(protocol.NOTE, EXEC, b"{}") * 400_000 + note(protocol.END), id="too-many-frames"),
]


@pytest.mark.parametrize("said", LISTED)
async def test_listing_of_a_liar_is_an_error_of_ours(said: bytes) -> None:
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(said)
        with pytest.raises(EngineUnavailable):
            await KeptJar(jar).listing(Area.WORK)
        assert not jar.alive


@pytest.mark.parametrize("size", [None, "4", -1, 2**80])
async def test_file_of_a_liar_is_an_error_of_ours(size: object) -> None:
    async with forger() as (jar, writer), asyncio.timeout(30):
        writer.write(frame(protocol.DATA, EXEC, b"1234") + note(protocol.END, size=size))
        with pytest.raises(EngineUnavailable):
            await KeptJar(jar).read(Area.WORK, "a", length=4)
        assert not jar.alive


async def test_silent_guest_does_not_outlive_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to end the program, gently and then not; then it is itself ended, as the channel shows."""
    monkeypatch.setattr(following, "PATIENCE_S", 0.2)
    ours, theirs = socket.socketpair()
    _, link = await asyncio.get_running_loop().create_connection(Link, sock=ours)
    counters = dict.fromkeys(("memory_peak", "oom_kills", "cpu_us", "pids_peak", "pids_refused"), 0)

    async def nothing() -> None:
        return

    jar = GuestJar(
        Grant(limits=SMALL.__class__(timeout_s=0.2, grace_s=0.1)),
        link,
        base_env={},
        held_by={},
        counters=lambda: counters,
        kill=theirs.close,
        destroy=nothing,
        timings={},
    )
    theirs.send(STARTED)
    async with asyncio.timeout(30):
        events = [event async for event in jar.exec(Command(argv=("x",)))]
    await jar.destroy()
    assert isinstance(events[-1], Ended)
    assert events[-1].verdict is Verdict.TIMEOUT


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
