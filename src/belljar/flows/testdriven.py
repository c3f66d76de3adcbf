"""Code and test cases in, a verdict for each test out; the code cannot write the verdicts.

    {input, expected} pairs   judged on the host: one run per pair, and its stdout is compared here
    pytest files, doctests    judged in the jar by `judge.suite`, with the code in a process of its own

A test passes only if something that the code cannot reach says so. Whatever ends a run early (the code, a
limit, a signal) fails the test that was under way, and the rest goes on in a new jar.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from secrets import token_hex
from typing import Any, NamedTuple, Unpack

from belljar.client import AsyncClient
from belljar.client.wire import RunOptions
from belljar.errors import BadRequest, BelljarError, LimitExceeded
from belljar.models import Verdict

__all__ = [
    "Ask",
    "Outcome",
    "Pair",
    "Ran",
    "Report",
    "Run",
    "Suite",
    "SuiteKind",
    "TestResult",
    "by",
    "run_tests",
]

MAX_PAIRS = 1000
AT_ONCE = 4
_JUDGE = ("__init__", "wire", "candidate", "proxies", "stand_in", "suite")
_PROGRAM = """\
from judge.suite import main
main()
# Never reached. Who decides on this run, by policy or in person, reads here what will be run by it.
"""
_RESULT_BYTES = 400_000
"""How much a jar tells before the next one goes on; half of what `stdout_kb` holds by default."""
_SHOWN = 1000
_TAKEN = frozenset({*sys.stdlib_module_names, "judge", "pytest"})
_FUTURE = re.compile(r"\bfrom\s+__future__\b")
"""Allowed in the first lines of a file only."""


class SuiteKind(StrEnum):
    PYTEST = "pytest"  # test functions and classes, as text of a file
    DOCTEST = "doctest"  # `>>>` examples in a text
    DOCSTRINGS = "docstrings"  # those in the code's own docstrings


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"  # an assertion did not hold, an output was another
    ERROR = "error"  # something else was raised, or the code ended its process
    TIMEOUT = "timeout"
    SKIPPED = "skipped"  # the test says so; the code cannot
    NOT_RUN = "not_run"  # the time for all of them was over


@dataclass(frozen=True, slots=True)
class Suite:
    kind: SuiteKind
    name: str
    text: str = ""
    """Left out for the code's own docstrings."""


@dataclass(frozen=True, slots=True)
class Pair:
    name: str
    input: str
    """What the program reads from standard input."""
    expected: str
    """What it must print. Blanks at the end of lines and empty lines at the end do not count."""


@dataclass(frozen=True, slots=True)
class TestResult:
    __test__ = False

    id: str
    outcome: Outcome
    duration_ms: int = 0
    message: str = ""
    output: str = ""
    """What was printed during the test, shortened."""


@dataclass(frozen=True, slots=True)
class Report:
    tests: tuple[TestResult, ...]
    runs: tuple[str, ...]
    """Ids of the runs that it took."""

    @property
    def all_passed(self) -> bool:
        found = {test.outcome for test in self.tests}
        return Outcome.PASSED in found and found <= {Outcome.PASSED, Outcome.SKIPPED}

    @property
    def failures(self) -> tuple[TestResult, ...]:
        fine = (Outcome.PASSED, Outcome.SKIPPED)
        return tuple(test for test in self.tests if test.outcome not in fine)

    @property
    def counts(self) -> dict[str, int]:
        return {outcome: sum(test.outcome is outcome for test in self.tests) for outcome in Outcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One run that is needed."""

    code: str
    language: str
    stdin: str
    timeout_s: float
    files: Mapping[str, str] = field(default_factory=dict)


class Ran(NamedTuple):
    exec_id: str
    verdict: Verdict
    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool
    """Whether stdout is not all of it."""
    duration_ms: int


Run = Callable[[Ask], Awaitable[Ran]]


def by(client: AsyncClient, **options: Unpack[RunOptions]) -> Run:
    """Runs by a service, or by `alocal`; with these options each."""

    async def run(ask: Ask) -> Ran:
        asked: RunOptions = {
            **options,
            "stdin": ask.stdin,
            "files": ask.files,
            "timeout_s": ask.timeout_s,
            "output_files": [],
        }
        done = await client.run(ask.code, ask.language, **asked)
        return Ran(
            done.id,
            done.verdict,
            done.exit_code,
            done.stdout,
            done.stderr,
            done.stdout_truncated,
            done.duration_ms,
        )

    return run


async def run_tests(
    run: Run,
    code: str,
    tests: Sequence[Suite | Pair],
    *,
    language: str = "python",
    module: str = "solution",
    timeout_s: float = 10.0,
    total_s: float = 300.0,
) -> Report:
    """Each test against the code. `timeout_s` is for one test, `total_s` for beginning all of them.

    Raises:
        BadRequest: and what is under it: the tests are none, too many, or not for this language.
        BelljarError: what `run` raises.
    """
    suites = [test for test in tests if isinstance(test, Suite)]
    pairs = [test for test in tests if isinstance(test, Pair)]
    _check(suites, pairs, language, module, timeout_s)
    until = asyncio.get_running_loop().time() + total_s
    compared, judged = Report((), ()), Report((), ())
    if pairs:
        compared = await _compared(run, code, pairs, language, timeout_s, until)
    if suites:
        judged = await _Judging(run, code, suites, module, timeout_s, until).report()
    return Report(compared.tests + judged.tests, compared.runs + judged.runs)


def _check(
    suites: Sequence[Suite], pairs: Sequence[Pair], language: str, module: str, timeout_s: float
) -> None:
    if not suites and not pairs:
        raise BadRequest("there are no tests", field="tests")
    if suites and language != "python":
        raise BadRequest(f"{language} code is tested by input and expected output only", field="tests")
    if len(pairs) > MAX_PAIRS:
        raise LimitExceeded(f"{len(pairs)} pairs; at most {MAX_PAIRS} are taken", field="tests")
    if not module.isidentifier() or module in _TAKEN:
        what = "is one of Python's own modules" if module in _TAKEN else "cannot be the name of a module"
        raise BadRequest(f"{module!r} {what}; name the code otherwise", field="module")
    if not 0 < timeout_s < 1e6:
        raise BadRequest("timeout_s must be a positive number of seconds", field="timeout_s")


# Pairs: the code runs alone, and never sees what is expected


async def _compared(
    run: Run, code: str, pairs: Sequence[Pair], language: str, timeout_s: float, until: float
) -> Report:
    turns = asyncio.Semaphore(AT_ONCE)
    clock = asyncio.get_running_loop().time

    async def one(pair: Pair) -> tuple[TestResult, str]:
        async with turns:
            if clock() > until:
                return TestResult(pair.name, Outcome.NOT_RUN), ""
            ran = await run(Ask(code=code, language=language, stdin=pair.input, timeout_s=timeout_s))
        return _judged(pair, ran), ran.exec_id

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(pair)) for pair in pairs]
    except* BelljarError as errors:
        raise errors.exceptions[0] from None
    done = [task.result() for task in tasks]
    return Report(tuple(result for result, _ in done), tuple(exec_id for _, exec_id in done if exec_id))


def _judged(pair: Pair, ran: Ran) -> TestResult:
    outcome, message = Outcome.PASSED, ""
    if ran.verdict in (Verdict.TIMEOUT, Verdict.IDLE_TIMEOUT):
        outcome, message = Outcome.TIMEOUT, "it did not end in time"
    elif ran.verdict is not Verdict.EXITED or ran.exit_code != 0:
        how = f"exit status {ran.exit_code}" if ran.verdict is Verdict.EXITED else str(ran.verdict)
        outcome, message = Outcome.ERROR, f"it ended with {how}\n{ran.stderr[-_SHOWN:]}".strip()
    elif ran.truncated or _lines(ran.stdout) != _lines(pair.expected):
        shown = f"expected {pair.expected[:_SHOWN]!r}, but it printed {ran.stdout[:_SHOWN]!r}"
        outcome, message = Outcome.FAILED, shown
    output = (ran.stdout + ran.stderr)[:_SHOWN]
    return TestResult(pair.name, outcome, ran.duration_ms, message, output)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


# Suites: as many jars as it takes


class _Judging:
    def __init__(
        self, run: Run, code: str, suites: Sequence[Suite], module: str, timeout_s: float, until: float
    ) -> None:
        self._run = run
        self._until = until
        self._timeout_s = timeout_s
        self._order = {
            "module": module,
            "code": code,
            "suites": [
                {
                    "kind": suite.kind,
                    "name": suite.name,
                    "text": code if suite.kind is SuiteKind.DOCSTRINGS else suite.text,
                }
                for suite in suites
            ],
            "timeout_s": timeout_s,
            "result_bytes": _RESULT_BYTES,
        }
        self._ids: list[str] = []
        self._done: dict[str, TestResult] = {}
        self._runs: list[str] = []

    async def report(self) -> Report:
        clock = asyncio.get_running_loop().time
        while clock() < self._until:
            before = len(self._done)
            if await self._one_jar() or len(self._done) == before:
                break
        for name in self._ids:
            self._done.setdefault(name, TestResult(name, Outcome.NOT_RUN))
        if not self._done:
            nothing = TestResult("tests", Outcome.ERROR, message="no tests were found")
            self._done[nothing.id] = nothing
        return Report(tuple(self._done.values()), tuple(self._runs))

    async def _one_jar(self) -> bool:
        """Whether it was the last one."""
        secret = token_hex(16)
        order = {**self._order, "secret": secret, "done": [*self._done]}
        ran = await self._run(
            Ask(
                code=_PROGRAM + _FUTURE.sub("from future", str(self._order["code"])),
                language="python",
                stdin=json.dumps(order),
                # Tests are begun for `timeout_s`; the last of them has as much again.
                timeout_s=2 * self._timeout_s + 2,
                files=_judge_files(),
            )
        )
        self._runs.append(ran.exec_id)
        under_way: str | None = "tests"
        over = False
        for told in _told(ran.stdout, secret):
            if told["event"] == "tests":
                under_way, self._ids = None, [str(name) for name in told["ids"]]
            elif told["event"] == "begin":
                under_way = told["id"]
            elif told["event"] == "end":
                under_way = None
                self._done[told["id"]] = TestResult(
                    told["id"], Outcome(told["verdict"]), told["duration_ms"], told["message"], told["output"]
                )
            else:
                over = told["event"] == "over"
        if under_way is not None:
            self._done[under_way] = _cut_off(under_way, ran)
        return over


def _cut_off(name: str, ran: Ran) -> TestResult:
    """The judge was ended before it could tell."""
    outcome = Outcome.TIMEOUT if ran.verdict is Verdict.TIMEOUT else Outcome.ERROR
    how = f"exit status {ran.exit_code}" if ran.verdict is Verdict.EXITED else str(ran.verdict)
    message = f"the run ended ({how}) before the test did\n{ran.stderr[-_SHOWN:]}".strip()
    return TestResult(name, outcome, ran.duration_ms, message)


def _told(stdout: str, secret: str) -> Iterator[dict[str, Any]]:
    for line in stdout.split("\n"):
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("secret") == secret:
            yield told


def _judge_files() -> dict[str, str]:
    source = files("belljar.flows.judge")
    return {f"judge/{name}.py": source.joinpath(f"{name}.py").read_text("utf-8") for name in _JUDGE}
