"""What has a state and outlives a restart, beside the runs themselves: approvals, sessions, terminals.

A matter moves from state to state by compare-and-set: of two who would move it, one does. Nothing here knows
what the states mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belljar.audit.records import Matter
from belljar.audit.rows import Codec, Column, Kind, decoded, text
from belljar.audit.statements import Statement, Steps
from belljar.errors import Conflict, StoreUnavailable

__all__ = ["find", "list_of", "move", "open_one"]


_COLUMNS = (
    Column("kind", Kind.TEXT),
    Column("id", Kind.TEXT),
    Column("project_id", Kind.TEXT),
    Column("state", Kind.TEXT),
    Column("created_at", Kind.TIME),
    Column("body", Kind.MAP),
)
_STATE, _BODY = _COLUMNS[3], _COLUMNS[5]
_NAMES = ", ".join(column.name for column in _COLUMNS)


def open_one(codec: Codec, matter: Matter) -> Steps[Matter]:
    """
    Raises:
        Conflict: there is one of that id.
    """
    values = [codec.value(column, getattr(matter, column.name)) for column in _COLUMNS]
    sql = (
        f"INSERT INTO matters ({_NAMES}) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING id"
    )
    if not (yield Statement(sql, values)):
        raise Conflict(f"there is a {matter.kind} {matter.id} already", field="id")
    return matter


def move(codec: Codec, matter: Matter, expected: str) -> Steps[Matter]:
    """Its state and body become these, if it is still in the expected state.

    Raises:
        Conflict: it is not.
    """
    new = (codec.value(_STATE, matter.state), codec.value(_BODY, matter.body))
    values = (text(matter.kind), text(matter.id), text(expected), *new)
    sql = "UPDATE matters SET state = $4, body = $5 WHERE kind = $1 AND id = $2 AND state = $3 RETURNING id"
    if not (yield Statement(sql, values)):
        found = yield from find(matter.kind, matter.id)
        now = found.state if found else "gone"
        raise Conflict(f"{matter.kind} {matter.id} is {now}, not {expected} any more", field="state")
    return matter


def find(kind: str, id: str) -> Steps[Matter | None]:
    sql = f"SELECT {_NAMES} FROM matters WHERE kind = $1 AND id = $2"
    found = yield Statement(sql, (text(kind), text(id)))
    return _matter(found[0]) if found else None


def list_of(
    kind: str, states: Sequence[str], projects: frozenset[str] | None, limit: int
) -> Steps[Sequence[Matter]]:
    """Newest first. No states: of any state; `projects` None: of any project."""
    values: list[Any] = [text(kind)]
    where = "kind = $1"
    for name, wanted in (("state", states or None), ("project_id", projects)):
        if wanted is not None:
            places = ", ".join(f"${len(values) + n}" for n in range(1, len(wanted) + 1))
            where += f" AND {name} IN ({places})" if wanted else " AND 1 = 0"
            values += [text(one) for one in sorted(wanted)]
    sql = f"SELECT {_NAMES} FROM matters WHERE {where} ORDER BY created_at DESC, id DESC LIMIT {int(limit)}"
    return [_matter(row) for row in (yield Statement(sql, values))]


def _matter(row: Sequence[Any]) -> Matter:
    try:
        values = {column.name: decoded(column, value) for column, value in zip(_COLUMNS, row, strict=True)}
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreUnavailable(f"the {row[0]} {row[1]} in the audit database cannot be read") from error
    return Matter(**values)
