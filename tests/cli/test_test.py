from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

HERE = {"BELLJAR_PORT": "9", "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always"}
CODE = '''
def double(x):
    """
    >>> double(2)
    4
    """
    return 2 * x

if __name__ == "__main__":
    print(double(int(input())))
'''


@pytest.fixture(autouse=True)
def files(belljar: Belljar) -> None:
    Path("doubling.py").write_text(CODE)
    Path("test_doubling.py").write_text("import doubling\ndef test_it(): assert doubling.double(3) == 6")
    Path("wrong.py").write_text("import doubling\ndef test_it(): assert doubling.double(3) == 7, 'x\\x1b[2J'")
    Path("cases.json").write_text(
        json.dumps([{"input": "4", "expected": "8"}, {"input": "x", "expected": ""}])
    )
    Path("more.md").write_text("As they say:\n\n>>> double('a')\n'aa'\n")


@pytest.mark.usefixtures("jail")
def test_tests_of_every_form_run(belljar: Belljar) -> None:
    tests = [word for name in ("test_doubling.py", "cases.json", "more.md") for word in ("--tests", name)]
    ran = belljar("test", "doubling.py", *tests, "--json", **HERE)
    assert ran.status == 1
    found = {test["id"]: test["outcome"] for test in ran.json["tests"]}
    assert found == {
        "cases.json[0]": "passed",
        "cases.json[1]": "error",
        "test_doubling.py::test_it": "passed",
        "more.md:3": "passed",
    }


@pytest.mark.usefixtures("jail")
def test_without_tests_the_docstrings_are_run(belljar: Belljar) -> None:
    ran = belljar("test", "doubling.py", **HERE)
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "1 passed")


@pytest.mark.usefixtures("jail")
def test_a_failure_is_shown_and_does_nothing_to_the_terminal(belljar: Belljar) -> None:
    ran = belljar("test", "doubling.py", "--tests", "wrong.py", **HERE)
    assert ran.status == 1
    assert "failed   wrong.py::test_it" in ran.out
    assert "\x1b" not in ran.out


def test_a_service_runs_them_too(caller: Belljar) -> None:
    ran = caller("test", "doubling.py", "--tests", "test_doubling.py", "--json")
    assert (ran.status, ran.json["passed"]) == (0, True)
    shown = [caller("execs", "show", exec_id, "--json").status for exec_id in ran.json["runs"]]
    assert shown == [0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("none.py", None, id="missing"),
        pytest.param("x.json", "{}{", id="not-json"),
        pytest.param("x.json", '[{"input": "1"}]', id="half-a-pair"),
        pytest.param("x.json", '[{"input": 1, "expected": 2}]', id="numbers"),
        pytest.param("x.toml", "", id="unknown-kind"),
    ],
)
def test_what_is_no_test_is_one_line(belljar: Belljar, name: str, text: str | None) -> None:
    if text is not None:
        Path(name).write_text(text)
    ran = belljar("test", "doubling.py", "--tests", name, **HERE)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
