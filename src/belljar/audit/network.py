"""What was decided of runs' ways out: a row for each decision, written with the outcome of its run.

The record, and with it the receipt, has the number of rows and their sha256, so one that was changed, added
or taken away is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from belljar.audit.records import NetworkAccount, NetworkDecision
from belljar.audit.rows import Codec, columns_of, decoded, iso, text
from belljar.audit.statements import Statement, Steps
from belljar.errors import StoreUnavailable
from belljar.models import canonical_json

__all__ = ["MOST_ROWS", "digest", "insert", "list_of", "summary"]

MOST_ROWS = 1000
"""Of one run; what comes after them is counted."""

_AT_ONCE = 50
"""Rows in one statement: a round trip for each takes long, and a statement has only so many parameters."""
_COLUMNS = columns_of(NetworkDecision)
_NAMES = ", ".join(column.name for column in _COLUMNS)


def summary(account: NetworkAccount) -> dict[str, Any]:
    """What the record says of it."""
    if not account.total:
        return {}
    return {
        "total": account.total,
        "refused": account.refused,
        "rows": len(account.decisions),
        "sha256": digest(account.decisions),
    }


def digest(decisions: Sequence[NetworkDecision]) -> str:
    rows = [
        {column.name: getattr(one, column.name) for column in _COLUMNS} | {"at": iso(one.at)}
        for one in decisions
    ]
    return hashlib.sha256(canonical_json(rows)).hexdigest()


def insert(codec: Codec, decisions: Sequence[NetworkDecision]) -> Steps[None]:
    for start in range(0, len(decisions), _AT_ONCE):
        some = decisions[start : start + _AT_ONCE]
        values = [codec.value(column, getattr(one, column.name)) for one in some for column in _COLUMNS]
        places = [f"${number}" for number in range(1, len(values) + 1)]
        width = len(_COLUMNS)
        rows = ", ".join(f"({', '.join(places[at : at + width])})" for at in range(0, len(places), width))
        yield Statement(f"INSERT INTO network_decisions ({_NAMES}) VALUES {rows}", values)


def list_of(exec_id: str) -> Steps[Sequence[NetworkDecision]]:
    """In their order; one more than there can be, where somebody else wrote."""
    sql = f"SELECT {_NAMES} FROM network_decisions WHERE exec_id = $1 ORDER BY number LIMIT {MOST_ROWS + 1}"
    return [_decision(row) for row in (yield Statement(sql, (text(exec_id),)))]


def _decision(row: Sequence[Any]) -> NetworkDecision:
    try:
        values = {column.name: decoded(column, value) for column, value in zip(_COLUMNS, row, strict=True)}
        return NetworkDecision(**values)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreUnavailable(f"a network decision of the run {row[0]} cannot be read") from error
