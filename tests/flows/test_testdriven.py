"""What tests can say, and what is told of them. That code cannot cheat is in test_cheating.py."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from belljar.client import AsyncClient
from belljar.errors import BadRequest, LimitExceeded, PolicyEscalation
from belljar.flows.testdriven import (
    Ask,
    Outcome,
    Pair,
    Ran,
    Report,
    Suite,
    SuiteKind,
    TestResult,
    by,
    run_tests,
)
from belljar.models import Verdict

CODE = '''
from __future__ import annotations
import collections, dataclasses, datetime, decimal

LIMIT = 3
Pair = collections.namedtuple("Pair", "left right")

class TooMuch(ValueError):
    def __init__(self, amount):
        super().__init__(f"{amount} is too much")
        self.amount = amount

@dataclasses.dataclass
class Account:
    """
    >>> account = Account(5)
    >>> account.take(2)
    3
    >>> account.take(9)
    Traceback (most recent call last):
    TooMuch: 9 is too much
    """
    balance: int
    def take(self, amount):
        if amount > self.balance:
            raise TooMuch(amount)
        self.balance -= amount
        return self.balance
    def __add__(self, other): return Account(self.balance + other.balance)
    def __mul__(self, times): return Account(self.balance * times)
    def __lt__(self, other): return self.balance < other.balance
    def __abs__(self): return self.balance
    def __len__(self): return self.balance
    def __contains__(self, item): return item == self.balance
    def __getitem__(self, key): return key * 2
    def __iter__(self): return iter(range(self.balance))
    def __enter__(self): return self
    def __exit__(self, *_): self.balance = 0

def add(a, b): return a + b
def greet(name): print(f"hello {name}")
def each(function, values): return [function(value) for value in values]
def total(values): return sum(values)
def sort(values): values.sort()
def counts(words): return collections.Counter(words)
def pair(a, b): return Pair(a, b)
def count(n):
    while True:
        yield n
        n += 1
def echo(*values): return values
'''

GOOD = """
import datetime, decimal, math, operator, unittest
import pytest
import solution
from solution import *
from solution import LIMIT, Account, TooMuch

def test_a_constant(): assert LIMIT == 3 and solution.LIMIT == 3

def test_an_object():
    account = Account(balance=5)
    assert account.take(2) == 3
    assert account.balance == 3
    account.balance = 4
    assert len(account) == 4 and 4 in account and account["x"] == "xx" and list(account) == [0, 1, 2, 3]
    assert (account + Account(1)).balance == 5
    assert account + Account(1) == Account(5)
    assert account * 2 == Account(8) and (account * 2).balance == 8 and abs(account) == 4
    assert account < Account(5) and sorted([account, Account(1)])[0] == Account(1)
    assert account != Account(9)
    assert isinstance(account, Account) and not isinstance(3, Account)
    assert str(account) == repr(account) == "Account(balance=4)"
    with account as same:
        assert same.balance == 4
    assert account.balance == 0

def test_exceptions():
    with pytest.raises(TooMuch, match="9 is too much") as caught:
        Account(1).take(9)
    assert caught.value.amount == 9
    with pytest.raises(ValueError):
        Account(1).take(9)
    with pytest.raises(TypeError):
        add(1)
    with pytest.raises(ZeroDivisionError):
        each(lambda x: 1 / x, [0])
    pytest.raises(AttributeError, lambda: solution.nothing)

def test_functions_of_the_test_are_called():
    seen = []
    assert each(lambda x: seen.append(x) or x * 2, [1, 2]) == [2, 4]
    assert seen == [1, 2]
    assert each(math.sqrt, [4.0]) == [2.0] and each(len, ["ab"]) == [2] and each(str, [1]) == ["1"]
    assert total(x for x in range(4)) == 6
    assert each(Account, [1])[0].balance == 1

def test_arguments_changed_in_place():
    values = [3, 1, 2]
    sort(values)
    assert values == [1, 2, 3]

def test_values_cross_as_they_are():
    given = (1, 2.5, "x", b"y", None, True, [1, [2]], {"k": (1,)}, {1}, frozenset([2]), 1j, range(3),
             decimal.Decimal("1.5"), datetime.date(2026, 1, 31), datetime.timedelta(1), 10**40, "\\ud800", float("inf"))
    assert echo(*given) == given
    assert [type(one) for one in echo(*given)] == [type(one) for one in given]
    assert counts("aab") == {"a": 2, "b": 1}
    assert pair(1, 2) == (1, 2) and pair(1, 2).left == 1

def test_a_generator():
    numbers = count(5)
    assert [next(numbers), next(numbers)] == [5, 6]

def test_output(capsys):
    greet("you")
    assert capsys.readouterr().out == "hello you\\n"

def test_a_folder(tmp_path):
    (tmp_path / "x").write_text("1")

@pytest.mark.parametrize("a, b, wanted", [(1, 2, 3), pytest.param("a", "b", "ab", id="text")])
@pytest.mark.parametrize("swap", [True, False])
def test_rows(a, b, wanted, swap):
    assert add(a, b) == wanted

@pytest.fixture
def account():
    made = Account(7)
    yield made
    made.take(7)

class TestClass:
    def setup_method(self): self.one = 1
    def test_method(self, account): assert add(self.one, account.balance) == 8

class Case(unittest.TestCase):
    def setUp(self): self.one = 1
    def test_it(self):
        self.assertEqual(add(self.one, 1), 2)
        with self.assertRaises(TooMuch): Account(1).take(2)

async def test_async(): assert add(1, 1) == 2
def test_near(): assert add(0.1, 0.2) == pytest.approx(0.3) and [add(0.1, 0.2)] == pytest.approx([0.3])
"""


async def judged(client: AsyncClient, code: str, *tests: Suite | Pair, **options: Any) -> Report:
    return await run_tests(by(client), code, tests, **options)


def pytest_file(text: str) -> Suite:
    return Suite(SuiteKind.PYTEST, "test_it.py", textwrap.dedent(text))


async def test_ordinary_tests_of_ordinary_code_pass(client: AsyncClient) -> None:
    report = await judged(client, CODE, pytest_file(GOOD), Suite(SuiteKind.DOCSTRINGS, "solution.py"))
    assert report.all_passed, report.failures
    names = [test.id for test in report.tests]
    assert "test_it.py::test_rows[True-text]" in names
    assert "test_it.py::TestClass::test_method" in names
    assert "solution.py::Account:2" in names
    assert len(report.runs) == 1


BAD = """
import pytest, unittest
from solution import add, greet

def test_assert():
    greet("me")
    assert add(1, 2) == 4

def test_raise(): add(1, None)

class Case(unittest.TestCase):
    def test_it(self): self.assertEqual(add(1, 2), 4)

def test_not_raised():
    with pytest.raises(ValueError): add(1, 2)

@pytest.mark.skip(reason="not now")
def test_skipped(): add(1, 2)

def test_fine(): pass
"""


async def test_what_failed_is_told_in_full(client: AsyncClient) -> None:
    report = await judged(client, CODE, pytest_file(BAD))
    found = {test.id.rpartition("::")[2]: test for test in report.tests}
    assert found["test_assert"].outcome is Outcome.FAILED
    assert "add(1, 2) == 4: the left is 3, the right 4" in found["test_assert"].message
    assert "test_it.py:7" in found["test_assert"].message
    assert found["test_assert"].output == "hello me\n"
    assert found["test_raise"].outcome is Outcome.ERROR
    assert "TypeError" in found["test_raise"].message
    assert "solution.py" in found["test_raise"].message, "where in the code it was raised"
    assert "3 != 4" in found["test_it"].message
    assert "ValueError was not raised" in found["test_not_raised"].message
    assert (found["test_skipped"].outcome, found["test_skipped"].message) == (Outcome.SKIPPED, "not now")
    assert report.counts == {"passed": 1, "failed": 3, "error": 1, "timeout": 0, "skipped": 1, "not_run": 0}
    assert not report.all_passed


@pytest.mark.parametrize(
    ("code", "tests", "says"),
    [
        pytest.param("def add(:", "import solution\ndef test_x(): pass", "SyntaxError", id="syntax-of-code"),
        pytest.param("raise KeyError(7)", "def test_x(): pass", "KeyError", id="code-raises"),
        pytest.param("x = 1", "def test_x(:", "SyntaxError", id="syntax-of-tests"),
        pytest.param("x = 1", "import nothing_here", "No module named", id="import-of-tests"),
        pytest.param("x = 1", "y = 2", "no tests were found", id="no-tests"),
    ],
)
async def test_what_cannot_be_begun_fails_and_says_why(
    client: AsyncClient, code: str, tests: str, says: str
) -> None:
    report = await judged(client, code, pytest_file(tests))
    assert not report.all_passed
    assert says in report.tests[0].message


async def test_after_a_test_that_ends_the_code_the_others_go_on(client: AsyncClient) -> None:
    code = "import os, time\ndef leave(): os._exit(0)\ndef sleep(): time.sleep(60)\ndef one(): return 1"
    tests = """
    import solution
    def test_a(): solution.leave()
    def test_b(): assert solution.one() == 1
    def test_c(): solution.sleep()
    def test_d(): assert solution.one() == 1
    """
    report = await judged(client, code, pytest_file(tests), timeout_s=4)
    assert [str(test.outcome) for test in report.tests] == ["error", "passed", "timeout", "passed"]
    assert len(report.runs) == 3


async def test_when_the_time_is_over_the_rest_is_not_run(client: AsyncClient) -> None:
    code = "import time\ndef sleep(): time.sleep(60)"
    tests = "import solution\ndef test_a(): solution.sleep()\ndef test_b(): solution.sleep()"
    report = await judged(client, code, pytest_file(tests), timeout_s=3, total_s=0.1)
    assert [test.outcome for test in report.tests] == [Outcome.TIMEOUT, Outcome.NOT_RUN]


async def test_more_results_than_one_answer_holds_are_all_told(client: AsyncClient) -> None:
    tests = (
        "import pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_n(n): assert False, 'x' * 5000"
    )
    report = await judged(client, "", pytest_file(tests))
    assert report.counts["failed"] == 300
    assert len(report.runs) > 1


async def test_a_doctest_shares_its_names_and_fails_alone(client: AsyncClient) -> None:
    text = "Some words.\n\n>>> x = add(1, 2)\n>>> x\n3\n>>> add(x, 1)\n5\n>>> greet('you')\nhello you\n"
    report = await judged(client, CODE, Suite(SuiteKind.DOCTEST, "add.txt", text))
    assert [(test.id, str(test.outcome)) for test in report.tests] == [
        ("add.txt:3", "passed"),
        ("add.txt:4", "passed"),
        ("add.txt:6", "failed"),
        ("add.txt:8", "passed"),
    ]
    assert "Expected:\n    5\nGot:\n    4" in report.tests[2].message


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("python", "print(sum(map(int, input().split())))", id="python"),
        pytest.param("bash", "read -r a b; echo $((a + b))", id="bash"),
    ],
)
async def test_pairs_are_for_every_language(client: AsyncClient, language: str, code: str) -> None:
    report = await judged(
        client, code, Pair("right", "1 2", "3"), Pair("blanks", "1 2", "3  \n\n"), Pair("wrong", "1 2", "4"),
        language=language,
    )  # fmt: skip
    assert [str(test.outcome) for test in report.tests] == ["passed", "passed", "failed"]
    assert report.tests[2].message == "expected '4', but it printed '3\\n'"


async def test_the_route_and_the_function_say_the_same(client: AsyncClient) -> None:
    tests = [
        {"kind": "pytest", "name": "test_it.py", "text": textwrap.dedent(BAD)},
        {"kind": "pair", "name": "p", "input": "", "expected": ""},
        {"kind": "doctest", "name": "d", "text": ">>> add(1, 2)\n3\n"},
    ]
    answer = await client.test(CODE, tests, project_id="tested")
    report = await judged(
        client,
        CODE,
        pytest_file(BAD),
        Pair("p", "", ""),
        Suite(SuiteKind.DOCTEST, "d", ">>> add(1, 2)\n3\n"),
    )
    assert [(one["id"], one["outcome"]) for one in answer["tests"]] == [
        (one.id, one.outcome) for one in report.tests
    ]
    assert answer["counts"] == report.counts
    assert answer["passed"] is False
    records = (await client.execs(project_id="tested")).records
    assert {record["exec_id"] for record in records} == set(answer["runs"])


async def nobody(ask: Ask) -> Ran:
    raise AssertionError("nothing is run")


@pytest.mark.parametrize(
    ("tests", "options", "error"),
    [
        pytest.param([], {}, BadRequest, id="none"),
        pytest.param([Pair("p", "", "")] * 1001, {}, LimitExceeded, id="too-many"),
        pytest.param([pytest_file("")], {"language": "bash"}, BadRequest, id="not-python"),
        pytest.param([pytest_file("")], {"module": "a.b"}, BadRequest, id="module"),
        pytest.param([pytest_file("")], {"module": "json"}, BadRequest, id="module-of-pythons-own"),
        pytest.param([pytest_file("")], {"timeout_s": 0}, BadRequest, id="no-time"),
        pytest.param([pytest_file("")], {"timeout_s": float("nan")}, BadRequest, id="nan"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    tests: list[Any], options: dict[str, Any], error: type[BadRequest]
) -> None:
    with pytest.raises(error):
        await run_tests(nobody, "", tests, **options)


@pytest.mark.parametrize(
    "test", [Pair("p", "", ""), pytest_file("def test_x(): pass")], ids=["pair", "suite"]
)
async def test_what_policy_refuses_is_raised(client: AsyncClient, test: Suite | Pair) -> None:
    with pytest.raises(PolicyEscalation):
        await judged(client, "", test, timeout_s=99_999)


async def test_a_judge_that_says_nothing_has_passed_nobody() -> None:
    async def silent(ask: Ask) -> Ran:
        return Ran("ex-1", Verdict.EXITED, 0, "5 passed\n", "", False, 1)

    report = await run_tests(silent, "", [pytest_file("def test_x(): pass")])
    assert [test.outcome for test in report.tests] == [Outcome.ERROR]


async def test_whoever_decides_on_a_run_sees_the_code_that_it_runs() -> None:
    seen = []

    async def looks(ask: Ask) -> Ran:
        seen.append(ask.code)
        compile(ask.code, "main.py", "exec")
        return Ran("ex-1", Verdict.EXITED, 0, "", "", False, 1)

    await run_tests(looks, CODE, [pytest_file("")])
    assert "class Account:" in seen[0]


def test_a_report_passes_only_with_something_that_passed() -> None:
    def outcome(*found: Outcome) -> bool:
        return Report(tuple(TestResult(str(n), one) for n, one in enumerate(found)), ()).all_passed

    assert outcome(Outcome.PASSED, Outcome.SKIPPED)
    assert not outcome()
    assert not outcome(Outcome.SKIPPED)
    assert not outcome(Outcome.PASSED, Outcome.NOT_RUN)
