"""What is kept up goes on, whatever goes wrong once."""

from __future__ import annotations

import asyncio

import pytest

from belljar.errors import StoreUnavailable
from belljar.execution import upkeep
from belljar.execution.upkeep import kept_up


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(StoreUnavailable("it is down"), id="an error of ours"),
        pytest.param(OSError(24, "too many open files"), id="the system's"),
        pytest.param(KeyError("x"), id="a fault"),
    ],
)
async def test_a_step_that_fails_is_logged_and_tried_again(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "LEAST_REST_S", 0)
    steps, third = 0, asyncio.Event()

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            third.set()
        raise fault

    task = asyncio.create_task(kept_up("the garden", step, every_s=0))
    async with asyncio.timeout(10):
        await third.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "the garden" in caplog.text


async def test_the_rest_grows_while_it_fails_and_is_short_again_after_a_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "LEAST_REST_S", 0.001)
    monkeypatch.setattr(upkeep, "MOST_REST_S", 0.004)
    outcomes = [False] * 4 + [True, False]

    async def step() -> None:
        if not outcomes:
            raise asyncio.CancelledError
        if not outcomes.pop(0):
            raise StoreUnavailable("it is down")

    with pytest.raises(asyncio.CancelledError):
        await kept_up("the garden", step, every_s=0)
    rests = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert rests == [0.001, 0.002, 0.004, 0.004, 0.001]
