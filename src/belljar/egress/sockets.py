"""How many connections all jars together may have: descriptors are the service's, and it needs some itself.

No jar holds more of them than are left for all the others, so the first to come cannot take everything.
"""

from __future__ import annotations

import resource

__all__ = ["Share", "Sockets"]


class Sockets:
    def __init__(self, most: int | None = None) -> None:
        """`most`: half of what this process may open, unless said."""
        self._most = most
        self._open = 0

    @property
    def left(self) -> int:
        most = self._most
        if most is None:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        return most - self._open

    def count(self, by: int) -> None:
        self._open += by


class Share:
    """One jar's."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._held = 0

    def take(self) -> bool:
        """False where that would be too much."""
        if self._held >= self._sockets.left:
            return False
        self._held += 1
        self._sockets.count(1)
        return True

    def give_back(self) -> None:
        self._held -= 1
        self._sockets.count(-1)
