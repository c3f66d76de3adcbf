"""Code from a model, tested in jars, and asked for again with what really failed until it passes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from belljar.errors import BadRequest
from belljar.flows.testdriven import Pair, Report, Run, Suite, run_tests

__all__ = ["Attempt", "Reflection", "code_with_reflection"]

_TOLD_CHARS = 8000
"""How much of the failures a model is told of."""
_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Attempt:
    code: str
    report: Report


@dataclass(frozen=True, slots=True)
class Reflection:
    attempts: tuple[Attempt, ...]

    @property
    def code(self) -> str | None:
        """What passed; None if nothing did."""
        last = self.attempts[-1]
        return last.code if last.report.all_passed else None


async def code_with_reflection(
    task: str,
    generate: Callable[[str], Awaitable[str]],
    tests: Sequence[Suite | Pair],
    max_iterations: int = 3,
    *,
    run: Run,
    **options: Any,
) -> Reflection:
    """`generate` is any model: it gets the task, and from the second time on its last code and what failed.

    `run` is where the tests run (`testdriven.by(client)`), `options` are those of `run_tests`. If an answer
    has fenced blocks, the longest of them is the code.

    Raises:
        BadRequest: there is no iteration, or what `run_tests` raises.
    """
    if max_iterations < 1:
        raise BadRequest("max_iterations must be 1 or more", field="max_iterations")
    attempts: list[Attempt] = []
    prompt = task
    for _ in range(max_iterations):
        code = _code_in(await generate(prompt))
        attempts.append(Attempt(code, await run_tests(run, code, tests, **options)))
        if attempts[-1].report.all_passed:
            break
        prompt = _again(task, attempts[-1])
    return Reflection(tuple(attempts))


def _code_in(answer: str) -> str:
    blocks = _FENCED.findall(answer)
    return max(blocks, key=len) if blocks else answer


def _again(task: str, attempt: Attempt) -> str:
    failures = "\n\n".join(
        f"{one.id}: {one.outcome}\n{one.message}\n{one.output}".strip() for one in attempt.report.failures
    )
    return (
        f"{task}\n\nYour last code was:\n\n```\n{attempt.code}\n```\n\n"
        f"It failed these tests:\n\n{failures[:_TOLD_CHARS]}\n\nGive the whole code again, corrected."
    )
