"""One program by itself, read for its risk."""

from __future__ import annotations

from belljar.models import Language
from belljar.policy import risk
from belljar.policy.risk import Assessment, Source


def assess(code: str, language: Language) -> Assessment:
    return risk.assess([Source(code, language)])
