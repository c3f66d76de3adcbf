"""What a run left: listed as it was collected, handed out as something to save."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.api.served import code_of
from tests.api.test_execs import when

from belljar.service import Service

if TYPE_CHECKING:
    import httpx2


async def left(http: httpx2.AsyncClient, name: str, content: str) -> str:
    """A run that left this file; where its artifacts are."""
    run = (await http.post("/run", json={"code": f"write {name} {content}"})).json()
    assert [file["path"] for file in run["outputs"]] == [name]
    return f"/sandbox/execs/{run['id']}/artifacts"


async def test_what_a_run_left_is_listed(shared: httpx2.AsyncClient) -> None:
    answer = (await shared.get(await left(shared, "a/b.txt", "hello"))).json()
    assert answer["status"] == "finished"
    assert [(file["path"], file["size"], file["mime"]) for file in answer["artifacts"]] == [
        ("a/b.txt", 5, "text/plain")
    ]
    assert answer["skipped"] == []


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        pytest.param("notes.txt", "text/plain", id="text"),
        pytest.param("page.html", "application/octet-stream", id="html"),
        pytest.param("image.svg", "application/octet-stream", id="svg"),
        pytest.param("x.js", "application/octet-stream", id="script"),
        pytest.param("x.xml", "application/octet-stream", id="xml"),
        pytest.param("x.pdf", "application/octet-stream", id="pdf"),
    ],
)
async def test_no_file_is_handed_out_as_something_to_run(
    shared: httpx2.AsyncClient, name: str, type_: str
) -> None:
    answer = await shared.get(f"{await left(shared, name, '<script>alert(1)</script>')}/{name}")
    assert answer.status_code == 200
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == type_
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{name}"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_a_strange_name_is_found_and_cannot_forge_a_header(shared: httpx2.AsyncClient) -> None:
    name = "a;b\"c'é%.txt"
    answer = await shared.get(f"{await left(shared, name, 'x')}/a%3Bb%22c%27%C3%A9%25.txt")
    assert (answer.status_code, answer.content) == (200, b"x")
    assert answer.headers["content-disposition"].endswith("a%3Bb%22c%27%C3%A9%25.txt")


@pytest.mark.parametrize(
    "path", ["absent", "a", "stdout.txt", "meta.json", "files/a/b.txt", "a/b.txt/c", "é"]
)
async def test_what_a_run_did_not_leave_is_not_found(shared: httpx2.AsyncClient, path: str) -> None:
    answer = await shared.get(f"{await left(shared, 'a/b.txt', 'x')}/{path}")
    assert (answer.status_code, code_of(answer)) == (404, "NOT_FOUND")


async def test_a_file_that_was_swapped_for_a_link_is_not_found(
    shared_service: Service, shared: httpx2.AsyncClient
) -> None:
    place = await left(shared, "f.txt", "x")
    file = shared_service.workspace.run_folder("default", place.split("/")[3]) / "files/f.txt"
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert (await shared.get(f"{place}/f.txt")).status_code == 404


async def test_no_descriptor_stays_open(shared: httpx2.AsyncClient) -> None:
    place = await left(shared, "f.txt", "x" * 1000)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert (await shared.get(f"{place}/f.txt")).content == b"x" * 1000
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_run_that_goes_on_has_left_nothing_yet(http: httpx2.AsyncClient) -> None:
    body = {"exec": {"kind": "python", "command": "sleep 60"}, "wait": False}
    exec_id = (await http.post("/sandbox/execs", json=body)).json()["exec_id"]
    await when(http, exec_id, "running")
    answer = (await http.get(f"/sandbox/execs/{exec_id}/artifacts")).json()
    assert (answer["status"], answer["artifacts"]) == ("running", [])
    await http.post(f"/sandbox/execs/{exec_id}/cancel")
