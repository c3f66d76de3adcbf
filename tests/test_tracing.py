"""Traces of real runs of a real service, as a receiver of OTLP over HTTP gets them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from tests.api.conftest import opened
from tests.api.served import client_of, client_with

from belljar.engines.fake import FakeEngine
from belljar.engines.jail.engine import JailEngine
from belljar.errors import BadConfig
from belljar.models import Language
from belljar.settings import Profile
from belljar.tokens import Role
from belljar.tracing import tracing_for

CALLERS_TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{CALLERS_TRACE}-{CALLERS_SPAN}-01"


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def messages(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> dict[str, Any]:
        """By name; each is there once."""
        found = [
            span
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len({span.name for span in found}) == len(found)
        return {span.name: span for span in found}


class _Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server
        server.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_a_run_is_told_step_by_step_in_the_trace_of_its_caller(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with opened(tmp_path, JailEngine(), traced=True) as service, client_of(service) as http:
        body = {"code": "print(6 * 7); raise SystemExit(3)", "project_id": "p1"}
        answer = (await http.post("/run", json=body, headers={"traceparent": TRACEPARENT})).json()
    spans = receiver.spans
    assert set(spans) == {"POST /run", "run", "queue", "jar", "program", "collect", "record"}
    assert {span.trace_id.hex() for span in spans.values()} == {CALLERS_TRACE}
    request, run = spans.pop("POST /run"), spans.pop("run")
    assert request.parent_span_id.hex() == CALLERS_SPAN
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/run",
        "http.response.status_code": 200,
    }
    assert run.parent_span_id == request.span_id
    assert attributes(run) == {
        "belljar.exec_id": answer["id"],
        "belljar.project": "p1",
        "belljar.tool": "code_run",
        "belljar.language": "python",
        "belljar.engine": "jail",
        "belljar.status": "finished",
        "belljar.verdict": "exited",
        "belljar.exit_code": 3,
        "belljar.duration_ms": answer["duration_ms"],
        "belljar.cpu_s": answer["usage"]["cpu_s"],
    }
    assert {step.parent_span_id for step in spans.values()} == {run.span_id}
    moments = [
        moment
        for name in ("queue", "jar", "program", "collect", "record")
        for moment in (spans[name].start_time_unix_nano, spans[name].end_time_unix_nano)
    ]
    assert moments == sorted(moments)
    assert (moments[0], moments[-1]) == (run.start_time_unix_nano, run.end_time_unix_nano)


async def test_the_service_has_the_name_that_it_is_given(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for given in ("", "ours"):
        monkeypatch.setenv("OTEL_SERVICE_NAME", given)
        async with opened(tmp_path, traced=True) as service, client_of(service) as http:
            await http.post("/run", json={"code": "1"})
        names.append(attributes(receiver.messages[-1].resource_spans[0].resource)["service.name"])
    assert names == ["belljar", "ours"]


async def test_nothing_of_what_was_run_is_in_a_trace(receiver: Receiver, tmp_path: Path) -> None:
    async with opened(tmp_path, traced=True) as service, client_of(service) as http:
        body = {
            "code": "exit 0 MARKED",
            "args": ["MARKED"],
            "env": {"MARKED": "MARKED"},
            "stdin": "MARKED",
            "input_files": [{"path": "MARKED", "content": "MARKED"}],
            "request_id": "MARKED",
        }
        for path in ("/run?MARKED=1", "/run"):
            await http.post(path, json={"code": "write MARKED MARKED", **body})
        await http.post("/run", json={"code": "1", "language": "MARKED"})
        await http.post("/run", json={"code": "1", "working_dir": "../MARKED"})
    assert receiver.bodies
    assert b"MARKED" not in b"".join(receiver.bodies)


async def test_a_request_that_is_refused_is_told_by_its_code(receiver: Receiver, tmp_path: Path) -> None:
    async with opened(tmp_path, traced=True) as service, client_of(service) as http:
        await http.post("/run", json={"code": "1", "limits": {"memory_mb": 99999}})
    [request] = receiver.spans.values()
    assert attributes(request)["http.response.status_code"] == 403
    assert attributes(request)["error.type"] == "POLICY_ESCALATION"


async def test_a_fault_of_ours_is_an_error_without_its_words(receiver: Receiver, tmp_path: Path) -> None:
    class Faulty(FakeEngine):
        def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
            raise RuntimeError("MARKED")

    async with opened(tmp_path, Faulty(), traced=True) as service, client_of(service) as http:
        assert (await http.post("/run", json={"code": "1"})).status_code == 500
    [request] = receiver.spans.values()
    assert attributes(request)["error.type"] == "INTERNAL"
    assert request.status.code == Status.STATUS_CODE_ERROR
    assert b"MARKED" not in b"".join(receiver.bodies)


async def test_waiting_for_a_person_is_a_step(receiver: Receiver, tmp_path: Path) -> None:
    async with opened(tmp_path, traced=True, profile=Profile.SUPERVISED) as service:
        async with client_of(service) as http, client_with(service, Role.APPROVER) as person:
            asked = await http.post("/run", json={"code": "import os\nos.system('ls')"})
            assert asked.status_code == 202
            live = service.lifecycle.live(asked.json()["exec_id"])
            assert live is not None
            await person.post(f"/approvals/{asked.json()['approval_id']}", json={"decision": "approve"})
            await live.outcome()
    spans = receiver.spans
    assert {"approval", "queue", "program"} <= set(spans)
    assert spans["approval"].end_time_unix_nano == spans["queue"].start_time_unix_nano
    assert spans["run"].parent_span_id == spans["POST /run"].span_id
    assert spans["run"].end_time_unix_nano > spans["POST /run"].end_time_unix_nano


async def test_a_request_that_starts_no_run_has_no_trace(receiver: Receiver, tmp_path: Path) -> None:
    async with opened(tmp_path, traced=True) as service, client_of(service) as http:
        for path in ("/sandbox/health", "/sandbox/execs", "/nowhere"):
            await http.get(path, headers={"traceparent": TRACEPARENT})
    assert not receiver.bodies


@pytest.mark.parametrize(
    ("traceparent", "tracestate"),
    [
        pytest.param("x" * 5000, "", id="long"),
        pytest.param("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "", id="zeros"),
        pytest.param("\xff\xfe", "\xff=\xfe", id="not-ascii"),
        pytest.param(TRACEPARENT, "=,=;,a=b,a=b" + ",x=y" * 100, id="bad-state"),
    ],
)
async def test_a_callers_trace_that_makes_no_sense_fails_no_run(
    receiver: Receiver, tmp_path: Path, traceparent: str, tracestate: str
) -> None:
    headers = {b"traceparent": traceparent.encode("latin-1"), b"tracestate": tracestate.encode("latin-1")}
    async with opened(tmp_path, traced=True) as service, client_of(service) as http:
        answer = await http.post("/run", json={"code": "1"}, headers=headers)
    assert answer.status_code == 200
    assert "run" in receiver.spans


async def test_the_probe_of_the_jail_is_not_disturbed(receiver: Receiver, tmp_path: Path) -> None:
    engine = JailEngine()
    async with opened(tmp_path, engine, traced=True):
        assert (await engine.probe()).usable


@pytest.mark.parametrize(
    "answers", [pytest.param(False, id="refuses"), pytest.param(True, id="never-answers")]
)
async def test_a_receiver_that_is_down_holds_up_neither_a_run_nor_the_end(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belljar.tracing.spans.FLUSH_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "600")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        )
        if answers:
            taken.listen()
        async with opened(tmp_path, traced=True) as service, client_of(service) as http:
            for _ in range(3):
                assert (await http.post("/run", json={"code": "1"})).json()["verdict"] == "exited"


def test_variables_that_make_no_sense_are_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    with pytest.raises(BadConfig, match="OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"):
        tracing_for(wanted=True)


def test_without_opentelemetry_there_is_no_start_where_traces_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "belljar.tracing.spans", raising=False)
    with pytest.raises(BadConfig, match=r"\[otel\]"):
        tracing_for(wanted=True)


def test_where_nobody_wants_traces_nothing_of_opentelemetry_is_imported() -> None:
    program = (
        "import sys, belljar.api.app\n"
        "from belljar.tracing import tracing_for\n"
        "tracing_for(wanted=False)\n"
        "assert 'opentelemetry' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
