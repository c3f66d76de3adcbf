"""CPython's own regression tests end in a jar as they end outside, but for differences that are explained.

`modules.toml` says which modules; COMPAT=all takes all of them, for half an hour. Every difference
has to be in `differences.toml` with its reason, and every difference there has to occur.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests.compat.places import PYTHON, Outcomes, Places

from belljar.models import Start

FOLDER = Path(__file__).parent
MODULES = tomllib.loads((FOLDER / "modules.toml").read_text())
REASONS = tomllib.loads((FOLDER / "differences.toml").read_text())
DOCS = FOLDER.parents[1] / "docs/compatibility.md"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Explained:
    pattern: str
    change: str
    optional: bool
    """Occurs on some hosts only."""

    def matches(self, test: str) -> bool:
        return fnmatchcase(test, self.pattern)


EXPLAINED = [
    Explained(pattern, change, reason.get("optional", False))
    for reason in REASONS.values()
    for pattern, change in reason["tests"].items()
]


def _all_modules() -> dict[str, list[str]]:
    shown = subprocess.run(
        [PYTHON, "-m", "test", "--list-tests"], capture_output=True, text=True, check=True, cwd="/"
    )
    return {module: [] for module in shown.stdout.split() if module not in MODULES["left-out"]}


def _suite_is_here() -> bool:
    return subprocess.run([PYTHON, "-c", "import test.libregrtest"], capture_output=True).returncode == 0


HAVE_SUITE = os.path.exists(PYTHON) and _suite_is_here()
CHOSEN = _all_modules() if HAVE_SUITE and os.environ.get("COMPAT") == "all" else MODULES["exec"]
needs_suite = pytest.mark.skipif(
    not HAVE_SUITE, reason="CPython's tests are missing: apt install python3.11 libpython3.11-testsuite"
)


def _differences(outside: Outcomes, inside: Outcomes) -> dict[str, str]:
    both = outside.of | inside.of
    changes = {test: f"{outside.of.get(test, 'absent')} -> {inside.of.get(test, 'absent')}" for test in both}
    return {test: change for test, change in changes.items() if len(set(change.split(" -> "))) > 1}


def _unexplained(found: dict[str, str]) -> dict[str, str]:
    return {
        test: change
        for test, change in found.items()
        if not any(known.matches(test) and known.change == change for known in EXPLAINED)
    }


def _stale(outside: Outcomes, found: dict[str, str]) -> list[Explained]:
    """What should have differed among the tests that were run, but did not."""
    return [
        known
        for known in EXPLAINED
        if not known.optional
        and any(map(known.matches, outside.of))
        and not any(known.matches(test) and known.change == change for test, change in found.items())
    ]


async def _compare(places: Places, module: str, start: Start, patterns: list[str]) -> None:
    arguments = [word for pattern in patterns for word in ("--match", pattern)] + [module]
    outside, inside = await asyncio.gather(places.outside(arguments), places.inside(start, arguments))
    if "passed" not in outside.of.values():
        pytest.skip(f"nothing of {module} can be run on this host: {outside.log[-300:]}")
    found = _differences(outside, inside)
    if not _unexplained(found) and not _stale(outside, found):
        return
    # Some tests depend on the moment; what differs twice in the same way does not.
    outside, inside = await asyncio.gather(places.outside(arguments), places.inside(start, arguments))
    first, found = found, _differences(outside, inside)
    lasting = _unexplained({test: change for test, change in found.items() if first.get(test) == change})
    assert not lasting, "\n".join(
        f"{test}: {change}\n{inside.details.get(test) or inside.log[-2000:]}"
        for test, change in lasting.items()
    )
    stale = [known for known in _stale(outside, found) if known in _stale(outside, first)]
    assert not stale, f"explained, but no longer so: {stale}"


@needs_suite
@pytest.mark.parametrize(("module", "patterns"), CHOSEN.items(), ids=CHOSEN)
async def test_ends_in_a_new_interpreter_in_a_jar_as_outside(
    places: Places, module: str, patterns: list[str]
) -> None:
    await _compare(places, module, Start.EXEC, patterns)


@needs_suite
@pytest.mark.parametrize(("module", "patterns"), MODULES["fork"].items(), ids=MODULES["fork"])
async def test_ends_in_a_warm_interpreter_in_a_jar_as_outside(
    places: Places, module: str, patterns: list[str]
) -> None:
    await _compare(places, module, Start.FORK, patterns)


@pytest.mark.parametrize("reason", REASONS)
async def test_every_reason_for_a_difference_is_documented(reason: str) -> None:
    assert f"`{reason}`" in DOCS.read_text()
