from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.guest import protocol
from belljar.guest.protocol import Decoder, Frame, ProtocolError

KINDS = (
    protocol.OPEN,
    protocol.DATA,
    protocol.EOF,
    protocol.OUT,
    protocol.ERR,
    protocol.NOTE,
    protocol.END,
)
frames = st.builds(
    Frame, st.sampled_from(KINDS), st.integers(min_value=0, max_value=2**32 - 1), st.binary(max_size=300)
)


def decoded(decoder: Decoder, data: bytes) -> list[Frame]:
    return list(decoder.feed(data))


@given(st.lists(frames, max_size=20), st.data())
def test_frames_arrive_whole_however_they_are_cut(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(protocol.encode(frame.kind, frame.stream, frame.payload) for frame in sent)
    cuts = data.draw(st.lists(st.integers(min_value=0, max_value=len(wire)), max_size=30))
    decoder, received = Decoder(), []
    start = 0
    for cut in [*sorted(cuts), len(wire)]:
        received += decoded(decoder, wire[start:cut])
        start = cut
    assert received == sent


def test_a_frame_may_arrive_byte_by_byte() -> None:
    decoder = Decoder()
    wire = protocol.encode(protocol.OUT, 7, b"hello")
    arrived = [frame for byte in wire for frame in decoded(decoder, bytes([byte]))]
    assert arrived == [Frame(protocol.OUT, 7, b"hello")]


@given(
    st.dictionaries(st.text(max_size=10), st.none() | st.booleans() | st.integers() | st.text(max_size=10))
)
def test_fields_come_back_as_they_were_sent(fields: dict[str, object]) -> None:
    fields = {name: value for name, value in fields.items() if name not in ("kind", "stream")}
    (frame,) = decoded(Decoder(), protocol.encode_json(protocol.NOTE, 2, **fields))
    assert frame.json() == fields


def test_a_name_that_is_not_text_survives() -> None:
    name = b"\xff\n\x00".decode("utf-8", "surrogateescape")
    (frame,) = decoded(Decoder(), protocol.encode_json(protocol.NOTE, 2, name=name))
    assert frame.json()["name"] == name


@pytest.mark.parametrize(
    "size", [0, 1, protocol.CHUNK - 1, protocol.CHUNK, protocol.CHUNK + 1, 3 * protocol.CHUNK]
)
def test_a_body_is_all_of_the_content_and_an_end(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    arrived = decoded(Decoder(), b"".join(protocol.encode_body(4, content)))
    assert b"".join(frame.payload for frame in arrived) == content
    assert [frame.kind for frame in arrived[:-1]] == [protocol.DATA] * (len(arrived) - 1)
    assert arrived[-1] == Frame(protocol.EOF, 4, b"")
    assert all(len(frame.payload) <= protocol.CHUNK for frame in arrived)


def test_the_largest_frame_passes() -> None:
    wire = protocol.encode(protocol.DATA, 2, bytes(protocol.MAX_PAYLOAD))
    assert [len(frame.payload) for frame in decoded(Decoder(), wire)] == [protocol.MAX_PAYLOAD]


def test_a_frame_that_is_too_large_cannot_be_made() -> None:
    with pytest.raises(ProtocolError):
        protocol.encode(protocol.DATA, 2, bytes(protocol.MAX_PAYLOAD + 1))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(protocol.HEADER.pack(protocol.DATA, 2, protocol.MAX_PAYLOAD + 1), id="too-large"),
        pytest.param(protocol.HEADER.pack(protocol.DATA, 2, 2**32 - 1), id="largest-number"),
        pytest.param(protocol.HEADER.pack(0, 2, 0), id="kind-0"),
        pytest.param(protocol.HEADER.pack(protocol.END + 1, 2, 0), id="kind-after-the-last"),
        pytest.param(protocol.HEADER.pack(255, 2, 0), id="kind-255"),
    ],
)
def test_a_bad_header_ends_the_conversation(header: bytes) -> None:
    decoder = Decoder()
    good = protocol.encode(protocol.OUT, 2, b"before")
    arriving = decoder.feed(good + header)
    assert next(arriving) == Frame(protocol.OUT, 2, b"before")
    with pytest.raises(ProtocolError):
        next(arriving)
    with pytest.raises(ProtocolError):
        decoded(decoder, good)


@given(st.binary(max_size=200))
def test_whatever_arrives_is_frames_or_a_protocol_error(noise: bytes) -> None:
    try:
        for frame in Decoder().feed(noise):
            assert frame.kind in KINDS
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"1", id="number"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"\xff", id="not-utf-8"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"a":' * 100_000, id="deep-object"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="long-number"),
    ],
)
def test_a_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        Frame(protocol.NOTE, 2, payload).json()


def test_memory_is_bounded_by_one_frame() -> None:
    wire = b"".join(protocol.encode_body(2, bytes(1 << 20)))
    decoder = Decoder()
    tracemalloc.start()
    try:
        count = sum(1 for _ in range(64) for _ in decoder.feed(wire))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 64 * 17
    assert peak < 2 * len(wire) + protocol.MAX_PAYLOAD


def test_what_a_guest_says_is_json() -> None:
    fields: dict[str, Any] = {
        "text": 'é\ud800"\\\x00\x7f',
        "entries": [{"size": 0.5}, None, True, []],
        "none": {},
    }
    wire = protocol.encode_json(protocol.NOTE, 2, **fields)
    assert json.loads(wire[protocol.HEADER.size :]) == fields


def test_what_is_no_json_is_not_said() -> None:
    with pytest.raises(TypeError, match="bytes"):
        protocol.encode_json(protocol.NOTE, 2, data=b"")


def test_a_request_comes_back_as_it_was_sent() -> None:
    fields: dict[str, Any] = {
        "op": "feed",
        "data": b"\xff",
        "env": {"A": "\udcff"},
        "argv": ("a",),
        "end": False,
    }
    (frame,) = decoded(Decoder(), protocol.encode_request(2, **fields))
    assert (frame.kind, frame.request()) == (protocol.OPEN, fields)
