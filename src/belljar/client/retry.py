"""How often a call is tried, and how long the pauses are."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Retry"]

_LATER_S = 60.0
"""A service that asks for a longer pause than this is not waited for."""


@dataclass(frozen=True, slots=True)
class Retry:
    attempts: int = 5
    """In all, the first one included."""
    first_s: float = 0.1
    """The first pause; each further one is twice as long."""
    longest_s: float = 10.0

    def pause_s(self, failures: int, at_least_s: float = 0.0, chance: float | None = None) -> float | None:
        """Until the next attempt, after so many failures; None: there is none.

        `chance`, from 0 to 1, lets callers that failed together come back one by one.
        """
        if failures >= self.attempts or at_least_s > _LATER_S:
            return None
        if chance is None:
            chance = random.random()
        doubled = min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s)
        return at_least_s + doubled * (1 + chance) / 2
