"""Server-sent events: nothing can forge one, they are resumed anywhere, and are never a burden to the run."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.served import client_at, client_of, code_of, events_in, exchange, request, serving

from belljar.api.desk import Patience
from belljar.api.streams import frame, last_event_id
from belljar.errors import BadRequest
from belljar.execution.events import RunEvent
from belljar.service import Service

if TYPE_CHECKING:
    import httpx2
    from tests.api.conftest import Opening

STREAM = {"accept": "text/event-stream"}


@given(st.text(), st.integers(1, 10**6))
def test_no_output_can_forge_an_event(text: str, number: int) -> None:
    data = frame(RunEvent(number, "stdout", {"text": text}))
    lines = data.decode("ascii").split("\n")
    assert lines[:2] == [f"id: {number}", "event: stdout"]
    assert json.loads(lines[2].removeprefix("data: ")) == {"text": text}
    assert lines[3:] == ["", ""]
    assert b"\r" not in data


def test_the_last_event_is_a_number_or_nothing() -> None:
    assert [last_event_id(given) for given in (None, "", "0", "17")] == [0, 0, 0, 17]


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "1 2", "٣", "9" * 19, "1\0"])
def test_another_last_event_is_refused(given: str) -> None:
    with pytest.raises(BadRequest):
        last_event_id(given)


async def test_events_of_a_run_that_is_over_are_those_of_the_run(shared: httpx2.AsyncClient) -> None:
    live = events_in((await shared.post("/run", json={"code": "hello"}, headers=STREAM)).text)
    exec_id = live[0][2]["exec_id"]
    later = events_in((await shared.get(f"/sandbox/execs/{exec_id}/events")).text)
    assert later == live[:-1]


@pytest.mark.parametrize("after", range(7))
async def test_events_go_on_after_any_of_them(shared: httpx2.AsyncClient, after: int) -> None:
    exec_id = (await shared.post("/run", json={"code": "hello"})).json()["id"]
    headers = {"last-event-id": str(after)} if after else {}
    events = events_in((await shared.get(f"/sandbox/execs/{exec_id}/events", headers=headers)).text)
    assert [int(number or 0) for number, _, _ in events] == list(range(after + 1, 7))


async def test_a_bad_last_event_is_a_bad_request(shared: httpx2.AsyncClient) -> None:
    exec_id = (await shared.post("/run", json={"code": "hello"})).json()["id"]
    answer = await shared.get(f"/sandbox/execs/{exec_id}/events", headers={"last-event-id": "x"})
    assert (answer.status_code, code_of(answer)) == (400, "BAD_REQUEST")


async def test_a_silence_is_filled_with_heartbeats(service: Service) -> None:
    heard: list[str] = []
    async with serving(service, patience=Patience(heartbeat_s=0.05)) as port, client_at(port) as http:
        async with http.stream("POST", "/run", json={"code": "sleep 60"}, headers=STREAM) as answer:
            async for line in answer.aiter_lines():
                heard.append(line)
                if heard.count(": still here") == 3:
                    for exec_id in service.lifecycle.live_ids:
                        await service.lifecycle.cancel(exec_id)
    assert events_in("\n".join(heard))[-1][1] == "result"


async def begun(http: httpx2.AsyncClient, code: str, **more: Any) -> str:
    """A run that is under way; its id."""
    body = {"exec": {"kind": "python", "command": code}, "wait": False, **more}
    exec_id: str = (await http.post("/sandbox/execs", json=body)).json()["exec_id"]
    return exec_id


async def test_events_come_while_the_run_goes_on(service: Service) -> None:
    async with serving(service) as port, client_at(port) as http:
        exec_id = await begun(http, "sleep 60")
        seen = []
        async with http.stream("GET", f"/sandbox/execs/{exec_id}/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    seen.append(line.removeprefix("event: "))
                if line == "event: started":
                    await http.post(f"/sandbox/execs/{exec_id}/cancel")
        assert seen == ["queued", "running", "started", "ended", "finished"]


async def test_a_listener_that_goes_away_changes_nothing(service: Service) -> None:
    async with serving(service) as port, client_at(port) as http:
        exec_id = await begun(http, "sleep 0.5")
        before = asyncio.all_tasks()
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("GET", f"/sandbox/execs/{exec_id}/events"))
            await asyncio.sleep(0.005)
            writer.transport.abort()
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if not asyncio.all_tasks() - before:
                break
        assert not asyncio.all_tasks() - before
        events = events_in((await http.get(f"/sandbox/execs/{exec_id}/events")).text)
        assert events[-1][2]["verdict"] == "exited"


async def test_a_caller_that_goes_away_finds_its_answer_later(service: Service) -> None:
    async with serving(service) as port, client_at(port) as http:
        body = {"request_id": "r", "code": "sleep 0.3"}
        for headers in ((), ("Accept: text/event-stream",)):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("POST", "/run", json.dumps(body).encode(), *headers))
            await asyncio.sleep(0.1)
            writer.transport.abort()
        answer = await http.post("/run", json=body)
        assert (answer.json()["verdict"], answer.json()["stdout"]) == ("exited", "sleep 0.3")
        assert len((await http.get("/sandbox/execs")).json()["execs"]) == 1


async def test_a_reader_that_does_not_read_is_dropped_and_the_run_goes_on(service: Service) -> None:
    async with serving(service, patience=Patience(stalled_s=0.3)) as port, client_at(port) as http:
        body = {"code": "flood 200", "limits": {"max_stdout_kb": 16384}, "request_id": "r"}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request("POST", "/run", json.dumps(body).encode(), "Accept: text/event-stream"))
        answer = await http.post("/run", json=body)
        assert (answer.json()["verdict"], answer.json()["stdout_bytes"]) == ("exited", 200 * 65536)
        await asyncio.sleep(1.0)
        told = await reader.read()  # what the kernel holds; then the connection is over
        writer.close()
    assert b"event: started" in told
    assert b"event: finished" not in told


async def test_a_run_of_another_process_is_waited_for(service: Service, open_service: Opening) -> None:
    """Two services on one database: what one has taken, the other finds and tells."""
    async with open_service() as other, client_of(service) as here, client_of(other) as there:
        body = {"request_id": "r", "code": "sleep 0.4"}
        first = asyncio.create_task(here.post("/run", json=body))
        await asyncio.sleep(0.15)
        second = await there.post("/run", json=body)
        assert second.json() == (await first).json()
        exec_id = second.json()["id"]
        events = events_in((await there.get(f"/sandbox/execs/{exec_id}/events")).text)
        assert events[-1][2]["verdict"] == "exited"


async def test_a_run_of_another_process_is_not_waited_for_for_ever(
    service: Service, open_service: Opening
) -> None:
    async with (
        open_service() as other,
        client_of(service) as here,
        client_of(other, patience=Patience(elsewhere_s=0.1)) as there,
    ):
        exec_id = await begun(here, "sleep 60", request_id="r")
        assert await begun(there, "sleep 60", request_id="r") == exec_id
        answer = await there.get(f"/sandbox/execs/{exec_id}/events")
        assert (answer.status_code, code_of(answer)) == (503, "UNAVAILABLE")
        await here.post(f"/sandbox/execs/{exec_id}/cancel")


async def test_bytes_are_what_the_program_wrote(service: Service) -> None:
    async with serving(service) as port:
        asked = request("POST", "/run", b'{"code": "\xc3\xa9"}', "Accept: text/event-stream")
        said = await exchange(port, asked)
        assert b'"text":"\\u00e9","data_b64":"w6k="' in said
