"""What holds for every language; the findings themselves are tested per language."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.reading import assess

from belljar.models import Language, RiskTier
from belljar.policy.risk import MAX_FINDINGS

EVIL_LINE = {
    Language.PYTHON: "eval('1')",
    Language.BASH: "rm -rf /",
    Language.JAVASCRIPT: "eval('1');",
    Language.TYPESCRIPT: "eval('1');",
}


@pytest.mark.parametrize("language", Language)
def test_empty_program_is_safe(language: Language) -> None:
    assessment = assess("", language)
    assert assessment.tier is RiskTier.SAFE
    assert assessment.findings == ()


@pytest.mark.parametrize("language", Language)
def test_finding_has_tier_reason_and_line(language: Language) -> None:
    assessment = assess(f"\n\n{EVIL_LINE[language]}\n", language)
    first = assessment.findings[0]
    assert (assessment.tier, first.tier, first.line) == (RiskTier.CRITICAL, RiskTier.CRITICAL, 3)
    assert first.reason


@pytest.mark.parametrize("language", Language)
def test_broken_program_makes_a_person_look(language: Language) -> None:
    assessment = assess("\nif (((\n", language)
    assert assessment.tier is RiskTier.HIGH
    assert 1 <= assessment.findings[0].line <= 3


@pytest.mark.parametrize("language", Language)
def test_findings_are_bounded_and_the_worst_is_kept(language: Language) -> None:
    listing = {Language.PYTHON: "os.listdir()\n", Language.BASH: "ls\n"}.get(language, "process.env;\n")
    assessment = assess(listing * 500 + EVIL_LINE[language], language)
    assert len(assessment.findings) == MAX_FINDINGS
    assert assessment.tier is RiskTier.CRITICAL
    ranks = [finding.tier.rank for finding in assessment.findings]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("x=1\n" * 1_250_000, id="5MB-of-statements"),
        pytest.param("(" * 10_000, id="open-parentheses"),
        pytest.param("(" * 5_000 + ")" * 5_000, id="nested-parentheses"),
        pytest.param("[" * 300 + "]" * 300, id="nested-brackets"),
        pytest.param("-" * 10_000 + "1", id="signs"),
        pytest.param("-&" * 5_000, id="slow-to-recover"),
        pytest.param("a|" * 5_000, id="deep-to-recover"),
        pytest.param("a." * 5_000 + "b", id="long-chain"),
        pytest.param("'a'+" * 3_000 + "'a'", id="long-sum"),
        pytest.param("$(" * 5_000, id="substitutions"),
        pytest.param("\0", id="nul"),
        pytest.param("eval('1')\0", id="nul-after-code"),
        pytest.param("x = '\ud800'", id="lone-surrogate"),
        pytest.param("\ufeff\u2028\x85\x0c", id="odd-blanks"),
        pytest.param("1" * 5000, id="long-number"),
    ],
)
def test_hostile_text_is_assessed_in_bounded_time(code: str, language: Language) -> None:
    assert assess(code, language).tier in RiskTier


def test_reason_stays_short_whatever_it_quotes() -> None:
    for code in (
        "a" * 500_000,
        "echo > " + "a" * 500_000,
        "x\\\n=" + "a" * 500_000,
        "cat <<" + "a" * 500_000 + "\n",
    ):
        assert all(len(finding.reason) < 300 for finding in assess(code, Language.BASH).findings)


@pytest.mark.parametrize("language", Language)
def test_long_data_is_no_long_program(language: Language) -> None:
    assert assess(f"x='{'QUJD' * 200_000}'", language).tier is RiskTier.SAFE


SOUP = st.lists(
    st.sampled_from(
        """
        eval exec os sys . ( ) [ ] { } , : ; = + - * / < > ! & | ' " ` # \\ $ ${ $( \n \t if else def class import from as
        lambda for in while function => const require getattr __import__ __builtins__ open 'w' f' {x} case esac do done
        """.split(" ")
    ),
    max_size=25,
).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=80), SOUP), st.sampled_from(Language))
def test_any_text_is_assessed(code: str, language: Language) -> None:
    assessment = assess(code, language)
    assert assessment.tier is max(
        (f.tier for f in assessment.findings), key=lambda t: t.rank, default=RiskTier.SAFE
    )
    assert all(finding.line >= 1 for finding in assessment.findings)


def test_parsers_are_loaded_only_when_needed() -> None:
    code = (
        "import sys; from belljar.policy import commands, risk; "
        "assert not any(name.startswith('tree_sitter') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
