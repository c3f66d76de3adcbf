"""Who may call, from where, and what each role may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.api.served import TOKEN, client_of, client_with, code_of

from belljar.api.app import ROUTES
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    from tests.api.conftest import Opening

PATHS = sorted({entry.path.replace("{path:path}", "a").replace("{exec_id}", "ex-1") for entry in ROUTES})


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/health"])
async def test_without_a_token_nothing_is_told(shared_service: Service, path: str) -> None:
    async with client_of(shared_service, token=None) as http:
        for method in ("GET", "POST", "DELETE"):
            answer = await http.request(method, path)
            assert (answer.status_code, code_of(answer)) == (401, "UNAUTHORIZED")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_route_that_is_not_there_needs_a_token_too(shared_service: Service) -> None:
    async with client_of(shared_service, token=None) as http:
        assert (await http.get("/nothing/here")).status_code == 401


async def test_health_needs_none(shared_service: Service) -> None:
    async with client_of(shared_service, token=None) as http:
        answer = await http.get("/health")
    assert answer.status_code == 200
    assert answer.json()["service"] == "belljar"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param("", id="empty"),
        pytest.param("Bearer", id="only the scheme"),
        pytest.param("Bearer wrong", id="unknown"),
        pytest.param(f"Basic {TOKEN}", id="another scheme"),
        pytest.param(TOKEN, id="no scheme"),
        pytest.param(f"Bearer {TOKEN}, Bearer {TOKEN}", id="two in one"),
        pytest.param(f"Bearer {TOKEN[:-1]}", id="one character short"),
        pytest.param("Bearer \xff", id="not ASCII"),
    ],
)
async def test_what_is_no_known_token_is_unauthorized(shared_service: Service, given: str) -> None:
    async with client_of(shared_service, token=None) as http:
        answer = await http.get("/metrics", headers=[(b"authorization", given.encode("latin-1"))])
    assert (answer.status_code, code_of(answer)) == (401, "UNAUTHORIZED")


async def test_an_empty_token_file_lets_nobody_in(open_service: Opening, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    async with open_service(token=None) as service, client_of(service, token=None) as http:
        for given in ("Bearer", "Bearer ", "Bearer  "):
            assert (await http.get("/metrics", headers={"authorization": given})).status_code == 401


async def test_a_damaged_token_file_is_not_the_callers_fault(open_service: Opening, tmp_path: Path) -> None:
    async with open_service() as service, client_of(service, "some-token") as http:
        (tmp_path / "tokens.json").write_text("{")
        answer = await http.get("/metrics")
    assert (answer.status_code, code_of(answer)) == (503, "UNAVAILABLE")


async def test_a_token_that_was_revoked_is_out_at_once(shared_service: Service) -> None:
    token, text = shared_service.tokens.create(Role.AGENT, None)
    async with client_of(shared_service, text) as http:
        assert (await http.get("/metrics")).status_code == 200
        shared_service.tokens.revoke(token.id)
        assert (await http.get("/metrics")).status_code == 401


@pytest.mark.parametrize("role", [Role.VIEWER, Role.APPROVER])
@pytest.mark.parametrize("path", ["/run", "/sandbox/execs", "/sandbox/execs/ex-1/cancel"])
async def test_who_only_looks_cannot_run(shared_service: Service, role: Role, path: str) -> None:
    async with client_with(shared_service, role) as http:
        answer = await http.post(path, json={"code": "1"})
    assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")


@pytest.mark.parametrize("role", [Role.VIEWER, Role.APPROVER, Role.AGENT])
async def test_only_the_operator_walks_the_chain(shared_service: Service, role: Role) -> None:
    async with client_with(shared_service, role) as http:
        answer = await http.get("/audit/verify")
    assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")


async def test_a_run_of_another_project_is_as_absent_as_none(
    shared_service: Service, shared: httpx2.AsyncClient
) -> None:
    run = (await shared.post("/run", json={"code": "write f x", "project_id": "theirs"})).json()["id"]
    async with client_with(shared_service, Role.AGENT, ("ours",)) as other:
        for rest in ("", "/events", "/artifacts", "/artifacts/f", "/network", "/receipt"):
            foreign = await other.get(f"/sandbox/execs/{run}{rest}")
            absent = await other.get(f"/sandbox/execs/ex-{'0' * 32}{rest}")
            assert (foreign.status_code, foreign.content) == (404, absent.content)
        foreign = await other.post(f"/sandbox/execs/{run}/cancel")
        assert (foreign.status_code, code_of(foreign)) == (404, "NOT_FOUND")
        seen = (await other.get("/sandbox/execs")).json()["execs"]
        assert "theirs" not in {row["project_id"] for row in seen}
        assert (await other.get("/sandbox/execs?project_id=theirs")).json()["execs"] == []


async def test_a_token_runs_in_its_own_projects_only(shared_service: Service) -> None:
    async with client_with(shared_service, Role.AGENT, ("ours",)) as http:
        answer = await http.post("/run", json={"code": "1", "project_id": "theirs"})
        assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")
        run = await http.post("/run", json={"code": "1"})
        shown = await http.get(f"/sandbox/execs/{run.json()['id']}")
    assert shown.json()["project_id"] == "ours"


async def test_a_token_of_no_project_runs_nothing(shared_service: Service) -> None:
    async with client_with(shared_service, Role.AGENT, ()) as http:
        assert (await http.post("/run", json={"code": "1"})).status_code == 403


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8088", "LOCALHOST", "127.0.0.1:1", "[::1]", "[::1]:65535"],
)
async def test_a_host_of_this_machine_is_ours(shared: httpx2.AsyncClient, host: str) -> None:
    assert (await shared.get("/health", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8088",
        "localhost@evil.example",
        "localhost:8088:1",
        "localhost/..",
        "192.168.0.1",
        "0.0.0.0",
        "",
        "[::1",
        "localhost evil.example",
    ],
)
async def test_a_host_of_another_name_is_refused(shared: httpx2.AsyncClient, host: str) -> None:
    for path in ("/health", "/metrics"):
        answer = await shared.get(path, headers={"host": host})
        assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")


async def test_two_hosts_are_refused(shared: httpx2.AsyncClient) -> None:
    answer = await shared.get("/health", headers=[("host", "localhost"), ("host", "localhost")])
    assert answer.status_code == 403


async def test_a_configured_address_is_a_host(open_service: Opening) -> None:
    async with open_service(host="10.0.0.7", runner_url="http://jars.example:8088") as service:
        async with client_of(service) as http:
            for host in ("10.0.0.7:8088", "jars.example", "localhost"):
                assert (await http.get("/health", headers={"host": host})).status_code == 200
            assert (await http.get("/health", headers={"host": "10.0.0.8"})).status_code == 403


async def test_who_listens_everywhere_is_called_by_any_address_but_by_no_name(open_service: Opening) -> None:
    async with open_service(host="0.0.0.0") as service, client_of(service) as http:
        for host in ("172.17.0.2:8088", "[2001:db8::1]"):
            assert (await http.get("/health", headers={"host": host})).status_code == 200
        assert (await http.get("/health", headers={"host": "evil.example"})).status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost", "https://localhost", "HTTP://LOCALHOST"])
async def test_our_own_page_may_call(shared: httpx2.AsyncClient, origin: str) -> None:
    assert (await shared.get("/metrics", headers={"origin": origin})).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "localhost",
        "file://localhost",
        "http://localhost:8088",
        "http://localhost.evil.example",
        "http://[",
    ],
)
async def test_a_page_of_another_origin_may_not(shared: httpx2.AsyncClient, origin: str) -> None:
    answer = await shared.get("/metrics", headers={"origin": origin})
    assert (answer.status_code, code_of(answer)) == (403, "FORBIDDEN")


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
async def test_every_answer_has_the_security_headers(shared: httpx2.AsyncClient, path: str) -> None:
    for answer in (
        await shared.get(path),
        await shared.post(path),
        await shared.get(path, headers={"host": "x"}),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
