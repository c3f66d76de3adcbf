"""What goes into a row comes out of it, whatever it is; and a cursor is one that a page gave."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.databases import NOON, ended, queued

from belljar.audit.records import ExecRecord, Status
from belljar.audit.rows import COLUMNS, NAMES, Codec, Kind, cursor_after, place_of
from belljar.errors import BadRequest, StoreUnavailable

CODECS = [
    pytest.param(Codec(text_times=True), id="sqlite"),
    pytest.param(Codec(text_times=False), id="postgres"),
]

# Lone surrogates and NUL included. A high one before a low one is left out: JSON takes the two for one sign.
any_text = st.text(st.characters(exclude_categories=()), max_size=40).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TEXT: any_text,
    Kind.INTEGER: st.integers(-(2**63), 2**63 - 1),
    Kind.BOOLEAN: st.booleans(),
    Kind.TIME: st.datetimes(timezones=st.just(UTC)),
    Kind.LIST: st.lists(any_json, max_size=3).map(tuple),
    Kind.MAP: st.dictionaries(any_text, any_json, max_size=3),
}


def values_of(name: str, kind: Kind) -> st.SearchStrategy[Any]:
    if name == "status":
        return st.sampled_from(Status)
    optional = next(one for one in fields(ExecRecord) if one.name == name).default is None
    return VALUES[kind] | st.none() if optional else VALUES[kind]


records = st.builds(ExecRecord, **{one.name: values_of(one.name, one.kind) for one in COLUMNS})


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=25)
@given(record=records)
def test_a_record_comes_back_as_it_went_in(codec: Codec, record: ExecRecord) -> None:
    assert codec.decode(codec.encode(record)) == record


@settings(max_examples=25)
@given(record=records)
def test_a_row_holds_only_what_both_databases_can_hold(record: ExecRecord) -> None:
    for value in Codec(text_times=True).encode(record):
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("exit_code", 2**63, id="more-than-64-bits"),
        pytest.param("exit_code", 1.5, id="no-integer"),
        pytest.param("cmd", b"ls", id="no-text"),
        pytest.param("accepted_at", datetime(2025, 1, 1), id="time-without-zone"),
        pytest.param("accepted_at", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), id="before-time"),
        pytest.param("usage", {"cpu_s": float("nan")}, id="nan"),
        pytest.param("usage", {"cpu_s": object()}, id="no-json"),
        pytest.param("usage", {"cpu_s": 10**5000}, id="endless-integer"),
        pytest.param("request_id", "x" * 1025, id="id-too-long"),
        pytest.param("project_id", "\N{GRINNING FACE}" * 257, id="id-too-many-bytes"),
        pytest.param("task_id", "\0" * 200, id="id-too-long-when-spelt-out"),
    ],
)
def test_a_value_that_no_row_can_hold_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        Codec(text_times=False).encode(queued(**{field: value}))
    assert caught.value.field == field


def test_json_that_is_too_deep_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadRequest):
        Codec(text_times=True).encode(queued(risk={"deep": deep}))


@pytest.mark.parametrize(
    ("field", "stored"),
    [
        pytest.param("status", "flying", id="status"),
        pytest.param("usage", "{", id="no-json"),
        pytest.param("usage", "[]", id="no-map"),
        pytest.param("args", "7", id="no-list"),
        pytest.param("args", "[" * 100_000, id="too-deep"),
        pytest.param("exit_code", "three", id="integer"),
        pytest.param("ended_at", "yesterday", id="time"),
        pytest.param("cmd", 7, id="text"),
    ],
)
def test_a_row_that_somebody_else_wrote_into_is_named(field: str, stored: object) -> None:
    codec = Codec(text_times=True)
    row = codec.encode(ended(queued(exec_id="exec_1")))
    row[NAMES.index(field)] = stored
    with pytest.raises(StoreUnavailable, match="exec_1 is damaged"):
        codec.decode(row)


@given(moment=st.datetimes(timezones=st.just(UTC)), exec_id=any_text)
def test_a_cursor_names_the_record_that_it_was_made_of(moment: datetime, exec_id: str) -> None:
    found = place_of(cursor_after(queued(accepted_at=moment, exec_id=exec_id)))
    codec = Codec(text_times=True)
    assert found == (moment, codec.value(COLUMNS[0], exec_id))


@given(cursor=st.text(max_size=80) | st.binary(max_size=60).map(lambda b: b.hex()))
def test_any_other_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest) as caught:
        place_of(cursor)
    assert caught.value.field == "cursor"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda cursor: cursor[:-4], id="cut"),
        pytest.param(lambda cursor: cursor + "\n", id="longer"),
        pytest.param(lambda cursor: "A" * 5000, id="huge"),
        pytest.param(lambda cursor: cursor[2:], id="begun-later"),
    ],
)
def test_a_cursor_that_was_changed_is_refused(change: Any) -> None:
    cursor = cursor_after(queued(exec_id="exec_\N{SNOWMAN}", accepted_at=NOON))
    with pytest.raises(BadRequest):
        place_of(change(cursor))
