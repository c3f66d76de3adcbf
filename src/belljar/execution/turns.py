"""Whose turn it is: so many runs at once, so many waiting, no project before all the others.

Projects take turns round robin. A place in the queue is taken before anything is written down, so that a full
queue costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from types import TracebackType

from belljar.errors import QueueFull


class Turns:
    def __init__(self, *, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._max_waiting = waiting
        self._queues: OrderedDict[str, deque[Place]] = OrderedDict()
        """By project, the one whose turn is next first."""
        self.running = 0
        self.waiting = 0

    def take_place(self, project_id: str) -> Place:
        """A place in the queue, or QueueFull. Enter it with `async with` and run when that lets you."""
        if self.waiting >= self._max_waiting + (self._at_once - self.running):
            seconds = max(1, self.waiting // self._at_once)
            raise QueueFull(f"{self.waiting} runs are waiting already", retry_after_s=min(seconds, 60))
        place = Place(self, project_id)
        self._queues.setdefault(project_id, deque()).append(place)
        self.waiting += 1
        self._let_in()
        return place

    def _let_in(self) -> None:
        """Give free slots to the projects in their order; one that got a turn goes to the end."""
        while self.running < self._at_once and self._queues:
            project_id, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(project_id)
            place = queue.popleft()
            if not queue:
                del self._queues[project_id]
            self.running += 1
            self.waiting -= 1
            place.let_in()

    def leave_queue(self, place: Place) -> None:
        queue = self._queues[place.project_id]
        queue.remove(place)
        if not queue:
            del self._queues[place.project_id]
        self.waiting -= 1

    def leave_slot(self) -> None:
        self.running -= 1
        self._let_in()


class Place:
    """One run's place, first in the queue and then in a slot."""

    def __init__(self, turns: Turns, project_id: str) -> None:
        self._turns = turns
        self.project_id = project_id
        self._turn = asyncio.Event()
        self._left = False

    @property
    def has_turn(self) -> bool:
        return self._turn.is_set()

    def let_in(self) -> None:
        self._turn.set()

    def leave(self) -> None:
        """Give the place up, wherever it is. Safe to call twice."""
        if self._left:
            return
        self._left = True
        if self.has_turn:
            self._turns.leave_slot()
        else:
            self._turns.leave_queue(self)

    def forgo(self) -> None:
        """Give the place in the queue up; who waits for the turn goes on without one."""
        if not self.has_turn:
            self.leave()
            self._turn.set()

    async def __aenter__(self) -> Place:
        try:
            await self._turn.wait()
        except BaseException:
            self.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
