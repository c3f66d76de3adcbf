"""Work that goes on for as long as the service does: what goes wrong once is logged, and tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from belljar.errors import BelljarError

__all__ = ["kept_up"]

logger = logging.getLogger(__name__)

LEAST_REST_S = 1.0
"""After a failure: what fails at once must not keep a core busy. After each further one twice as long."""
MOST_REST_S = 30.0


async def kept_up(what: str, step: Callable[[], Awaitable[None]], *, every_s: float) -> None:
    """One step after the other, with a rest in between, until it is cancelled."""
    after_failure_s = LEAST_REST_S
    while True:
        rest_s = every_s
        try:
            await step()
            after_failure_s = LEAST_REST_S
        except Exception as error:
            rest_s = max(every_s, after_failure_s)
            after_failure_s = min(2 * after_failure_s, MOST_REST_S)
            ours = not isinstance(error, BelljarError | OSError)
            logger.warning("%s: %s; tried again in %g s", what, error, rest_s, exc_info=ours)
        await asyncio.sleep(rest_s)
