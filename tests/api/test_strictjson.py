"""JSON from a stranger: what is taken means one thing, and what is refused costs little."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.api.strictjson import MAX_DEPTH, MAX_VALUES, loads
from belljar.errors import BadRequest, LimitExceeded

MIB = 1 << 20

texts = st.text(st.characters(codec="utf-8"))
numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(texts, below, max_size=4),
    max_leaves=20,
)
objects = st.dictionaries(texts, values, max_size=5)


@given(objects, st.booleans())
def test_what_the_standard_library_writes_is_read_back(value: dict[str, Any], ascii_only: bool) -> None:
    assert loads(json.dumps(value, ensure_ascii=ascii_only).encode(), max_bytes=MIB) == value


@given(st.binary() | texts.map(str.encode) | objects.map(lambda value: json.dumps(value).encode()[:-1]))
def test_anything_else_is_a_bad_request(data: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(loads(data, max_bytes=MIB), dict)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b'"text"', id="a string"),
        pytest.param(b'{"a":1} {"b":2}', id="two"),
        pytest.param(b'{"a":1,}', id="trailing comma"),
        pytest.param(b"{'a':1}", id="other quotes"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', id="byte order mark"),
        pytest.param('{"a":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'{"a":"\xff"}', id="not UTF-8"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', id="surrogate as UTF-8"),
        pytest.param(b'{"a":"\n"}', id="raw line break"),
        pytest.param(b'{"a":1,"a":2}', id="key twice"),
        pytest.param(b'{"b":{"a":1,"c":0,"\\u0061":1}}', id="key twice, spelt differently"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":-Infinity}', id="Infinity"),
        pytest.param(b'{"a":1e999}', id="1e999"),
        pytest.param(b'{"a":-1e999}', id="-1e999"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="5,000 digits"),
        pytest.param(b'{"a":9223372036854775808}', id="2**63"),
        pytest.param(b'{"a":0.' + b"1" * 5000 + b"}", id="5,000 digits after the point"),
        pytest.param(b'{"a":"\\ud800"}', id="lone surrogate"),
        pytest.param(b'{"\\udc00":1}', id="lone surrogate in a key"),
        pytest.param(b'{"a":[{"b":["x\\uDfffx"]}]}', id="lone surrogate within"),
        pytest.param(b'{"a":' * 33 + b"1" + b"}" * 33, id="too deep"),
        pytest.param(b'{"a":' + b"[" * 100_000, id="far too deep, and open"),
        pytest.param(b'{"a":[' + b"[]," * MAX_VALUES + b"[]]}", id="too many lists"),
        pytest.param(b'{"a":[' + b"0," * MAX_VALUES + b"0]}", id="too many numbers"),
    ],
)
def test_refuses(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        loads(body, max_bytes=MIB)
    assert caught.value.field == "body"
    assert len(caught.value.message) < 400


def test_a_key_that_is_given_twice_is_named() -> None:
    with pytest.raises(BadRequest, match="`again` is given twice"):
        loads(b'{"a":0,"again":1,"b":2,"again":3}', max_bytes=MIB)


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert loads(b'{"a":"\\ud83d\\ude00"}', max_bytes=MIB) == {"a": "😀"}


def test_the_deepest_that_is_allowed_is_taken() -> None:
    body = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    assert loads(body, max_bytes=MIB)


def test_brackets_and_commas_in_a_string_are_no_structure() -> None:
    code = "[{," * MAX_VALUES + '"\\'
    assert loads(json.dumps({"code": code}).encode(), max_bytes=MIB) == {"code": code}


def test_one_byte_more_than_allowed_is_too_large() -> None:
    body = b'{"a":"' + b"x" * 100 + b'"}'
    assert loads(body, max_bytes=len(body))
    with pytest.raises(LimitExceeded):
        loads(body, max_bytes=len(body) - 1)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"a":"' + b'\\"' * (4 * MIB), id="an open string of quotes"),
        pytest.param(b'"' * (8 * MIB), id="quotes"),
        pytest.param(b"[" * (8 * MIB), id="brackets"),
        pytest.param(b'{"a":' + b"1" * (8 * MIB), id="digits"),
        pytest.param(b'{"a":1.' + b"1" * (8 * MIB), id="digits after the point"),
        pytest.param(b"{" + b",".join(b'"%d":0' % n for n in range(90_000)) + b',"89999":0}', id="keys"),
    ],
)
def test_a_hostile_body_is_refused_in_no_time(body: bytes) -> None:
    start = time.process_time()
    with pytest.raises(BadRequest):
        loads(body, max_bytes=64 * MIB)
    assert time.process_time() - start < 2.0  # in truth some 0.1 s; what is quadratic takes minutes
