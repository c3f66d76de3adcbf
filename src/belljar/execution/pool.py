"""Never-used jars, kept warm for the grants that are asked for; itself an engine.

    create(grant) ── a jar of that shape waits ──► handed out, in microseconds
                  └─ none ──► made on the spot; a shape that comes again gets a shelf

One filler makes jars behind the callers' backs, one at a time, and rests as long as it worked: it takes at
most half a core from what runs. A shelf grows by one each time somebody found it empty and shrinks by what
nobody needed. A jar leaves the pool once and never comes back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from belljar.engines.base import Engine, Jar, Probe
from belljar.execution.shapes import shape_of
from belljar.execution.upkeep import kept_up
from belljar.models import Grant, Language

__all__ = ["Pool", "PoolState"]

PERIOD_S = 10.0
"""How often a shelf is asked what it did not need."""
FORGET_AFTER = 30
"""Periods after which a shape that nobody asked for loses its shelf."""
MAX_SHAPES = 64


@dataclass(frozen=True, slots=True)
class PoolState:
    idle: int
    making: int
    shapes: int
    max_idle: int


@dataclass(slots=True)
class _Shelf:
    least: int
    """Kept whether it is needed or not."""
    wanted: int
    jars: deque[Jar] = field(default_factory=deque)
    seen: int = 0
    spare: int = 0
    """Fewest jars that lay here in this period: so many were not needed."""
    quiet: int = 0
    """Periods in which nobody asked."""


class Pool:
    def __init__(
        self,
        engine: Engine,
        *,
        min_idle: int,
        max_idle: int,
        period_s: float = PERIOD_S,
    ) -> None:
        self.name = engine.name
        self._engine = engine
        self._min_idle = min_idle
        self._max_idle = max_idle
        self._period_s = period_s
        self._shelves: dict[Grant, _Shelf] = {}
        """By when they were last asked, oldest first."""
        self._review_at = 0.0
        self._making = 0
        self._needed = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    async def probe(self) -> Probe:
        return await self._engine.probe()

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        return self._engine.interpreters()

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        return await self._engine.fit(grant, language)

    def keep(self, grant: Grant) -> None:
        """Have jars of this shape ready from now on, before anybody asks."""
        if self._max_idle:
            self._shelves[shape_of(grant)] = _Shelf(self._min_idle, self._min_idle)
            self._wake()

    async def create(self, grant: Grant) -> Jar:
        if not self._max_idle:
            return await self._make(grant)
        shape = shape_of(grant)
        shelf = self._asked(shape)
        while shelf.jars:
            jar = shelf.jars.popleft()
            shelf.spare = min(shelf.spare, len(shelf.jars))
            self._wake()
            if jar.alive:
                jar.assign(grant)
                return jar
            await jar.destroy()
        if shelf.seen > 1:
            shelf.wanted = min(shelf.wanted + 1, self._max_idle)
        jar = await self._make(grant)
        self._wake()
        return jar

    @property
    def state(self) -> PoolState:
        return PoolState(self._idle, self._making, len(self._shelves), self._max_idle)

    async def close(self) -> None:
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            with suppress(asyncio.CancelledError):
                await self._filling
        try:
            for shape in list(self._shelves):
                await self._clear(self._shelves.pop(shape), down_to=0)
        finally:
            await self._engine.close()

    @property
    def _idle(self) -> int:
        return sum(len(shelf.jars) for shelf in self._shelves.values())

    def _asked(self, shape: Grant) -> _Shelf:
        shelf = self._shelves.pop(shape, None) or _Shelf(0, 0)
        self._shelves[shape] = shelf
        shelf.seen += 1
        shelf.quiet = 0
        return shelf

    def _wake(self) -> None:
        """The filler starts with the first need: a pool belongs to the loop that uses it."""
        if self._filling is None and not self._closed:
            self._review_at = asyncio.get_running_loop().time() + self._period_s
            filling = kept_up("the pool", self._fill, every_s=0)
            self._filling = asyncio.create_task(filling, name="pool")
        self._needed.set()

    async def _make(self, grant: Grant) -> Jar:
        self._making += 1
        try:
            return await self._engine.create(grant)
        finally:
            self._making -= 1

    async def _fill(self) -> None:
        """One jar; or, where none is needed, wait until one is."""
        clock = asyncio.get_running_loop().time
        if clock() >= self._review_at:
            self._review_at = clock() + self._period_s
            await self._review()
        self._needed.clear()
        shape = self._neediest()
        if shape is None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._review_at):
                    await self._needed.wait()
            return
        began = clock()
        jar = await self._make(shape)
        self._shelves.setdefault(shape, _Shelf(0, 0)).jars.append(jar)
        await self._make_room()
        await asyncio.sleep(clock() - began)

    def _neediest(self) -> Grant | None:
        """The shape asked for last, of those that lack a jar; whether there is room is seen to afterwards."""
        for shape, shelf in reversed(self._shelves.items()):
            if len(shelf.jars) < shelf.wanted:
                return shape if self._idle < self._max_idle or self._oldest_spare(shape) else None
        return None

    def _oldest_spare(self, but: Grant) -> Grant | None:
        """A shape asked for longer ago than this one that has a jar to lose."""
        for shape, shelf in self._shelves.items():
            if shape == but:
                return None
            if len(shelf.jars) > shelf.least:
                return shape
        return None

    async def _make_room(self) -> None:
        for shelf in list(self._shelves.values()):
            over = self._idle - self._max_idle
            if over <= 0:
                break
            down_to = max(shelf.least, len(shelf.jars) - over)
            shelf.wanted = min(shelf.wanted, down_to)
            await self._clear(shelf, down_to)

    async def _review(self) -> None:
        """Forget what is not asked for, shrink what had more than it needed, and see that all are well."""
        for shape, shelf in list(self._shelves.items()):
            shelf.quiet += 1
            if not shelf.least and (shelf.quiet > FORGET_AFTER or len(self._shelves) > MAX_SHAPES):
                await self._clear(self._shelves.pop(shape), down_to=0)
                continue
            shelf.wanted = max(shelf.least, shelf.wanted - (shelf.spare + 1) // 2)
            for jar in [jar for jar in shelf.jars if not jar.alive]:
                shelf.jars.remove(jar)
                await jar.destroy()
            await self._clear(shelf, down_to=shelf.wanted)
            shelf.spare = len(shelf.jars)

    @staticmethod
    async def _clear(shelf: _Shelf, down_to: int) -> None:
        while len(shelf.jars) > down_to:
            await shelf.jars.pop().destroy()
