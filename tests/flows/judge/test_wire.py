from __future__ import annotations

import datetime
import decimal
import fractions
import json
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.flows.judge.wire import Fault, decode, encode

HASHABLE = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False) | st.fractions() | st.dates() | st.datetimes()
    | st.times() | st.timedeltas()
)  # fmt: skip
PLAIN = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner)
        | st.sets(HASHABLE)
        | st.frozensets(HASHABLE)
    ),
    max_leaves=20,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["list", "dict", "named", "int", "bytes", "range", "type", "Decimal", "date", "timedelta"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)  # fmt: skip


def no_handles(value: Any) -> NoReturn:
    raise Fault(f"not plain: {value!r}")


@given(PLAIN)
def test_plain_data_comes_out_as_it_went_in(value: Any) -> None:
    sent = json.loads(json.dumps(encode(value, no_handles)))
    found = decode(sent, no_handles)
    assert found == value
    assert type(found) is type(value)


@given(JSON)
def test_whatever_comes_is_a_value_or_a_fault(value: Any) -> None:
    try:
        decode(value, no_handles)
    except Fault:
        pass


class AgreeingInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class AgreeingList(list[int]):
    def __eq__(self, other: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter([7])


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        pytest.param(AgreeingInt(5), 5, id="int"),
        pytest.param(AgreeingList([1, 2]), [1, 2], id="list"),
        pytest.param(True, True, id="bool"),
    ],
)
def test_what_a_subclass_overrides_stays_behind(value: Any, plain: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value, no_handles))), no_handles)
    assert type(found) is type(plain)
    assert found == plain


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(["type", "eval"], id="no-type"),
        pytest.param(["named", "x", ["a b"], [1]], id="field-that-is-code"),
        pytest.param(["named", "x", ["__import__"], [1]], id="underscores"),
        pytest.param(["dict", [[["list", []], 1]]], id="unhashable"),
        pytest.param(["Decimal", "x"], id="no-number"),
        pytest.param(["int", "9" * 10_000], id="too-many-digits"),
        pytest.param(["__import__", "os"], id="unknown"),
        pytest.param([], id="empty"),
        pytest.param([[]], id="no-tag"),
    ],
)
def test_nothing_that_comes_names_something_to_be_called(value: Any) -> None:
    with pytest.raises(Fault):
        decode(value, no_handles)


def test_the_types_of_plain_data_are_plain_data() -> None:
    for kind in (int, str, list, object):
        assert decode(encode(kind, no_handles), no_handles) is kind


def test_numbers_and_dates_keep_their_kind() -> None:
    for value in (decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.date(2026, 1, 31)):
        assert repr(decode(encode(value, no_handles), no_handles)) == repr(value)
