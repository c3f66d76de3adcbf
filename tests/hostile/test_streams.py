"""Output streams and stdin: any amount of anything, and the host stays as it is."""

from __future__ import annotations

import asyncio
import resource
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import SMALL, Attack, Control, small

from belljar.execution import runs
from belljar.models import Grant, Language, OnOutputLimit, Output, RunRequest, RunResult, Verdict

if TYPE_CHECKING:
    from tests.hostile.glass import Glass

CAP = SMALL.stdout_kb << 10


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_hundreds_of_megabytes_are_counted_and_dropped(glass: Glass, stream: str) -> None:
    """The program is not stopped and notices nothing; what lies past the cap is not kept anywhere."""
    before = _peak_kb()
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code=f"""
            import os, sys
            fd = sys.{stream}.fileno()
            size = 300 << 20 if "OUTSIDE" not in os.environ else 1 << 20
            written = 0
            while written < size:
                written += os.write(fd, b"x" * (1 << 20))
            os.write(fd, b"REACHED")
            sys.exit(5)
            """,
            exit_code=5,
        )
    )
    kept = {"stdout": result.stdout, "stderr": result.stderr}
    counted = {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}
    assert kept[stream] == b"x" * CAP
    assert counted[stream] == (300 << 20) + len(b"REACHED")
    assert _peak_kb() - before < 16 << 10


def test_both_streams_have_a_cap_of_their_own(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os
            for _ in range(100):
                os.write(1, b"o" * 10000)
                os.write(2, b"e" * 7000)
            """,
        )
    )
    assert (result.stdout, result.stdout_bytes) == (b"o" * CAP, 1_000_000)
    assert (result.stderr, result.stderr_bytes) == (b"e" * CAP, 700_000)
    assert result.stdout_truncated
    assert result.stderr_truncated


def test_endless_output_ends_at_the_deadline(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            language=Language.BASH,
            code="yes & yes >&2 & yes",
            limits=small(timeout_s=3),
            verdict=Verdict.TIMEOUT,
        )
    )
    assert result.stdout_truncated
    assert result.stderr_truncated


def test_output_past_the_cap_ends_the_run_where_the_grant_says_so(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            language=Language.BASH,
            code="yes",
            on_output_limit=OnOutputLimit.KILL,
            verdict=Verdict.OUTPUT_LIMIT,
        )
    )
    assert len(result.stdout) == CAP


def test_any_bytes_come_back_as_they_were(glass: Glass) -> None:
    """Also where the cap cuts a character in two."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os
            os.write(2, bytes(range(256)) + b"\\xff\\xfe\\0\\x1b]52;c;aGk=\\x07\\x1b[2J" + "\\u202e".encode())
            os.write(1, b"x" + "\\U0001F40D".encode() * 20000)
            """,
        )
    )
    assert result.stderr == bytes(range(256)) + b"\xff\xfe\0\x1b]52;c;aGk=\x07\x1b[2J" + "\u202e".encode()
    assert result.stdout == (b"x" + "\U0001f40d".encode() * 20000)[:CAP]
    assert len(result.stdout) == CAP


@pytest.mark.every_engine
def test_output_cannot_pass_for_a_frame_of_the_guest(glass: Glass) -> None:
    """The program's bytes travel inside frames; what looks like one in them is text."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import json, struct, sys
            for kind in range(0, 9):
                for stream in range(0, 9):
                    facts = {"status": 0, "out": 0, "err": 0, "full": False, "started": True}
                    body = json.dumps(facts).encode()
                    sys.stdout.buffer.write(struct.pack(">BII", kind, stream, len(body)) + body)
            sys.stdout.flush()
            sys.exit(9)
            """,
            exit_code=9,
        )
    )
    assert result.stdout_bytes == len(result.stdout) > 81 * 9


def test_dripping_output_ends_at_the_deadline(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os, time
            while True:
                os.write(1, b".")
                time.sleep(0.01)
            """,
            limits=small(timeout_s=4, idle_timeout_s=3),
            verdict=Verdict.TIMEOUT,
        )
    )
    assert 5 < result.stdout_bytes <= 420


def test_silence_ends_the_run_where_the_grant_says_so(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.PROBE,
            code="import time; print('once', flush=True); time.sleep(60)",
            limits=small(idle_timeout_s=0.2),
            verdict=Verdict.IDLE_TIMEOUT,
        )
    )


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import os; os.close(0); print('done')", id="closed"),
        pytest.param("print('done')", id="never-read"),
        pytest.param("import sys; sys.stdin.buffer.read(10); print('done')", id="read-in-part"),
        pytest.param(
            "import os; os.close(0); os.open('/proc/self/fd/1', os.O_WRONLY); print('done')", id="replaced"
        ),
    ],
)
def test_stdin_that_is_not_read_does_no_harm(glass: Glass, code: str) -> None:
    result = glass.contains(Attack(control=Control.PROBE, code=code, stdin=bytes(8 << 20)))
    assert result.stdout == b"done\n"


def test_run_lasts_until_exit_though_its_streams_are_closed(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import os, time
            for fd in (0, 1, 2):
                os.close(fd)
            time.sleep(0.4)
            with open("after.txt", "w") as file:
                file.write("worked on")
            os._exit(7)
            """,
            exit_code=7,
        )
    )
    assert [artifact.content for artifact in result.artifacts] == [b"worked on"]


def test_streams_that_are_changed_underneath_do_no_harm(glass: Glass) -> None:
    """The pipes are shared with the guest, but not the way it uses them."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import fcntl, os
            for fd in (0, 1, 2):
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                for flag in (os.O_NONBLOCK, os.O_ASYNC, os.O_APPEND, os.O_DIRECT):
                    try:
                        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag)
                    except OSError:
                        pass
                for owner in (1, -1, os.getpid()):
                    try:
                        fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
                    except OSError:
                        pass
                try:
                    fcntl.fcntl(fd, 1031, 4096)
                except OSError:
                    pass
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            os.write(1, b"done")
            """,
        )
    )
    assert result.stdout == b"done"


def test_caller_that_stops_reading_does_not_stop_the_deadline(glass: Glass) -> None:
    """A slow reader of a stream is the caller's affair; the program still gets no more than its time."""
    grant = Grant(limits=small(timeout_s=2.5, grace_s=0.1), accept_weaker_limits=True)
    request = RunRequest(
        code="import time\nwhile True:\n    print(time.monotonic(), flush=True)\n    time.sleep(0.02)"
    )

    async def slow() -> list[float]:
        said = b""
        async for event in runs.stream(glass.engine, grant, request):
            if isinstance(event, Output):
                if not said:
                    await asyncio.sleep(6)
                said += event.data
            if isinstance(event, RunResult):
                assert event.verdict is Verdict.TIMEOUT
        return [float(line) for line in said.split()]

    with glass.watching(Control.PROBE):
        times = glass.wait(slow())
    assert times[-1] - times[0] < 5


def test_caller_that_leaves_ends_the_run(glass: Glass) -> None:
    grant = Grant(limits=small(timeout_s=600), accept_weaker_limits=True)
    request = RunRequest(code="import time\nprint('here', flush=True)\ntime.sleep(600)")

    async def leave() -> None:
        async with asyncio.timeout(0.3), aclosing(runs.stream(glass.engine, grant, request)) as events:
            async for event in events:
                if isinstance(event, Output):
                    await asyncio.sleep(600)

    with glass.watching(Control.PROBE), pytest.raises(TimeoutError):
        glass.wait(leave())


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
