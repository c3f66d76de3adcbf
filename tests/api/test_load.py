"""Many callers at once: nobody is lost, nothing runs twice, and the service keeps answering."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import TYPE_CHECKING

import pytest
from tests.api.served import exchange, request, serving, status_in

if TYPE_CHECKING:
    from tests.api.conftest import Opening

CALLERS = 2000


@pytest.mark.timeout(240)
async def test_two_thousand_at_once_are_two_thousand_runs(open_service: Opening) -> None:
    async with open_service(max_concurrent_execs=16, max_queued_execs=CALLERS) as service:
        async with serving(service, room=CALLERS + 100) as port:

            async def call(number: int) -> dict[str, str]:
                body = json.dumps(
                    {"code": f"run {number}", "request_id": f"r{number}", "project_id": f"p{number % 7}"}
                )
                answer = await exchange(port, request("POST", "/run", body.encode()), patience_s=200)
                assert status_in(answer) == 200
                said: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])
                return said

            heard, done = 0, asyncio.Event()

            async def watch() -> None:
                nonlocal heard
                while not done.is_set():
                    assert status_in(await exchange(port, request("GET", "/health"), patience_s=60)) == 200
                    heard += 1
                    await asyncio.sleep(0.05)

            watching = asyncio.create_task(watch())
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answers = await asyncio.gather(*map(call, range(CALLERS)))
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            done.set()
            await watching

        assert [answer["stdout"] for answer in answers] == [f"run {number}" for number in range(CALLERS)]
        assert len({answer["id"] for answer in answers}) == CALLERS
        receipts = [receipt.exec_id async for receipt in service.store.receipts()]
        assert sorted(receipts) == sorted(answer["id"] for answer in answers)
        assert heard > 3  # it answered others meanwhile
        assert grown < 500 << 10


async def test_what_does_not_fit_the_queue_is_told_so_and_the_rest_runs(open_service: Opening) -> None:
    async with open_service(max_concurrent_execs=2, max_queued_execs=20) as service:
        async with serving(service) as port:
            data = [
                request("POST", "/run", json.dumps({"code": f"sleep 0.0{n % 9}"}).encode())
                for n in range(200)
            ]
            answers = await asyncio.gather(*(exchange(port, one, patience_s=50) for one in data))
        statuses = [status_in(answer) for answer in answers]
        assert set(statuses) == {200, 429}
        receipts = [receipt.exec_id async for receipt in service.store.receipts()]
        assert len(receipts) == statuses.count(200)
