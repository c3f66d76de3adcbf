"""Rows for a person. Every cell is hostile text: nothing in it acts on the terminal or breaks its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

_WIDE = 200
"""Columns where there is no screen: whoever reads it later wants no line broken for one."""

_IDS = ("id", "run")
"""Columns that are copied from: on a narrow screen the others give way."""


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, stderr: bool = False) -> None:
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table(head, rows))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(header_style="bold")
    for name in head:
        made.add_column(name, no_wrap=name in _IDS, overflow="fold")
    for row in rows:
        made.add_row(*(Text(one_line(cell)) for cell in row))
    return made


def one_line(cell: object) -> str:
    from belljar.cli.terminal import harmless

    return harmless("" if cell is None else str(cell)).replace("\n", "␊").replace("\t", "␉")
