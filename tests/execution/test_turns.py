from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import QueueFull
from belljar.execution.turns import Place, Turns


async def entered(place: Place) -> bool:
    """Whether it gets in now."""
    task = asyncio.create_task(place.__aenter__())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if task.done():
        return True
    task.cancel()
    return False


async def test_runs_up_to_the_limit_go_in_at_once() -> None:
    turns = Turns(at_once=2, waiting=0)
    assert await entered(turns.take_place("a"))
    assert await entered(turns.take_place("a"))
    assert (turns.running, turns.waiting) == (2, 0)


async def test_one_more_than_may_wait_is_refused_and_told_when_to_come_back() -> None:
    turns = Turns(at_once=1, waiting=2)
    for _ in range(3):
        turns.take_place("a")
    with pytest.raises(QueueFull) as refused:
        turns.take_place("b")
    assert refused.value.retry_after_s >= 1


async def test_a_slot_that_is_left_goes_to_the_next_in_line() -> None:
    turns = Turns(at_once=1, waiting=1)
    first, second = turns.take_place("a"), turns.take_place("a")
    async with first:
        waiter = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        assert not waiter.done()
    await asyncio.wait_for(waiter, 30)
    second.leave()
    assert (turns.running, turns.waiting) == (0, 0)


async def test_a_project_with_a_long_queue_does_not_keep_another_waiting() -> None:
    turns = Turns(at_once=1, waiting=100)
    order: list[str] = []

    async def work(project: str, place: Place) -> None:
        async with place:
            order.append(project)
            await asyncio.sleep(0)

    busy = [("busy", turns.take_place("busy")) for _ in range(20)]
    late = [("late", turns.take_place("late")) for _ in range(2)]
    await asyncio.gather(*(work(*one) for one in [*busy, *late]))
    assert order.index("late") <= 2, "it got the second turn, not the twenty-first"
    assert len(order) == 22


async def test_a_waiter_that_gives_up_leaves_no_trace() -> None:
    turns = Turns(at_once=1, waiting=5)
    turns.take_place("a")
    waiter = asyncio.create_task(turns.take_place("a").__aenter__())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert (turns.running, turns.waiting) == (1, 0)


@given(
    at_once=st.integers(1, 4),
    script=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=60),
)
def test_counts_are_right_and_no_free_slot_is_kept_from_a_waiter(
    at_once: int, script: list[tuple[str, int]]
) -> None:
    async def play() -> None:
        turns = Turns(at_once=at_once, waiting=1000)
        places: list[Place] = []
        for project, which in script:
            if which < 6 or not places:
                places.append(turns.take_place(project))
            else:
                places.pop(which % len(places)).leave()
            inside = [place for place in places if place.has_turn]
            assert turns.running == len(inside) <= at_once
            assert turns.waiting == len(places) - len(inside)
            assert len(inside) == at_once or not turns.waiting

    asyncio.run(play())
