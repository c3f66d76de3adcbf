"""What holds for every test: with CI=true a skip is a failure, and no deadline depends on a noisy machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

IN_CI = os.environ.get("CI") == "true"

hypothesis.settings.register_profile("belljar", deadline=None, derandomize=IN_CI)
hypothesis.settings.load_profile("belljar")


@pytest.fixture(scope="session")
def jail() -> None:
    """For who needs one that works here."""
    from belljar.engines.jail.probe import probe

    found = probe()
    if not found.usable:
        pytest.skip(f"no jail here: {', '.join(check.name for check in found.missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"With CI=true nothing may be skipped. {reason}"
