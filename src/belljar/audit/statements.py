"""What an operation on a database is: a generator that yields statements, is sent rows, returns the answer.

A store drives it over its own kind of connection inside one transaction, and may start it again from the
beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Statement(NamedTuple):
    sql: str
    """Parameters are $1, $2, …"""
    values: Sequence[Any] = ()


Steps = Generator[Statement, Sequence[Sequence[Any]], T]
Operation = Callable[[], Steps[T]]
