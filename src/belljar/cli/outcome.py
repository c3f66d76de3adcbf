"""What a person is told when a run is over, and the exit status it leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from belljar.cli.remote import RunThere
    from belljar.flows.project import Landed
    from belljar.models import RunResult


def print_summary(result: RunResult, landed: Landed) -> None:
    """For a person, on stderr: how it ended if not well, and what it left."""
    from belljar.cli.tables import one_line, print_table
    from belljar.models import Verdict

    if "cgroup" not in result.usage.held_by.get("memory", ""):
        _tell("belljar: no cgroup here: memory and processes are held by a weaker layer (belljar doctor)")
    if result.verdict is not Verdict.EXITED:
        used = f"{result.usage.wall_s:.2f} s, {result.usage.memory_peak_mb:.0f} MB"
        _tell(f"belljar: {result.verdict} after {used}", bad=True)
    for name, kept, written in (
        ("stdout", len(result.stdout), result.stdout_bytes),
        ("stderr", len(result.stderr), result.stderr_bytes),
    ):
        if written > kept:
            _tell(f"belljar: {name} was {written} bytes; {kept} are shown")
    if result.artifacts:
        rows = [(one.path, one.size, one.mime, one.sha256[:16]) for one in result.artifacts]
        print_table(("artifact", "bytes", "type", "sha256"), rows, stderr=True)
    if landed.written:
        _tell(f"{len(landed.written)} files written below {one_line(landed.prefix)}/")
    for path, reason in [*landed.refused, *((skip.path, skip.reason) for skip in result.skipped)]:
        hint = "; --overwrite replaces it" if reason == "exists" else ""
        _tell(f"belljar: not taken: {one_line(path)} ({reason}{hint})")


def _tell(text: str, *, bad: bool = False) -> None:
    typer.secho(text, err=True, fg="red" if bad else None, bold=bad)


def exit_status(ran: RunThere, landed: Landed) -> int:
    """The program's own, or as shells have it: 124 time-out, 128 + signal, 125 for a failure of ours; 1 where
    all went well but for a file that could not be written.

    Raises:
        OSError: its output could not be written. That nobody reads it any more is no failure.
    """
    if ran.unshown is not None and not isinstance(ran.unshown, BrokenPipeError):
        raise ran.unshown
    return _status(ran.result) or int(bool(landed.refused))


def _status(result: RunResult) -> int:
    from belljar.models import Verdict

    if result.timed_out:
        return 124
    if result.verdict is Verdict.LOST:
        return 125
    if result.exit_code is not None:
        return result.exit_code
    return 128 + (result.signal or 0)
