"""Killed at any instant, a service leaves nothing running and nothing in doubt. `make crash` tries them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash import calls
from tests.crash.deaths import Deaths, adopting, need_what_kills
from tests.crash.mortal import POINTS


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deaths]:
    need_what_kills()
    with adopting():
        deaths = Deaths(tmp_path_factory.mktemp("data"))
        yield deaths
        assert deaths.close() == {}


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(deaths: Deaths, point: str) -> None:
    after = deaths.at(point)
    assert after.died
    assert not after.faults


def test_killed_in_recovery(deaths: Deaths) -> None:
    after = deaths.in_recovery()
    assert after.died
    assert not after.faults


def test_killed_while_many_wait(deaths: Deaths) -> None:
    assert not deaths.at_any_time(after_s=0.1).faults


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_killed_at_a_system_call_of_a_run(deaths: Deaths, tmp_path: Path, share: float) -> None:
    made = calls.of_a_run(deaths, tmp_path / "log")
    call = made[int(share * len(made))]
    assert not deaths.at_call(*call).faults


def test_killed_at_a_system_call_of_the_first_start(tmp_path: Path) -> None:
    need_what_kills()
    made = calls.of_a_start(tmp_path / "watched", tmp_path / "log")
    call = made[len(made) // 2]
    with adopting():
        deaths = Deaths(tmp_path / "data")
        after = deaths.at_start(call.name, call.number)
        assert deaths.close() == {}
    assert after.died
    assert not after.faults
