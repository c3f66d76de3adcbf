"""One table from code to status, one shape for every error."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.api.served import client_with, code_of

from belljar import errors
from belljar.api.errors import STATUS, error_answer, status_of
from belljar.engines.base import Probe
from belljar.engines.fake import FakeEngine
from belljar.errors import BelljarError, EngineUnavailable
from belljar.models import Grant
from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2
    from tests.api.conftest import Opening

EXPECTED = {
    "APPROVAL_DENIED": 403,
    "APPROVAL_NEEDED": 403,
    "BAD_CONFIG": 400,
    "BAD_POLICY": 400,
    "BAD_REQUEST": 400,
    "COMMAND_NOT_ALLOWED": 403,
    "CONFLICT": 409,
    "ENGINE_UNAVAILABLE": 503,
    "FORBIDDEN": 403,
    "GRANT_NOT_ENFORCEABLE": 503,
    "IMAGE_NOT_ALLOWED": 403,
    "INTERNAL": 500,
    "LIMIT_EXCEEDED": 400,
    "NOT_FOUND": 404,
    "PACKAGE_NOT_ALLOWED": 403,
    "PACKAGE_UNAVAILABLE": 400,
    "PATH_NOT_ALLOWED": 400,
    "POLICY_ESCALATION": 403,
    "POSTURE_MISMATCH": 503,
    "QUEUE_FULL": 429,
    "REFUSED": 403,
    "SHUTTING_DOWN": 503,
    "STORE_UNAVAILABLE": 503,
    "TOOL_NOT_ALLOWED": 403,
    "TOOL_UNAVAILABLE": 403,
    "UNAUTHORIZED": 401,
    "UNAVAILABLE": 503,
    "UNSUPPORTED_LANGUAGE": 400,
}


class Broken(FakeEngine):
    """An engine that cannot make a jar, for a reason that names a place of this machine."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self._failure = failure

    async def create(self, grant: Grant) -> None:  # type: ignore[override]
        raise self._failure


def test_every_code_has_its_status() -> None:
    assert dict(STATUS) == EXPECTED


def test_a_body_that_is_too_large_has_a_status_of_its_own() -> None:
    assert status_of(errors.LimitExceeded("", field="body")) == 413
    assert status_of(errors.LimitExceeded("", field="input_files")) == 400


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        pytest.param(errors.QueueFull("", retry_after_s=7), "7", id="full"),
        pytest.param(errors.StoreUnavailable(""), "1", id="no store"),
        pytest.param(errors.ShuttingDown(""), "1", id="ending"),
        pytest.param(errors.EngineUnavailable(""), None, id="no jar"),
        pytest.param(errors.BadRequest(""), None, id="bad"),
    ],
)
def test_who_may_come_back_is_told_when(error: BelljarError, seconds: str | None) -> None:
    answer = error_answer(error, request_id=None, operator=False)
    assert answer.headers.get("retry-after") == seconds


async def test_an_escalation_says_all_there_is_to_know(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/run", json={"request_id": "r1", "code": "1", "limits": {"memory_mb": 99999}})
    assert answer.status_code == 403
    [row] = (await http.get("/sandbox/execs")).json()["execs"]
    assert answer.json() == {
        "request_id": "r1",
        "status": "error",
        "error": {
            "code": "POLICY_ESCALATION",
            "message": "limits.memory_mb: asked for 99999, but layer 'settings' grants 4096",
            "field": "limits.memory_mb",
            "exec_id": row["exec_id"],
            "asked": 99999,
            "ceiling": 4096,
            "layer": "settings",
        },
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", "/nothing", 404, "NOT_FOUND", id="no route"),
        pytest.param("GET", "/health/", 404, "NOT_FOUND", id="a slash too many"),
        pytest.param("GET", "/run", 405, "BAD_REQUEST", id="wrong method"),
        pytest.param("DELETE", "/sandbox/execs", 405, "BAD_REQUEST", id="method of no route"),
        pytest.param("GET", "/sandbox/execs/ex-1", 404, "NOT_FOUND", id="no run"),
    ],
)
async def test_what_is_not_there_is_said_in_the_same_shape(
    shared: httpx2.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await shared.request(method, path)
    assert (answer.status_code, code_of(answer)) == (status, code)


async def test_a_wrong_method_is_told_the_right_ones(shared: httpx2.AsyncClient) -> None:
    assert (await shared.head("/health")).headers["allow"] == "GET"
    assert (await shared.delete("/sandbox/execs")).headers["allow"] == "POST, GET"


async def test_a_run_without_a_jar_is_an_error_and_a_record(open_service: Opening) -> None:
    engine = Broken(EngineUnavailable("no cgroup at /sys/fs/cgroup/belljar"))
    async with open_service(engine) as service, client_with(service, Role.OPERATOR) as http:
        answer = await http.post("/run", json={"language": "bash", "code": "true", "request_id": "r1"})
        again = await http.post("/run", json={"language": "bash", "code": "true", "request_id": "r1"})
        rows = (await http.get("/sandbox/execs")).json()["execs"]
    assert (answer.status_code, code_of(answer)) == (503, "ENGINE_UNAVAILABLE")
    assert answer.json() == again.json()
    assert [(row["status"], row["verdict"], row["error_code"]) for row in rows] == [
        ("finished", "lost", "ENGINE_UNAVAILABLE")
    ]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param("/run", {"code": "1", "limits": {"memory_mb": 99999}}, "refused", id="policy"),
        pytest.param("/run", {"code": "1", "working_dir": "../x"}, "refused", id="a path"),
        pytest.param(
            "/tools/code_run", {"arguments": {"code": "1", "language": "bash"}}, "finished", id="jar"
        ),
    ],
)
async def test_what_was_not_run_can_be_looked_up_by_its_error(
    open_service: Opening, path: str, body: dict[str, object], status: str
) -> None:
    engine = Broken(EngineUnavailable("no jar"))
    async with open_service(engine) as service, client_with(service, Role.OPERATOR) as http:
        first = (await http.post(path, json={"request_id": "r", **body})).json()
        again = (await http.post(path, json={"request_id": "r", **body})).json()
        record = (await http.get(f"/sandbox/execs/{first['error']['exec_id']}")).json()
    assert again["error"]["exec_id"] == record["exec_id"]
    assert (record["status"], record["error_code"]) == (status, first["error"]["code"])


async def test_only_the_operator_hears_about_the_machine(open_service: Opening) -> None:
    engine = Broken(EngineUnavailable("no cgroup at /sys/fs/cgroup/belljar"))
    said = {}
    async with open_service(engine) as service:
        for role in (Role.OPERATOR, Role.AGENT):
            async with client_with(service, role) as http:
                answer = await http.post("/run", json={"language": "bash", "code": "true"})
                rows = await http.get("/sandbox/execs")
                said[role] = answer.text + rows.text
    assert "/sys/fs" in said[Role.OPERATOR]
    assert "/sys/fs" not in said[Role.AGENT]


async def test_a_fault_of_ours_is_told_without_its_insides(
    open_service: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(FakeEngine):
        async def probe(self) -> Probe:
            raise RuntimeError("secret insides")

    async with open_service(Faulty()) as service, client_with(service, Role.OPERATOR) as http:
        answer = await http.get("/sandbox/health")
    assert (answer.status_code, code_of(answer)) == (500, "INTERNAL")
    assert "secret" not in answer.text
    assert answer.json()["request_id"] in caplog.text


async def test_without_its_record_nothing_is_run_and_the_service_heals(
    service: Service, http: httpx2.AsyncClient
) -> None:
    with closing(sqlite3.connect(service.config.data_dir / "belljar.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else can write now
        answer = await http.post("/run", json={"code": "1", "request_id": "r"})
        assert (answer.status_code, code_of(answer)) == (503, "STORE_UNAVAILABLE")
        assert answer.headers["retry-after"] == "1"
        assert (await http.get("/health")).status_code == 200
        other.execute("ROLLBACK")
    assert (await http.post("/run", json={"code": "1", "request_id": "r"})).status_code == 200
    assert (service.lifecycle.turns.running, service.lifecycle.turns.waiting) == (0, 0)
