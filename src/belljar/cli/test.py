"""`belljar test`: code against its tests, each with a verdict that the code cannot write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from belljar.flows.testdriven import Pair, Report, Suite

_MAX_BYTES = 4 << 20
_TEXTS = (".txt", ".md", ".rst")
_ALL_PASSED, _NOT_ALL = 0, 1


def judge(
    code: Annotated[Path, typer.Argument(metavar="CODE", help="The code under test.")],
    tests: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Tests: .py with test functions, .json with {input, expected} pairs, .txt or .md with "
            "doctests. Without it, the doctests in the code.",
        ),
    ] = None,
    language: Annotated[str | None, typer.Option(help="Else from the code's name.")] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that one test may take.")] = 10.0,
    total: Annotated[float, typer.Option(metavar="S", help="No test is begun after so many.")] = 300.0,
    local: Annotated[
        bool, typer.Option("--local", help="Run it here, even if a service is running.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Test code in jars. Exit status 0 if every test passed, 1 if not."""
    import asyncio

    from belljar.cli import remote
    from belljar.config import load_here
    from belljar.flows.testdriven import Suite, SuiteKind, by, run_tests
    from belljar.models import Language

    text = _read(code)
    found = [one for file in tests or () for one in _tests_in(file)]
    if not tests:
        found = [Suite(SuiteKind.DOCSTRINGS, code.name)]
    opening = remote.opened(load_here(), here=local)

    async def all_of_them() -> Report:
        async with opening as client:
            return await run_tests(
                by(client),
                text,
                found,
                language=language or Language.of_file(code.name) or Language.PYTHON,
                module=code.stem,
                timeout_s=timeout,
                total_s=total,
            )

    report = asyncio.run(all_of_them())
    if as_json:
        _print_json(report)
    else:
        _print(report)
    raise typer.Exit(_ALL_PASSED if report.all_passed else _NOT_ALL)


def _tests_in(file: Path) -> Iterator[Suite | Pair]:
    import json

    from belljar.flows.testdriven import Pair, Suite, SuiteKind

    text = _read(file)
    if file.suffix == ".py":
        yield Suite(SuiteKind.PYTEST, file.name, text)
    elif file.suffix in _TEXTS:
        yield Suite(SuiteKind.DOCTEST, file.name, text)
    elif file.suffix == ".json":
        try:
            rows = json.loads(text)
            pairs = [
                Pair(str(row.get("name", f"{file.name}[{n}]")), row["input"], row["expected"])
                for n, row in enumerate(rows)
            ]
            if not all(isinstance(side, str) for pair in pairs for side in (pair.input, pair.expected)):
                raise TypeError("input and expected are texts")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            message = f"{file} is not a list of {{input, expected}} pairs: {error}"
            raise BadRequest(message, field="tests") from error
        yield from pairs
    else:
        raise BadRequest(f"{file}: tests are .py, .json, {', '.join(_TEXTS)}", field="tests")


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise BadRequest(f"{file} is larger than {_MAX_BYTES >> 20} MB", field="tests")
        return content.decode()
    except OSError as error:
        raise BadRequest(f"{file} cannot be read: {error.strerror}", field="tests") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{file} is not UTF-8 text (byte {error.start})", field="tests") from error


def _print(report: Report) -> None:
    from belljar.cli.tables import one_line
    from belljar.cli.terminal import harmless

    for one in report.tests:
        typer.echo(f"{one.outcome:8} {one_line(one.id)}  {one.duration_ms} ms")
        for line in f"{one.message}\n{one.output}".splitlines() if one in report.failures else ():
            typer.echo(f"         {harmless(line)}")
    typer.echo(", ".join(f"{count} {outcome}" for outcome, count in report.counts.items() if count))


def _print_json(report: Report) -> None:
    import json
    from dataclasses import asdict

    told = {"passed": report.all_passed, "counts": report.counts, **asdict(report)}
    typer.echo(json.dumps(told, indent=2))
