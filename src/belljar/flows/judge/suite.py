"""The trusted process: reads the tests, runs them against the candidate, and tells what became of each."""

from __future__ import annotations

import ast
import asyncio
import ctypes
import doctest
import inspect
import io
import json
import linecache
import os
import signal
import sys
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple, NoReturn

from . import stand_in
from .candidate import Candidate
from .proxies import Code, CodeGone, TookTooLong

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_TEXT_BYTES = 3000
"""Longest message, and longest output, of one test; as JSON."""
MAX_TESTS = 1000

_libc = ctypes.CDLL(None)


class Test(NamedTuple):
    id: str
    run: Callable[[], None]


class Group(NamedTuple):
    """Tests that need one another: all of them in one go."""

    tests: list[Test]


def main() -> NoReturn:
    sys.path[:] = [path for path in sys.path if path and not path.startswith(("/workspace", "/tmp"))]
    code = _candidate()
    # From here on this process knows what the other one must not.
    order = json.load(sys.stdin.buffer)
    results = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    _Suite(code, order, results).run()
    os._exit(0)


def _candidate() -> Code:
    """The other process, forked while there is nothing here to be known."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise SystemExit("the suite's memory cannot be hidden from the code under test")
    questions, answers, out, err = (os.pipe() for _ in range(4))
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate((null, out[1], err[1], questions[0], answers[1])):
            os.dup2(
                fd, number
            )  # in the order in which they were made, so none is overwritten before its turn
        os.closerange(5, 1 << 20)
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        os.setsid()
        sys.path.insert(0, os.getcwd())
        Candidate(3, 4).serve()
    for fd in (questions[0], answers[1], out[1], err[1]):
        os.close(fd)
    return Code(answers[0], questions[1], out[0], err[0])


class _Suite:
    def __init__(self, code: Code, order: dict[str, Any], results: int) -> None:
        self._code = code
        self._order = order
        self._results = results
        self._begun = time.monotonic()
        self._bytes_left = int(order["result_bytes"])

    def run(self) -> None:
        groups = self._collected()
        self._tell("tests", ids=[test.id for group in groups for test in group.tests])
        done = set(self._order["done"])
        never_there = self._code.gone is not None  # then that is what became of every test
        for group in groups:
            if all(test.id in done for test in group.tests):
                continue
            late = time.monotonic() - self._begun > self._order["timeout_s"]
            gone = self._code.gone is not None and not never_there
            if gone or late or self._bytes_left < 0:
                self._tell("more")
                return
            for test in group.tests:
                if test.id not in done:
                    self._run(test)
        self._tell("over")

    # Finding them

    def _collected(self) -> list[Group]:
        name = self._order["module"]
        sys.modules["pytest"] = stand_in.module()
        self._code.begin(self._order["timeout_s"])
        broken = self._captured(lambda: self._load(name))[0]
        groups: list[Group] = []
        for suite in self._order["suites"]:
            problem = broken
            found: list[Group] = []
            if problem is None:
                problem, found = self._tests_in(suite)
            if problem is not None:
                found = [Group([Test(suite["name"], _raising(problem))])]
            groups += found
        return _named_apart(groups)

    def _load(self, name: str) -> None:
        self._code.ask("load", name, self._order["code"])
        sys.modules[name] = self._code.module(name)

    def _tests_in(self, suite: dict[str, Any]) -> tuple[BaseException | None, list[Group]]:
        found: list[Group] = []
        look = {"pytest": self._functions, "doctest": self._examples, "docstrings": self._docstrings}
        name, text = suite["name"], suite["text"]
        problem, _ = self._captured(lambda: found.extend(look[suite["kind"]](name, text)))
        return problem, found

    def _functions(self, file: str, text: str) -> Iterator[Group]:
        module = types.ModuleType(file.rpartition("/")[2].removesuffix(".py") or "tests")
        sys.modules[module.__name__] = module
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        tree = _Explaining().visit(ast.parse(text, file))
        exec(compile(ast.fix_missing_locations(tree), file, "exec"), vars(module))
        functions = {name: one for name, one in vars(module).items() if isinstance(one, types.FunctionType)}
        fixtures = {name: one for name, one in functions.items() if hasattr(one, "belljar_fixture")}
        for name, value in [*vars(module).items()]:
            if isinstance(value, type) and issubclass(value, unittest.TestCase):
                for method in unittest.defaultTestLoader.getTestCaseNames(value):
                    yield Group([Test(f"{file}::{name}::{method}", _unittest(value, method))])
            elif name.startswith("Test") and isinstance(value, type):
                for method in [one for one in dir(value) if one.startswith("test")]:
                    yield from self._cases(
                        f"{file}::{name}::{method}", getattr(value, method), fixtures, value
                    )
            elif name.startswith("test") and name in functions:
                yield from self._cases(f"{file}::{name}", value, fixtures, None)

    def _cases(self, name: str, function: Any, fixtures: Any, owner: type | None) -> Iterator[Group]:
        for case in stand_in.cases_of(function):

            def run(values: Any = case.values) -> None:
                if hasattr(function, "belljar_skip"):
                    raise stand_in.Skipped(function.belljar_skip)
                instance = owner() if owner else None
                bound = function.__get__(instance) if owner else function
                getattr(instance, "setup_method", _nothing)()
                try:
                    with stand_in.arguments(bound, values, fixtures) as arguments:
                        result = bound(**arguments)
                        if inspect.iscoroutine(result):
                            asyncio.run(result)
                finally:
                    getattr(instance, "teardown_method", _nothing)()

            yield Group([Test(name + case.name, run)])

    def _examples(self, file: str, text: str, all_names: bool = False) -> Iterator[Group]:
        examples = doctest.DocTestParser().get_examples(text, file)
        if not examples:
            return
        module = sys.modules[self._order["module"]]
        listed = dir(module) if all_names else vars(module)["__all__"]
        names = {name: getattr(module, name) for name in listed}
        names |= {self._order["module"]: module, "__name__": "__main__"}
        yield Group([Test(f"{file}:{one.lineno + 1}", _example(one, names)) for one in examples])

    def _docstrings(self, file: str, code: str) -> Iterator[Group]:
        for node in ast.walk(ast.parse(code, file)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = getattr(node, "name", "module")
                yield from self._examples(f"{file}::{name}", ast.get_docstring(node) or "", all_names=True)

    # Running them

    def _run(self, test: Test) -> None:
        self._tell("begin", id=test.id)
        began = time.monotonic()
        self._code.begin(self._order["timeout_s"])
        error, output = self._captured(test.run)
        if self._code.gone is not None:  # whatever the test made of it
            error = self._code.gone
        self._tell(
            "end",
            id=test.id,
            verdict=_verdict(error),
            duration_ms=round((time.monotonic() - began) * 1000),
            message="" if error is None else _short(_message(error)),
            output=_short(output),
        )

    def _captured(self, work: Callable[[], None]) -> tuple[BaseException | None, str]:
        out, err = io.StringIO(), io.StringIO()
        error = None
        with redirect_stdout(out), redirect_stderr(err):
            try:
                work()
            except BaseException as raised:
                error = raised
        return error, out.getvalue() + err.getvalue()

    def _tell(self, event: str, **fields: Any) -> None:
        line = json.dumps({"secret": self._order["secret"], "event": event, **fields}).encode() + b"\n"
        self._bytes_left -= len(line)
        view = memoryview(line)
        while view:
            view = view[os.write(self._results, view) :]


class _Explaining(ast.NodeTransformer):
    """`assert a == b` says what a and b were."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        if node.msg is not None or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
            return node
        left, right = ast.Name("@left", ast.Load()), ast.Name("@right", ast.Load())
        compared = ast.Compare(left, node.test.ops, [right])
        shown = ast.Constant(f"{_braced(ast.unparse(node.test))}: the left is {{!r}}, the right {{!r}}")
        message = ast.Call(ast.Attribute(shown, "format", ast.Load()), [left, right], [])
        steps: list[ast.stmt] = [
            ast.Assign([ast.Name("@left", ast.Store())], node.test.left),
            ast.Assign([ast.Name("@right", ast.Store())], node.test.comparators[0]),
            ast.Assert(compared, message),
        ]
        return [ast.copy_location(step, node) for step in steps]


def _named_apart(groups: list[Group]) -> list[Group]:
    seen: set[str] = set()
    found: list[Group] = []
    for group in groups:
        tests = []
        for test in group.tests:
            name, again = test.id, 1
            while name in seen:
                again += 1
                name = f"{test.id}#{again}"
            seen.add(name)
            tests.append(test._replace(id=name))
        if len(seen) > MAX_TESTS:
            problem = RuntimeError(f"there are more than {MAX_TESTS} tests")
            return [*found, Group([Test("too many tests", _raising(problem))])]
        found.append(Group(tests))
    return found


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _example(example: doctest.Example, names: dict[str, Any]) -> Callable[[], None]:
    def run() -> None:
        found: list[str] = []
        one = doctest.DocTest([example], {}, "example", None, None, None)
        one.globs = names  # the very same for all examples of a text
        doctest.DocTestRunner(verbose=False).run(one, out=found.append, clear_globs=False)
        if found:
            text = "".join(found)
            _, _, rest = text.partition("Failed example:\n")
            raise AssertionError(rest or text)

    return run


def _unittest(case: type[unittest.TestCase], method: str) -> Callable[[], None]:
    def run() -> None:
        result = unittest.TestResult()
        case(method).run(result)
        if result.skipped:
            raise stand_in.Skipped(result.skipped[0][1])
        for _, text in result.failures:
            raise AssertionError(text.strip().rpartition("\n")[2])
        for _, text in result.errors:
            raise RuntimeError(text.strip().rpartition("\n")[2])
        if not result.wasSuccessful():
            raise AssertionError("it succeeded, but was expected to fail")

    return run


def _raising(problem: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise problem

    return run


def _nothing() -> None:
    pass


def _verdict(error: BaseException | None) -> str:
    if error is None:
        return "passed"
    if isinstance(error, stand_in.Skipped):
        return "skipped"
    if isinstance(error, TookTooLong):
        return "timeout"
    return "failed" if isinstance(error, AssertionError) else "error"


def _message(error: BaseException) -> str:
    if isinstance(error, (CodeGone, stand_in.Skipped)):
        return str(error)
    tests = {name for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None}
    lines = [
        f"{frame.filename}:{frame.lineno}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename in tests
    ]
    name = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: "
    place = getattr(error, "belljar_place", "")
    return "\n".join([*lines[-1:], f"{name}{error}", *([place] if place else [])]).strip()


def _short(text: str) -> str:
    text = text[:_TEXT_BYTES]
    while len(json.dumps(text)) > _TEXT_BYTES:
        text = text[: len(text) * 3 // 4]
    return text
