"""A record as a row: which columns there are, and what a value looks like in each.

The columns are the fields of `ExecRecord`, in their order. Tuples and mappings are JSON text. Other text is
stored as it is, but for NUL, which PostgreSQL cannot hold, and lone surrogates, which UTF-8 cannot say:
these are spelt out, so that both databases give back exactly what they were given.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from belljar.audit.records import ExecRecord, Status
from belljar.errors import BadRequest, StoreUnavailable
from belljar.models import canonical_json

INDEXED = frozenset({"exec_id", "project_id", "request_id", "task_id", "skill_id"})
_INDEXED_BYTES = 1024
"""An entry of a PostgreSQL index has room for two of these."""

_ESCAPE = "\u241b"
_ESCAPED = re.compile(f"[\\x00\ud800-\udfff{_ESCAPE}]")
_SPELT = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")
_CURSOR_CHARS = 4096


class Kind(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    TIME = "time"
    LIST = "list"  # JSON; a tuple in the record
    MAP = "map"  # JSON


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind


_KINDS: Mapping[object, Kind] = {
    str: Kind.TEXT,
    Status: Kind.TEXT,
    int: Kind.INTEGER,
    bool: Kind.BOOLEAN,
    datetime: Kind.TIME,
    tuple: Kind.LIST,
    Mapping: Kind.MAP,
}


def _column(name: str, hint: object) -> Column:
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return Column(name, _KINDS[get_origin(hint) or hint])


def columns_of(kind: type) -> tuple[Column, ...]:
    """Of a dataclass, a column for each field."""
    return tuple(_column(name, hint) for name, hint in get_type_hints(kind).items())


COLUMNS = columns_of(ExecRecord)
NAMES = tuple(one.name for one in fields(ExecRecord))
OUTCOME = tuple(one for one in COLUMNS if one.name in {"status", *NAMES[NAMES.index("engine") :]})
"""What the end of a run writes: `engine` and all that follows it. The rest stays as it was accepted."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Between records and rows of one database."""

    text_times: bool
    """The database has no type for a moment; ISO 8601 in UTC, always of one length, sorts as time does."""

    def encode(self, record: ExecRecord, columns: Sequence[Column] = COLUMNS) -> list[Any]:
        """
        Raises:
            BadRequest: a value that no row can hold.
        """
        return [self.value(column, getattr(record, column.name)) for column in columns]

    def value(self, column: Column, value: Any) -> Any:
        if value is None:
            return None
        try:
            if column.kind is Kind.TIME:
                return self.time(value)
            return _ENCODERS[column.kind](value, column.name)
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadRequest(f"{column.name} cannot be used: {error}", field=column.name) from error

    def time(self, moment: datetime) -> Any:
        if moment.tzinfo is None:
            raise ValueError("a time needs its zone")
        moment = moment.astimezone(UTC)
        return iso(moment) if self.text_times else moment

    def decode(self, row: Sequence[Any]) -> ExecRecord:
        """
        Raises:
            StoreUnavailable: somebody else wrote into this row.
        """
        values: dict[str, Any] = {}
        for column, value in zip(COLUMNS, row, strict=True):
            try:
                values[column.name] = decoded(column, value)
            except (TypeError, ValueError, RecursionError) as error:
                raise StoreUnavailable(
                    f"the record {row[0]} is damaged: its {column.name} cannot be read"
                ) from error
        try:
            values["status"] = Status(values["status"])
        except ValueError as error:
            raise StoreUnavailable(f"the record {row[0]} is damaged: there is no such status") from error
        return ExecRecord(**values)


def decoded(column: Column, stored: Any) -> Any:
    return None if stored is None else _DECODERS[column.kind](stored)


def text(value: str) -> str:
    """As it is stored, and as it is looked for."""
    value = str(value)  # of a StrEnum, its word
    return _ESCAPED.sub(_spell, value) if _ESCAPED.search(value) else value


def plain_text(stored: str) -> str:
    return _SPELT.sub(_unspell, stored) if _ESCAPE in stored else stored


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def cursor_after(record: ExecRecord) -> str:
    """Where a page that ends with `record` is to be continued."""
    place = f"{iso(record.accepted_at)} {text(record.exec_id)}"
    return base64.urlsafe_b64encode(place.encode()).decode()


def place_of(cursor: str) -> tuple[datetime, str]:
    """When the last record of a page was accepted, and its id as it is stored.

    Raises:
        BadRequest: no page gave this cursor.
    """
    try:
        if len(cursor) > _CURSOR_CHARS:
            raise ValueError
        place = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True).decode()
        moment, _, exec_id = place.partition(" ")
        accepted_at = datetime.fromisoformat(moment)
        if iso(accepted_at) != moment or text(plain_text(exec_id)) != exec_id:
            raise ValueError
    except (ValueError, OverflowError, binascii.Error) as error:
        raise BadRequest("the cursor is none that a page gave; start without it", field="cursor") from error
    return accepted_at, exec_id


def _spell(found: re.Match[str]) -> str:
    return f"{_ESCAPE}{ord(found[0]):04x}"


def _unspell(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def _encode_text(value: str, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    stored = text(value)
    if name in INDEXED and len(stored) * 4 > _INDEXED_BYTES and len(stored.encode()) > _INDEXED_BYTES:
        raise ValueError(f"it is longer than {_INDEXED_BYTES} bytes")
    return stored


def _encode_integer(value: int, _: str) -> int:
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError("it is no integer of 64 bits")
    return value


def _encode_boolean(value: bool, _: str) -> bool:
    return bool(value)


def _encode_list(value: Sequence[Any], _: str) -> str:
    return canonical_json(list(value)).decode() if value else "[]"


def _encode_map(value: Mapping[str, Any], _: str) -> str:
    return canonical_json(dict(value)).decode() if value else "{}"


def _decode_time(stored: str | datetime) -> datetime:
    moment = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return moment.astimezone(UTC)


def _decode_integer(stored: Any) -> int:
    if not isinstance(stored, int):
        raise TypeError
    return stored


def _decode_list(stored: str) -> tuple[Any, ...]:
    value = json.loads(stored)
    if not isinstance(value, list):
        raise TypeError
    return tuple(value)


def _decode_map(stored: str) -> dict[str, Any]:
    value = json.loads(stored)
    if not isinstance(value, dict):
        raise TypeError
    return value


_ENCODERS: Mapping[Kind, Callable[[Any, str], Any]] = {
    Kind.TEXT: _encode_text,
    Kind.INTEGER: _encode_integer,
    Kind.BOOLEAN: _encode_boolean,
    Kind.LIST: _encode_list,
    Kind.MAP: _encode_map,
}
_DECODERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: plain_text,
    Kind.INTEGER: _decode_integer,
    Kind.BOOLEAN: bool,
    Kind.TIME: _decode_time,
    Kind.LIST: _decode_list,
    Kind.MAP: _decode_map,
}
