from __future__ import annotations

import pytest

from belljar.policy.shell.grammar import read_script
from belljar.policy.shell.script import Word


def word(text: str) -> Word:
    read = read_script(f"echo {text}")
    assert read.fault is None, read.fault
    return read.commands[-1].words[1]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param("rm", "rm", id="plain"),
        pytest.param("r\\m", "rm", id="backslash"),
        pytest.param("'r'm", "rm", id="single-quotes"),
        pytest.param('"r"m', "rm", id="double-quotes"),
        pytest.param("$'\\x72\\155'", "rm", id="escapes"),
        pytest.param("$'\\u0072m'", "rm", id="unicode-escape"),
        pytest.param('$"rm"', "rm", id="translated"),
        pytest.param("r\\\nm", "rm", id="line-continuation"),
        pytest.param('"a\\"\\$\\x"', 'a"$\\x', id="escapes-in-double-quotes"),
        pytest.param("''", "", id="empty"),
        pytest.param("{}", "{}", id="braces"),
        pytest.param("a=b", "a=b", id="equals"),
        pytest.param("a#b", "a#b", id="hash"),
        pytest.param("'*'", "*", id="quoted-glob"),
        pytest.param("$", "$", id="lone-dollar"),
    ],
)
def test_quotes_are_removed(written: str, meant: str) -> None:
    assert word(written).text == meant


@pytest.mark.parametrize(
    ("written", "shape", "many"),
    [
        pytest.param("$x", "$x", True, id="variable"),
        pytest.param('"$x"', "$x", False, id="quoted-variable"),
        pytest.param('"$@"', "$@", True, id="all-arguments"),
        pytest.param('"${a[@]}"', "$a", True, id="whole-array"),
        pytest.param('"${HOME}/x"', "$HOME/x", False, id="braces"),
        pytest.param("$(a)", "$(…)", True, id="substitution"),
        pytest.param('"`a`"', "$(…)", False, id="quoted-substitution"),
        pytest.param("{a,b}", "{a,b}", True, id="brace-expansion"),
        pytest.param('{"a",b}', "{a,b}", True, id="brace-expansion-with-quotes"),
        pytest.param("{1..3}", "{1..3}", True, id="brace-sequence"),
        pytest.param("*.py", "*.py", False, id="glob"),
        pytest.param("[ab]", "[ab]", False, id="bracket-glob"),
    ],
)
def test_what_the_run_decides_is_marked(written: str, shape: str, many: bool) -> None:
    assert word(written) == Word(shape, static=False, many=many)


@pytest.mark.parametrize(
    ("written", "may"),
    [
        pytest.param("-r", True, id="option"),
        pytest.param("r", False, id="operand"),
        pytest.param('"$x"', True, id="variable"),
        pytest.param('./"$x"', False, id="below-a-directory"),
        pytest.param("./$x", True, id="split-below-a-directory"),
        pytest.param("*", True, id="glob"),
        pytest.param("./*", False, id="glob-below-a-directory"),
        pytest.param('-"$x"', True, id="computed-option"),
    ],
)
def test_word_knows_whether_it_may_be_an_option(written: str, may: bool) -> None:
    assert word(written).may_be_option is may


@pytest.mark.parametrize(
    ("script", "text"),
    [
        pytest.param("bash <<E\na $(b)\nE", None, id="with-substitution"),
        pytest.param("bash <<E\na \\$x \\y\nE", "a $x \\y\n", id="with-escape"),
        pytest.param("bash <<'E'\na $x\nE", "a $x\n", id="literal"),
        pytest.param("bash <<-E\n\ta\n\tE", "a\n", id="without-tabs"),
        pytest.param("bash <<< 'a b'", "a b", id="here-string"),
    ],
)
def test_text_of_here_documents_is_kept(script: str, text: str | None) -> None:
    (redirect,) = read_script(script).commands[0].redirects
    assert redirect.is_stdin
    assert redirect.target.text == text
