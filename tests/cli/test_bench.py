from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.commands import Belljar

ROUNDS = ("bench", "--rounds", "2")


@pytest.mark.usefixtures("jail")
def test_a_jar_is_measured_beside_a_bare_python(belljar: Belljar) -> None:
    told = belljar(*ROUNDS, "--json").json
    assert (told["engine"], told["rounds"]) == ("jail", 2)
    for point in ("p50", "p99"):
        assert 0 < told["bare_ms"][point]
        assert told["ratio"][point] == told["jar_ms"][point] / told["bare_ms"][point]
    assert told["jar_ms"]["p50"] <= told["jar_ms"]["p99"]


@pytest.mark.usefixtures("jail")
def test_a_person_gets_a_table(belljar: Belljar) -> None:
    ran = belljar(*ROUNDS)
    assert (ran.status, ran.err) == (0, "")
    assert "a fresh jar (jail), ms" in ran.out
    assert "ratio" in ran.out


@pytest.mark.usefixtures("jail")
def test_what_was_measured_is_in_nobodys_records(belljar: Belljar, tmp_path: Path) -> None:
    assert belljar(*ROUNDS).status == 0
    assert not (tmp_path / "data").exists()


def test_an_engine_that_there_is_not_is_bad_input(belljar: Belljar) -> None:
    ran = belljar(*ROUNDS, "--engine", "moon")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "sandbox.engine" in ran.err
