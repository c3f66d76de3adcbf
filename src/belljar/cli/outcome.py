"""What a person is told when a run is over, and the exit status it leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.flows.project import Landed
    from belljar.models import RunResult


def print_summary(result: RunResult, landed: Landed) -> None:
    """For a person, on stderr: how it ended if not well, and what it left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from belljar.cli.terminal import harmless
    from belljar.models import Verdict

    console = Console(stderr=True)
    if "cgroup" not in result.usage.held_by.get("memory", ""):
        console.print(
            "belljar: no cgroup here: memory and processes are held by a weaker layer (belljar doctor)"
        )
    if result.verdict is not Verdict.EXITED:
        used = f"{result.usage.wall_s:.2f} s, {result.usage.memory_peak_mb:.0f} MB"
        console.print(Text(f"belljar: {result.verdict} after {used}", style="bold red"))
    for name, kept, written in (
        ("stdout", len(result.stdout), result.stdout_bytes),
        ("stderr", len(result.stderr), result.stderr_bytes),
    ):
        if written > kept:
            console.print(f"belljar: {name} was {written} bytes; {kept} are shown")
    if result.artifacts:
        table = Table("artifact", "bytes", "type", "sha256", header_style="bold")
        for artifact in result.artifacts:
            cells = (harmless(artifact.path), str(artifact.size), artifact.mime, artifact.sha256[:16])
            table.add_row(*map(Text, cells))
        console.print(table)
    if landed.written:
        console.print(Text(f"{len(landed.written)} files written below {harmless(landed.prefix)}/"))
    for path, reason in [*landed.refused, *((skip.path, skip.reason) for skip in result.skipped)]:
        console.print(Text(f"belljar: not taken: {harmless(path)} ({reason})"))


def exit_status(result: RunResult) -> int:
    """The program's own, or as shells have it: 124 time-out, 128 + signal, 125 for a failure of ours."""
    from belljar.models import Verdict

    if result.timed_out:
        return 124
    if result.verdict is Verdict.LOST:
        return 125
    if result.exit_code is not None:
        return result.exit_code
    return 128 + (result.signal or 0)
