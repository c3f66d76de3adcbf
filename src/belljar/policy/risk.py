"""How much a person should care about a program before it runs, with the reasons.

Read from the syntax tree, so that text in strings and comments counts for nothing and an alias hides
nothing obvious. It is advice to people and to the approval rule. Containment never depends on it: a
program that wants to hide what it does can.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from belljar.models import Finding, Language, RiskTier

# What reading costs goes with tokens, not characters: one long string is cheap, 50,000 tokens take about two
# seconds and 100 MB. The reader of shell scripts has a bound of its own.
MAX_CHARS = 1_000_000
MAX_TOKENS = 50_000
MAX_FINDINGS = 100
_TOKEN = re.compile(r"\w+|[^\w\s]")


Danger = tuple[RiskTier, str]


def dangers(*rows: tuple[RiskTier, str, str]) -> dict[str, Danger]:
    """A table from names to what they mean; a row is a tier, a reason and the names."""
    return {name: (tier, reason) for tier, reason, names in rows for name in names.split()}


def prefixes(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


@dataclass(frozen=True, slots=True)
class Assessment:
    tier: RiskTier
    """The highest of the findings; `safe` if there are none."""
    findings: tuple[Finding, ...]
    """Highest tier first, then by line; at most MAX_FINDINGS."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What else of a run is read, so that a command that runs it hides nothing."""

    files: frozenset[tuple[str, Language]] = frozenset()
    """Each by its whole path in the jar, with the language it is read in."""
    stdin: bool = False
    """Whether all that comes on its input is known."""
    cwd: str = "/workspace/work"

    def has(self, path: str, language: Language | None) -> bool:
        place = place_of(self.cwd, path)
        return any((place, each) in self.files for each in ([language] if language else Language))


def place_of(cwd: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(cwd, path))


@dataclass(frozen=True, slots=True)
class Source:
    """One text that a run may execute: the program, or a file beside it."""

    text: str
    language: Language
    name: str = ""
    """Of the file; empty for the program itself."""
    beside: Beside = Beside()


def assess(sources: Iterable[Source], asked: Iterable[Finding] = ()) -> Assessment:
    """The program and what it could run as easily, as one; with what its request asks for besides.

    Never raises on any text; code that cannot be read is a finding that makes a person look.
    """
    findings = {replace(finding, reason=finding.reason[:160]) for finding in asked}
    left = MAX_CHARS
    for source in sources:
        left -= len(source.text)
        if left < 0 and source.name:
            findings.add(Finding(RiskTier.HIGH, "there is more code in its files than can be read", 1))
            break
        prefix = f"{source.name}: " if source.name else ""
        for finding in _findings(source):
            findings.add(replace(finding, reason=(prefix + finding.reason)[:160]))  # some quote the program
    ordered = sorted(findings, key=lambda finding: (-finding.tier.rank, finding.line, finding.reason))
    return Assessment(ordered[0].tier if ordered else RiskTier.SAFE, tuple(ordered[:MAX_FINDINGS]))


def _findings(source: Source) -> list[Finding]:
    code, language = source.text, source.language
    # Imported here, because the command line starts without them.
    if language is Language.BASH:
        from belljar.policy.risk_shell import find_in_shell

        return find_in_shell(code, source.beside)
    if len(code) > MAX_CHARS or any(islice(_TOKEN.finditer(code), MAX_TOKENS, None)):
        return [Finding(RiskTier.HIGH, "the code is too long to be read", 1)]
    if language is Language.PYTHON:
        from belljar.policy.risk_python import find_in_python

        return find_in_python(code)
    from belljar.policy.risk_javascript import find_in_javascript

    return find_in_javascript(code, typescript=language is Language.TYPESCRIPT)
