"""What `import pytest` gives in a test here: the part of it that tests of a function or a class need.

It is not pytest: no plugins, no conftest, no scopes. What is not here is an AttributeError, which fails the
test.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .proxies import CodeGone

MAX_CASES = 1000


class Skipped(Exception):
    pass


class Case(NamedTuple):
    name: str
    values: Mapping[str, Any]


class ExcInfo:
    value: Any = None

    @property
    def type(self) -> Any:
        return type(self.value)

    def match(self, pattern: str) -> bool:
        assert re.search(pattern, str(self.value)), f"{pattern!r} is not in {str(self.value)!r}"
        return True


@contextmanager
def _raises(expected: Any, match: str | None) -> Iterator[ExcInfo]:
    info = ExcInfo()
    try:
        yield info
    except CodeGone:
        raise
    except expected as error:
        info.value = error
        if match is not None:
            info.match(match)
        return
    raise AssertionError(f"{getattr(expected, '__name__', expected)} was not raised")


def raises(expected: Any, *call: Any, match: str | None = None, **named: Any) -> Any:
    if not call:
        return _raises(expected, match)
    with _raises(expected, match) as info:
        call[0](*call[1:], **named)
    return info


class approx:
    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self._expected = expected
        self._rel = 1e-6 if rel is None and abs is None else rel or 0.0
        self._abs = 1e-12 if abs is None else abs

    def __eq__(self, other: object) -> bool:
        return self._near(other, self._expected)

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"

    def _near(self, found: Any, wanted: Any) -> bool:
        if isinstance(wanted, (list, tuple)):
            same = type(found) in (list, tuple) and len(found) == len(wanted)
            return same and all(self._near(*pair) for pair in zip(found, wanted, strict=True))
        if isinstance(wanted, dict):
            same = type(found) is dict and found.keys() == wanted.keys()
            return same and all(self._near(found[key], wanted[key]) for key in wanted)
        if type(found) in (int, float) and isinstance(wanted, (int, float)):
            return math.isclose(found, wanted, rel_tol=self._rel, abs_tol=self._abs)
        return bool(found == wanted)


def skip(reason: str = "") -> None:
    raise Skipped(reason)


def fail(reason: str = "") -> None:
    raise AssertionError(reason)


def fixture(function: Any = None, **_: Any) -> Any:
    def marked(function: Any) -> Any:
        function.belljar_fixture = True
        return function

    return marked if function is None else marked(function)


class _Mark:
    def parametrize(self, names: str | Iterable[str], values: Iterable[Any], ids: Any = None) -> Any:
        wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
        rows = [
            value if isinstance(value, _Param) else _Param(value if len(wanted) > 1 else (value,), None)
            for value in itertools.islice(values, MAX_CASES)
        ]
        labels = ids if isinstance(ids, (list, tuple)) else [None] * len(rows)
        cases = [
            Case(
                row.id or label or "-".join(map(_label, row.values)),
                dict(zip(wanted, row.values, strict=True)),
            )
            for row, label in zip(rows, labels, strict=True)
        ]

        def marked(function: Any) -> Any:
            function.belljar_cases = [*getattr(function, "belljar_cases", []), cases]
            return function

        return marked

    def skip(self, function: Any = None, reason: str = "") -> Any:
        def marked(function: Any) -> Any:
            function.belljar_skip = reason or "marked"
            return function

        return marked(function) if callable(function) else marked

    def skipif(self, condition: object, reason: str = "") -> Any:
        return self.skip(reason=reason) if condition else lambda function: function


class _Param(NamedTuple):
    values: tuple[Any, ...]
    id: str | None


def param(*values: Any, id: str | None = None) -> _Param:
    return _Param(values, id)


def _label(value: Any) -> str:
    return str(value)[:40] if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


class Capture:
    """`capsys`: what was printed since the last look, by the test or by the code."""

    class Read(NamedTuple):
        out: str
        err: str

    def __init__(self) -> None:
        self._seen = {"stdout": 0, "stderr": 0}

    def readouterr(self) -> Read:
        return self.Read(*(self._new(name) for name in ("stdout", "stderr")))

    def _new(self, name: str) -> str:
        text: str = getattr(sys, name).getvalue()
        seen, self._seen[name] = self._seen[name], len(text)
        return text[seen:]


def cases_of(function: Any) -> list[Case]:
    """Every combination of what it is parametrized with."""
    found = []
    for combination in itertools.islice(
        itertools.product(*getattr(function, "belljar_cases", [])), MAX_CASES
    ):
        name = "-".join(case.name for case in combination)
        values = {key: value for case in combination for key, value in case.values.items()}
        found.append(Case(f"[{name}]" if name else "", values))
    return found


@contextmanager
def arguments(
    function: Any, given: Mapping[str, Any], fixtures: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """What a test or a fixture is called with; fixtures that yield go on afterwards."""
    made: dict[str, Any] = dict(given)
    with ExitStack() as stack:

        def value_of(name: str) -> Any:
            if name not in made:
                made[name] = _made(name, fixtures, value_of, stack)
            return made[name]

        names = inspect.signature(function).parameters
        yield {
            name: value_of(name) for name in names if name in made or name in fixtures or name in _BUILT_IN
        }


_BUILT_IN = ("tmp_path", "capsys")


def _made(name: str, fixtures: Mapping[str, Any], value_of: Callable[[str], Any], stack: ExitStack) -> Any:
    if name not in fixtures:
        if name == "capsys":
            return Capture()
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))
    function = fixtures[name]
    result = function(**{needed: value_of(needed) for needed in inspect.signature(function).parameters})
    if isinstance(result, Generator):
        stack.callback(next, result, None)
        return next(result)
    return result


def module() -> types.ModuleType:
    found = types.ModuleType("pytest")
    vars(found).update(
        approx=approx, fail=fail, fixture=fixture, mark=_Mark(), param=param, raises=raises, skip=skip
    )
    return found
