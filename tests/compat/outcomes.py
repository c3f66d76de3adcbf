"""Run modules of CPython's regression tests by its own runner, and write down how each test ended.

    python3 outcomes.py OUT.json [arguments of regrtest…] MODULE…

Given to interpreters outside and inside a jar, so it imports the standard library only. The runner's own
report (`--junit-xml`) forgets tests whose subtests fail, hence the recorder here.
"""

from __future__ import annotations

import json
import sys
import traceback
import unittest
from typing import Any

from test.libregrtest.main import Regrtest  # type: ignore[import-not-found]
from test.support import testresult  # type: ignore[import-not-found]

OUTCOMES: dict[str, str] = {}
DETAILS: dict[str, str] = {}


class Recorder(testresult.RegressionTestResult):  # type: ignore[misc]
    """The first bad thing that happens to a test is its outcome; nothing bad is a pass."""

    def addSuccess(self, test: unittest.TestCase) -> None:
        OUTCOMES.setdefault(test.id(), "passed")
        super().addSuccess(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(getattr(test, "test_case", test), "skipped", reason)
        super().addSkip(test, reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "expected failure", "")
        super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "unexpected success", "")
        super().addUnexpectedSuccess(test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "failed", _text(err))
        super().addFailure(test, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "failed", _text(err))
        super().addError(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._note(test, "failed", _text(err))
        super().addSubTest(test, subtest, err)

    def _note(self, test: unittest.TestCase, outcome: str, detail: str) -> None:
        name = test.id()
        if OUTCOMES.get(name, "passed") in ("passed", "skipped"):
            OUTCOMES[name] = outcome
            DETAILS[name] = detail[-1000:]


def _text(err: Any) -> str:
    return "".join(traceback.format_exception(*err))


def main() -> None:
    out = sys.argv.pop(1)
    testresult.RegressionTestResult = Recorder
    try:
        Regrtest().main()
    finally:
        with open(out, "w") as file:
            json.dump({"outcomes": OUTCOMES, "details": DETAILS}, file)


if __name__ == "__main__":
    main()
