"""`POST /tests/run`: code and test cases in, a verdict for each test out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from belljar.api.answers import json_answer
from belljar.api.bodies import Body, Text
from belljar.api.calls import Call
from belljar.api.outcomes import finished, submit
from belljar.errors import BadRequest
from belljar.execution.submissions import Submission
from belljar.flows.testdriven import Ask, Pair, Ran, Run, Suite, SuiteKind, run_tests
from belljar.models import InputFile, Language, RunRequest, Verdict
from belljar.policy.roles import tool_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["TestBody", "TestsBody", "run"]

MAX_TOTAL_S = 3600.0


class TestBody(Body):
    """`pytest` and `doctest` have a `text`, `pair` has `input` and `expected`, `docstrings` has neither."""

    __test__ = False

    kind: Literal["pytest", "doctest", "docstrings", "pair"]
    name: Text | None = None
    text: str | None = None
    input: str | None = None
    expected: str | None = None


class TestsBody(Body):
    """Code, and what it must do."""

    __test__ = False

    project_id: str | None = None
    language: Literal["python", "bash", "shell", "javascript", "typescript"] = "python"
    code: str
    module: str = "solution"
    tests: list[TestBody]
    timeout_s: float = Field(10.0, gt=0, le=MAX_TOTAL_S)
    total_s: float = Field(300.0, gt=0, le=MAX_TOTAL_S)
    limits: dict[str, float] = {}


async def run(call: Call) -> Response:
    body = await call.said(TestsBody)
    tests = [_test(test, place) for place, test in enumerate(body.tests)]
    report = await run_tests(
        _runs_of(call, body),
        body.code,
        tests,
        language=Language.BASH if body.language == "shell" else body.language,
        module=body.module,
        timeout_s=body.timeout_s,
        total_s=body.total_s,
    )
    answer = {"status": "ok", "passed": report.all_passed, "counts": report.counts, **asdict(report)}
    return json_answer(answer)


def _runs_of(call: Call, body: TestsBody) -> Run:
    project_id = call.project(body.project_id)
    if "timeout_s" in body.limits:
        raise BadRequest("timeout_s is for one test; give it by itself, not in limits", field="limits")

    async def run(ask: Ask) -> Ran:
        request = RunRequest(
            language=Language(ask.language),
            code=ask.code,
            files=tuple(InputFile(path, text.encode()) for path, text in ask.files.items()),
            output_files=(),
            stdin=ask.stdin.encode(),
        )
        submission = Submission(
            request=request,
            project_id=project_id,
            overrides={
                **{f"limits.{name}": value for name, value in body.limits.items()},
                "limits.timeout_s": ask.timeout_s,
            },
            token_id=call.caller.id,
            role=call.caller.agent_role,
            tool=tool_of(request),
        )
        record, kept = await finished(call, await submit(call, submission))
        return Ran(
            record.exec_id,
            Verdict(record.verdict or Verdict.LOST),
            record.exit_code,
            kept.stdout.decode("utf-8", "replace"),
            kept.stderr.decode("utf-8", "replace"),
            record.stdout_bytes > len(kept.stdout),
            record.duration_ms or 0,
        )

    return run


def _test(body: TestBody, place: int) -> Suite | Pair:
    name = body.name or f"{body.kind}[{place}]"
    wanted = {"pair": ("input", "expected"), "docstrings": ()}.get(body.kind, ("text",))
    for field in ("text", "input", "expected"):
        if (getattr(body, field) is not None) != (field in wanted):
            what = "is missing" if field in wanted else f"is not for a test of kind {body.kind}"
            raise BadRequest(f"tests.{place}.{field} {what}", field=f"tests.{place}.{field}")
    if body.kind == "pair":
        return Pair(name, body.input or "", body.expected or "")
    return Suite(SuiteKind(body.kind), name, body.text or "")
