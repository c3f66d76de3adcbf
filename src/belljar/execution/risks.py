"""How risky a run is, read before it runs, and whether a person has to see it first.

Advice to people and to the rule for approvals; containment does not depend on it.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence

from belljar.engines.base import WORK, Area
from belljar.execution.requests import command_of
from belljar.models import Finding, Grant, InputFile, Language, RiskTier, RunRequest
from belljar.policy.programs import Given, programs_in
from belljar.policy.risk import Assessment, Beside, Source, assess, place_of

__all__ = ["risk_of", "tier_to_approve"]

_INTERPRETED = {
    "python": Language.PYTHON,
    "node": Language.JAVASCRIPT,
    "nodejs": Language.JAVASCRIPT,
    **dict.fromkeys(("bash", "dash", "ksh", "sh", "zsh"), Language.BASH),
}


def tier_to_approve(grant: Grant, risk: Assessment) -> RiskTier | None:
    """The tier of a run that a person has to see first; None if nobody has to.

    The threshold is for what the run does. A tool's own tier stands for what it might do: that is why it runs
    in a jar, and only the highest is a reason to ask each time.
    """
    if grant.approve_at is None:
        return None
    reached = grant.risk is RiskTier.CRITICAL or risk.tier.rank >= grant.approve_at.rank
    return max(risk.tier, grant.risk, key=lambda tier: tier.rank) if reached else None


def risk_of(request: RunRequest, grant: Grant, secrets: Sequence[str] = ()) -> Assessment:
    """What reading the program says of it, and what its request asks for.

    Read with it is what it could run as easily: scripts among its files, and what an interpreter is given.
    `secrets` are the names of those it may use.
    """
    carried = {f"{WORK}/{file.path}": file for file in request.files}
    carried |= {f"/workspace/{Area.INPUTS}/{file.path}": file for file in request.inputs}
    cwd = posixpath.join(WORK, request.working_dir)
    if request.code is not None:
        text, language = request.code, request.language or Language.PYTHON
    else:
        text, language = shlex.join(command_of(request)), Language.BASH
    scripts = {(place, own) for place, file in carried.items() if (own := _language_of(file)) is not None}
    fed = set()
    for program in programs_in(text) if language is Language.BASH else ():
        if program.given is Given.INPUT and request.stdin and program.language is not None:
            fed.add(program.language)
        for place in (place_of(cwd, path) for path in program.places):
            if place in carried:
                scripts.add((place, program.language or _language_of(carried[place]) or Language.BASH))
    beside = Beside(frozenset(scripts), stdin=not request.stdin_open, cwd=cwd)
    sources = [Source(text, language, beside=beside)]
    sources += [_source("stdin", request.stdin, each, beside) for each in sorted(fed)]
    for place, each in sorted(scripts):
        sources.append(_source(carried[place].path, carried[place].content, each, beside))
    return assess(sources, _asked(request, grant, secrets))


def _asked(request: RunRequest, grant: Grant, secrets: Sequence[str]) -> Iterator[Finding]:
    if request.packages:
        yield Finding(RiskTier.HIGH, f"installs packages: {', '.join(request.packages)}", 1)
    if grant.network.enabled:
        yield Finding(RiskTier.MEDIUM, "has a way to the network", 1)
    if secrets:
        yield Finding(RiskTier.HIGH, f"may use secrets: {', '.join(secrets)}", 1)


def _source(name: str, content: bytes, language: Language, beside: Beside) -> Source:
    return Source(content.decode("utf-8", "replace"), language, name, beside)


def _language_of(file: InputFile) -> Language | None:
    """By its name or its first line; None for what is no script."""
    if file.content.startswith(b"#!"):
        words = re.findall(r"[a-z]+", file.content[:200].split(b"\n")[0].decode("ascii", "replace"))
        return next((_INTERPRETED[word] for word in words if word in _INTERPRETED), Language.BASH)
    return Language.of_file(file.path)
