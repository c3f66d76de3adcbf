from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest
from belljar.policy import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("30s", 30.0, id="seconds"),
        pytest.param("1m30s", 90.0, id="minutes-and-seconds"),
        pytest.param("500ms", 0.5, id="milliseconds"),
        pytest.param("1.5h", 5400.0, id="fraction"),
        pytest.param("2d", 172800.0, id="days"),
        pytest.param("30", 30.0, id="plain-is-seconds"),
        pytest.param("0.25", 0.25, id="plain-fraction"),
    ],
)
def test_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("-30s", id="negative"),
        pytest.param("+30s", id="signed"),
        pytest.param("1e309", id="exponent"),
        pytest.param("nan", id="nan"),
        pytest.param("inf", id="inf"),
        pytest.param("1s?2s", id="junk-between-parts"),  # durationpy reads this as 3 s
        pytest.param("1mm", id="month"),  # durationpy reads this as 30 days
        pytest.param("٣s", id="other-digits"),
        pytest.param("30 s", id="space"),
        pytest.param("30S", id="capital"),
        pytest.param("30s\n", id="newline"),
        pytest.param("9" * 5000 + "s", id="endless"),
        pytest.param("9999999999999999d", id="past-the-largest"),
        pytest.param("9999999999999999", id="plain-past-the-largest"),
    ],
)
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        units.duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("512MB", 512 * 2**20, id="MB"),
        pytest.param("64m", 64 * 2**20, id="m-as-docker"),
        pytest.param("64MiB", 64 * 2**20, id="MiB"),
        pytest.param("1GB", 2**30, id="GB"),
        pytest.param("1.5g", 3 * 2**29, id="fraction"),
        pytest.param("10KiB", 10240, id="KiB"),
        pytest.param("2TB", 2**41, id="TB"),
        pytest.param("7b", 7, id="bytes"),
        pytest.param("512 MB", 512 * 2**20, id="one-space"),
    ],
)
def test_size_is_read_as_bytes(text: str, count: int) -> None:
    assert units.size(text) == count


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("-1MB", id="negative"),
        pytest.param("512QB", id="no-such-unit"),
        pytest.param("1e3MB", id="exponent"),
        pytest.param("0.3b", id="part-of-a-byte"),
        pytest.param("512MB\n", id="newline"),
        pytest.param("５１２MB", id="full-width"),
        pytest.param("9999999999TB", id="past-the-largest"),
        pytest.param("MB", id="no-number"),
    ],
)
def test_bad_size_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        units.size(text)


def test_size_without_unit_is_refused_with_the_reason() -> None:
    with pytest.raises(BadRequest, match="say the unit"):
        units.size("512")


def test_largest_number_is_still_read() -> None:
    assert units.whole(str(units.LARGEST)) == units.LARGEST


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (units.duration, units.size, units.number, units.whole):
        try:
            value = read(text)
        except BadRequest:
            continue
        assert 0 <= value <= units.LARGEST
