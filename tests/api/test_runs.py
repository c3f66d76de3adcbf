"""`POST /run`: both forms of asking, both forms of answering, and the same answer when asked again."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.served import client_of, client_with, code_of, events_in

from belljar.service import Service
from belljar.tokens import Role

if TYPE_CHECKING:
    import httpx2
    from tests.api.conftest import Opening

FIELDS = set(
    "id request_id status verdict exit_code signal timed_out stdout stderr truncated stdout_bytes "
    "stderr_bytes duration_ms started_at finished_at outputs output_files skipped packages usage "
    "error_code error_reason receipt".split()
)


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def test_code_is_run(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post(
        "/run", json={"language": "python", "code": "write a/b.txt hello", "timeout_s": 10}
    )
    assert answer.status_code == 200
    body = answer.json()
    assert set(body) == FIELDS
    assert (body["status"], body["verdict"], body["exit_code"], body["stdout"]) == (
        "ok", "exited", 0, "write a/b.txt hello",
    )  # fmt: skip
    sha256 = hashlib.sha256(b"hello").hexdigest()
    assert body["outputs"] == [{"path": "a/b.txt", "size": 5, "sha256": sha256, "mime": "text/plain"}]
    assert body["output_files"] == [{"path": "a/b.txt", "content_b64": b64(b"hello"), "size": 5}]
    assert body["started_at"].endswith("Z")


async def test_a_command_is_run(shared: httpx2.AsyncClient) -> None:
    body = {
        "request_id": "4d6c1b1e",
        "project_id": "project-123",
        "command": ["bash", "-c", "cat data.csv > out/report.json && echo $FOO"],
        "working_dir": "sub",
        "env": {"FOO": "bar"},
        "input_files": [
            {"path": "sub/data.csv", "content_b64": b64(b"1,2")},
            {"path": "sub/out/x", "content_b64": ""},
        ],
        "output_files": ["sub/out/report.json"],
        "limits": {
            "timeout_seconds": 30,
            "cpu_cores": 1.0,
            "memory_mb": 512,
            "pids": 128,
            "max_stdout_kb": 256,
            "max_stderr_kb": 256,
            "max_output_total_mb": 20,
        },
    }
    answer = await shared.post("/run", json=body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["request_id"], said["stdout"], said["exit_code"]) == ("4d6c1b1e", "bar\n", 0)
    assert [file["path"] for file in said["output_files"]] == ["sub/out/report.json"]
    record = (await shared.get(f"/sandbox/execs/{said['id']}")).json()
    assert record["project_id"] == "project-123"
    assert record["env_keys"] == ["FOO"]
    assert record["policy_snapshot"]["limits.stdout_kb"] == {"layer": "request", "value": 256}


@pytest.mark.parametrize(
    ("asked", "verdict"), [("kill", "output_limit"), ("truncate", "exited"), (None, "exited")]
)
async def test_too_much_output_is_cut_off_or_ends_the_run_as_asked(
    shared: httpx2.AsyncClient, asked: str | None, verdict: str
) -> None:
    body = {"code": "flood 40", "limits": {"max_stdout_kb": 64}, "on_output_limit": asked}
    answer = (await shared.post("/run", json=body)).json()
    assert (answer["verdict"], answer["truncated"]["stdout"]) == (verdict, True)


async def test_a_program_that_fails_is_a_good_answer(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post("/run", json={"code": "exit 3"})
    assert (answer.status_code, answer.json()["exit_code"], answer.json()["status"]) == (200, 3, "ok")


async def test_a_program_that_takes_too_long_is_a_good_answer(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post("/run", json={"code": "sleep 60", "timeout_s": 0.05, "limits": {"grace_s": 0}})
    assert (answer.json()["verdict"], answer.json()["timed_out"]) == ("timeout", True)


async def test_truncated_output_says_how_much_there_was(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post("/run", json={"code": "flood 2", "limits": {"max_stdout_kb": 1}})
    body = answer.json()
    assert (len(body["stdout"]), body["stdout_bytes"]) == (1024, 131072)
    assert body["truncated"] == {"stdout": True, "stderr": False}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"stdin": "héllo"}, id="text"),
        pytest.param({"stdin_b64": b64("héllo".encode())}, id="bytes"),
    ],
)
async def test_stdin_reaches_the_program(shared: httpx2.AsyncClient, given: dict[str, str]) -> None:
    assert (await shared.post("/run", json={"code": "stdin", **given})).json()["stdout"] == "héllo"


async def test_a_file_is_named_in_the_projects_inputs(service: Service, http: httpx2.AsyncClient) -> None:
    inputs = service.workspace.project("p") / "inputs"
    (inputs / "data").mkdir(parents=True)
    (inputs / "data/x.txt").write_bytes(b"from the host")
    (inputs / "link").symlink_to("/etc/passwd")
    body = {"code": "read data/x.txt", "project_id": "p", "input_files": ["data/x.txt"]}
    assert (await http.post("/run", json=body)).json()["stdout"] == "from the host"
    for name in ("link", "absent", "../inputs/data/x.txt", "data", "/etc/passwd", ""):
        answer = await http.post("/run", json=body | {"input_files": [name]})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "input_files.0"), name
    elsewhere = await http.post("/run", json=body | {"project_id": "q"})
    assert (elsewhere.status_code, elsewhere.json()["error"]["field"]) == (400, "input_files.0")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({}, "code", id="nothing to run"),
        pytest.param({"code": "1", "command": ["ls"]}, "command", id="both"),
        pytest.param({"command": []}, "command", id="empty command"),
        pytest.param({"command": "ls -la"}, "command", id="command as text"),
        pytest.param({"command": ["ls", 1]}, "command.1", id="argument is a number"),
        pytest.param({"command": ["ls", "a\0b"]}, "command.1", id="NUL"),
        pytest.param({"code": 1}, "code", id="code is a number"),
        pytest.param({"code": "1", "timeout_s": "10"}, "timeout_s", id="number as text"),
        pytest.param({"code": "1", "timeout_s": True}, "timeout_s", id="number as truth"),
        pytest.param({"code": "1", "timeout_s": 0}, "limits.timeout_s", id="no time"),
        pytest.param({"code": "1", "timeout_s": -1}, "limits.timeout_s", id="negative time"),
        pytest.param({"code": "1", "limits": {"memory_mb": True}}, "limits.memory_mb", id="memory as truth"),
        pytest.param({"code": "1", "limits": {"memory_mb": None}}, "limits.memory_mb", id="memory as null"),
        pytest.param(
            {"code": "1", "limits": {"memory_mb": "64m"}}, "limits.memory_mb", id="memory with unit"
        ),
        pytest.param(
            {"code": "1", "limits": {"memory_mb": 2**63 - 1}}, "limits.memory_mb", id="memory of 2**63"
        ),
        pytest.param({"code": "1", "limits": {"memroy_mb": 1}}, "limits.memroy_mb", id="unknown limit"),
        pytest.param(
            {"code": "1", "timeout_s": 1, "limits": {"timeout_seconds": 1}},
            "limits.timeout_s",
            id="timeout twice",
        ),
        pytest.param(
            {"code": "1", "timeout_s": 1, "limits": {"timeout_s": 1}}, "timeout_s", id="timeout thrice"
        ),
        pytest.param({"code": "1", "language": "cobol"}, "language", id="language"),
        pytest.param({"code": "1", "language": "Python"}, "language", id="language in capitals"),
        pytest.param({"code": "1", "language": "javascript"}, "language", id="language the engine lacks"),
        pytest.param({"code": "1", "start": "spoon"}, "start", id="start"),
        pytest.param({"code": "1", "project_id": "../x"}, "project_id", id="project"),
        pytest.param({"code": "1", "project_id": ""}, "project_id", id="empty project"),
        pytest.param({"code": "1", "request_id": ""}, "request_id", id="empty id"),
        pytest.param({"code": "1", "request_id": "a b"}, "request_id", id="id with a space"),
        pytest.param({"code": "1", "request_id": "x" * 201}, "request_id", id="long id"),
        pytest.param({"code": "1", "working_dir": "../x"}, "working_dir", id="working_dir"),
        pytest.param({"code": "1", "output_files": ["/etc/passwd"]}, "output_files", id="output"),
        pytest.param({"code": "1", "env": {"A=B": "c"}}, "env", id="variable"),
        pytest.param({"code": "1", "env": {"A": 1}}, "env.A", id="value of a variable"),
        pytest.param({"code": "1", "stdin": "a", "stdin_b64": "YQ=="}, "stdin_b64", id="two stdins"),
        pytest.param({"code": "1", "input_files": [1]}, "input_files.0", id="no file"),
        pytest.param(
            {"code": "1", "input_files": [{"path": "a"}]}, "input_files.0.content_b64", id="no content"
        ),
        pytest.param(
            {"code": "1", "input_files": [{"path": "../a", "content_b64": ""}]}, "input_files", id="path up"
        ),
        pytest.param({"code": "1", "<file>": 1}, "<file>", id="a name of ours"),
        pytest.param({"code": "1", "": 1}, "", id="no name"),
    ],
)
async def test_a_bad_request_names_the_field(shared: httpx2.AsyncClient, body: Any, field: str) -> None:
    answer = await shared.post("/run", json=body)
    assert answer.status_code == 400, answer.text
    code_of(answer)
    assert answer.json()["error"]["field"] == field


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        pytest.param({"cod": "1"}, "`code`", id="top"),
        pytest.param({"code": "1", "timeout": 3}, "`timeout_s`", id="unit"),
        pytest.param({"code": "1", "input_files": [{"pth": "a"}]}, "`path`", id="in a list"),
        pytest.param({"code": "1", "limits": {"memory": 1}}, "memory_mb`", id="limit"),
    ],
)
async def test_an_unknown_name_gets_a_hint(shared: httpx2.AsyncClient, body: Any, hint: str) -> None:
    answer = await shared.post("/run", json=body)
    assert (
        f"did you mean {hint}" in answer.json()["error"]["message"]
        or hint in answer.json()["error"]["message"]
    )
    assert answer.status_code == 400


async def test_a_refusal_is_recorded(http: httpx2.AsyncClient) -> None:
    await http.post("/run", json={"code": "1", "limits": {"memory_mb": 99999}})
    rows = (await http.get("/sandbox/execs?status=refused")).json()["execs"]
    assert [row["error_code"] for row in rows] == ["POLICY_ESCALATION"]


# The same request again


async def test_the_same_request_is_the_same_run(http: httpx2.AsyncClient) -> None:
    body = {"request_id": "once", "code": "write out.txt x", "env": {"A": "1"}}
    first, second = await http.post("/run", json=body), await http.post("/run", json=body)
    assert first.json() == second.json()
    assert len((await http.get("/sandbox/execs")).json()["execs"]) == 1


async def test_the_same_id_with_another_body_is_a_conflict(http: httpx2.AsyncClient) -> None:
    await http.post("/run", json={"request_id": "once", "code": "1"})
    answer = await http.post("/run", json={"request_id": "once", "code": "2"})
    assert (answer.status_code, code_of(answer)) == (409, "CONFLICT")
    assert answer.json()["request_id"] == "once"


async def test_the_same_request_is_answered_from_disk_after_a_restart(open_service: Opening) -> None:
    body = {"request_id": "once", "code": "write out.txt x", "env": {"A": "1"}}
    async with open_service() as service, client_of(service) as http:
        first = await http.post("/run", json=body)
    async with open_service() as service, client_of(service) as http:
        second = await http.post("/run", json=body)
    assert first.json() == second.json()
    assert second.json()["output_files"] == [{"path": "out.txt", "content_b64": b64(b"x"), "size": 1}]


async def test_output_that_retention_took_counts_as_truncated(
    service: Service, http: httpx2.AsyncClient
) -> None:
    body = {"request_id": "once", "code": "write out.txt x"}
    first = (await http.post("/run", json=body)).json()
    service.workspace.remove("default", first["id"])
    second = (await http.post("/run", json=body)).json()
    assert (second["stdout"], second["truncated"]["stdout"], second["output_files"]) == ("", True, [])
    assert (second["exit_code"], second["outputs"], second["receipt"]) == (
        0,
        first["outputs"],
        first["receipt"],
    )


async def test_a_refused_request_is_refused_again(http: httpx2.AsyncClient) -> None:
    body = {"request_id": "once", "code": "1", "limits": {"memory_mb": 99999}}
    first, second = await http.post("/run", json=body), await http.post("/run", json=body)
    assert second.status_code == first.status_code == 403
    assert code_of(first) == code_of(second) == "POLICY_ESCALATION"
    for part in ("message", "field"):
        assert first.json()["error"][part] == second.json()["error"][part]


async def test_twenty_at_once_are_one_run(http: httpx2.AsyncClient) -> None:
    body = {"request_id": "once", "code": "sleep 0.2"}
    answers = await asyncio.gather(*(http.post("/run", json=body) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len((await http.get("/sandbox/execs")).json()["execs"]) == 1


async def test_ids_of_two_projects_have_nothing_to_do_with_each_other(shared: httpx2.AsyncClient) -> None:
    one = await shared.post("/run", json={"request_id": "r", "project_id": "a", "code": "1"})
    two = await shared.post("/run", json={"request_id": "r", "project_id": "b", "code": "2"})
    assert (one.json()["stdout"], two.json()["stdout"]) == ("1", "2")


async def test_a_full_queue_says_when_to_come_back(open_service: Opening) -> None:
    async with (
        open_service(max_concurrent_execs=1, max_queued_execs=1) as service,
        client_of(service) as http,
    ):
        answers = await asyncio.gather(*(http.post("/run", json={"code": "sleep 0.3"}) for _ in range(5)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert [(one.status_code, code_of(one)) for one in refused] == [(429, "QUEUE_FULL")] * 3
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)


# As a stream


async def test_a_stream_tells_what_happens_and_ends_with_the_answer(shared: httpx2.AsyncClient) -> None:
    body = {"request_id": "once", "code": "hello"}
    streamed = await shared.post("/run", json=body, headers={"accept": "text/event-stream"})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = events_in(streamed.text)
    assert [kind for _, kind, _ in events] == [
        "queued", "running", "started", "stdout", "ended", "finished", "result",
    ]  # fmt: skip
    assert [number for number, _, _ in events] == ["1", "2", "3", "4", "5", "6", None]
    assert events[3][2]["text"] == "hello"
    assert events[-1][2] == (await shared.post("/run", json=body)).json()


async def test_a_stream_that_is_asked_again_goes_on_where_it_was(http: httpx2.AsyncClient) -> None:
    body, accept = {"request_id": "once", "code": "hello"}, {"accept": "text/event-stream"}
    await http.post("/run", json=body)
    again = await http.post("/run", json=body, headers=accept | {"last-event-id": "4"})
    assert [kind for _, kind, _ in events_in(again.text)] == ["ended", "finished", "result"]


async def test_a_refusal_is_no_stream(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post("/run", json={"code": 1}, headers={"accept": "text/event-stream"})
    assert (answer.status_code, code_of(answer)) == (400, "BAD_REQUEST")


async def test_an_answer_says_that_what_the_run_left_is_not_kept(
    service: Service, http: httpx2.AsyncClient
) -> None:
    project = service.workspace.project("default")
    (project / "work/f").mkdir(parents=True)  # where a file is to go
    (project / "artifacts").touch()  # where folders are to go
    body = {"code": "write f x", "persist_work": True, "request_id": "r"}
    told = (await http.post("/run", json=body)).json()
    again = (await http.post("/run", json=body)).json()
    assert (told["verdict"], told["output_files"][0]["path"]) == ("exited", "f")
    assert (told["error_code"], told["error_reason"]) == (
        "STORE_UNAVAILABLE",
        "the project's work could not be kept: f: Is a directory; "
        "the run's own files could not be kept: Not a directory",
    )
    assert (again["error_code"], again["error_reason"]) == (told["error_code"], told["error_reason"])


async def test_why_it_is_not_kept_is_only_for_the_operator(service: Service) -> None:
    (service.workspace.project("default")).mkdir()
    (service.workspace.project("default") / "artifacts").touch()
    async with client_with(service, Role.AGENT) as http:
        told = (await http.post("/run", json={"code": "write f x"})).json()
    assert told["error_code"] == "STORE_UNAVAILABLE"
    assert told["error_reason"].startswith("not all that the run left could be kept; the operator")


async def test_what_a_request_id_may_be_is_said_in_words(shared: httpx2.AsyncClient) -> None:
    answer = await shared.post("/run", json={"code": "1", "request_id": "a b"})
    message = "request_id: must be 1 to 200 visible characters of ASCII, without spaces"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
