"""Files in a request: nothing but base64 is decoded, and nothing that is too large."""

from __future__ import annotations

import base64
import string
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.api.files import FileBody, decoded, input_files
from belljar.errors import BadRequest, LimitExceeded

ALPHABET = set(string.ascii_letters + string.digits + "+/=")


@given(st.binary(max_size=200))
def test_what_was_encoded_is_decoded(content: bytes) -> None:
    assert decoded(base64.b64encode(content).decode(), len(content), field="f") == content


@given(st.binary(min_size=1, max_size=200))
def test_one_byte_too_many_is_too_large(content: bytes) -> None:
    with pytest.raises(LimitExceeded):
        decoded(base64.b64encode(content).decode(), len(content) - 1, field="f")


@given(st.binary(min_size=1, max_size=60), st.characters(), st.data())
def test_nothing_may_stand_between(content: bytes, junk: str, data: st.DataObject) -> None:
    if junk in ALPHABET:
        return
    text = base64.b64encode(content).decode()
    place = data.draw(st.integers(0, len(text)))
    with pytest.raises(BadRequest) as caught:
        decoded(text[:place] + junk + text[place:], 1000, field="f")
    assert caught.value.field == "f"


@pytest.mark.parametrize(
    "text", ["a", "ab", "abc", "ab=", "=", "====", "ab==cd==", "YQ==\n", " YQ==", "YQ", "-_-_", "YQ===", "é"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(BadRequest):
        decoded(text, 1000, field="f")


def test_the_size_is_known_before_anything_is_decoded() -> None:
    text = "A" * (32 << 20)
    tracemalloc.start()
    with pytest.raises(LimitExceeded):
        decoded(text, 1 << 20, field="f")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_files_are_counted_together() -> None:
    file = FileBody(path="a", content_b64=base64.b64encode(b"x" * 60).decode())
    assert len(input_files([file], field="inputs", max_bytes=100)) == 1
    with pytest.raises(LimitExceeded) as caught:
        input_files([file, file], field="inputs", max_bytes=100)
    assert caught.value.field == "inputs.1.content_b64"
