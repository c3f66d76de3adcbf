from __future__ import annotations

from typing import TYPE_CHECKING

from tests.api.served import client_with, code_of

from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2


async def test_files_are_told_with_the_run_that_left_them(shared: httpx2.AsyncClient) -> None:
    ran = await shared.post("/run", json={"code": "write a.txt hello", "project_id": "t1"})
    found = (await shared.get("/sandbox/trail", params={"project_id": "t1", "path": "a.txt"})).json()
    [entry] = found["entries"]
    assert (entry["exec_id"], entry["change"], entry["before"]) == (ran.json()["id"], "created", None)
    none = await shared.get("/sandbox/trail", params={"project_id": "t1", "path": "b.txt"})
    assert none.json() == {"entries": [], "cursor": None}


async def test_runs_of_others_leave_no_trail(shared_service: Service, shared: httpx2.AsyncClient) -> None:
    await shared.post("/run", json={"code": "write a.txt hello", "project_id": "theirs"})
    async with client_with(shared_service, Role.VIEWER, ("mine",)) as viewer:
        for params in ({}, {"project_id": "theirs"}):
            assert (await viewer.get("/sandbox/trail", params=params)).json()["entries"] == []


async def test_a_page_that_is_no_number_is_refused(shared: httpx2.AsyncClient) -> None:
    answer = await shared.get("/sandbox/trail", params={"limit": "many"})
    assert (answer.status_code, code_of(answer)) == (400, "BAD_REQUEST")
