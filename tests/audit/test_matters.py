"""States that outlive a restart, on every database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.audit.databases import NOON

from belljar.audit.ledger import LedgerStore
from belljar.audit.records import Matter
from belljar.errors import Conflict

ONE = Matter(
    kind="approval", id="a1", project_id="p", state="waiting", created_at=NOON, body={"x": [1, "\0é"]}
)


async def test_a_matter_comes_back_as_it_was(store: LedgerStore) -> None:
    await store.open_matter(ONE)
    assert await store.matter("approval", "a1") == ONE
    assert await store.matter("session", "a1") is None


async def test_an_id_is_used_once(store: LedgerStore) -> None:
    await store.open_matter(ONE)
    with pytest.raises(Conflict, match="already"):
        await store.open_matter(replace(ONE, project_id="other"))
    assert await store.matter("approval", "a1") == ONE


async def test_of_many_who_move_it_at_once_one_does(store: LedgerStore) -> None:
    await store.open_matter(ONE)
    moves = (store.move_matter(replace(ONE, state="approved", body={"by": n}), "waiting") for n in range(8))
    outcomes = await asyncio.gather(*moves, return_exceptions=True)
    assert sum(isinstance(one, Conflict) for one in outcomes) == 7
    (winner,) = [one for one in outcomes if isinstance(one, Matter)]
    assert await store.matter("approval", "a1") == winner


async def test_moving_what_is_not_there_is_a_conflict(store: LedgerStore) -> None:
    with pytest.raises(Conflict, match="gone"):
        await store.move_matter(ONE, "waiting")


async def test_matters_are_listed_newest_first_by_state_and_project(store: LedgerStore) -> None:
    for number, (state, project) in enumerate([("a", "p"), ("b", "p"), ("a", "q"), ("c", "q")]):
        moment = NOON + timedelta(minutes=number)
        await store.open_matter(
            replace(ONE, id=f"m{number}", state=state, project_id=project, created_at=moment)
        )
    assert [one.id for one in await store.matters("approval")] == ["m3", "m2", "m1", "m0"]
    assert [one.id for one in await store.matters("approval", "a", "b")] == ["m2", "m1", "m0"]
    assert [one.id for one in await store.matters("approval", "a", projects=frozenset({"p"}))] == ["m0"]
    assert await store.matters("approval", projects=frozenset()) == []
    assert [one.id for one in await store.matters("approval", limit=1)] == ["m3"]
    assert await store.matters("session") == []
