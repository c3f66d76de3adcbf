from __future__ import annotations

import io

from rich.console import Console

from belljar.cli.tables import table


def test_an_id_is_whole_on_a_narrow_screen() -> None:
    exec_id = "ex-" + "0123456789abcdef" * 2
    rows = [(exec_id, "a-project-with-a-name", "2026-01-31T12:00:00", "finished", "print(6 * 7)" * 5)]
    screen = Console(file=io.StringIO(), width=80)
    screen.print(table(("id", "project", "accepted", "status", "program"), rows))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert exec_id in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
