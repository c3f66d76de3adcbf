"""One run of a graph: every node as soon as what it needs is over, and all of it written down as it happens.

`events.jsonl` is the truth: a node's output is in it before anything that needs the node begins. A run that
was killed goes on from there: what is finished stays, what was under way begins anew. `state.json` is a
picture of it for people and programs, made now and then and at the end.

    finished ── failed ── skipped (its branch was not taken) ── blocked (something it needs failed)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from belljar.errors import BadRequest, BelljarError, NotFound
from belljar.flows.graph import Graph, Kind, Node, from_data
from belljar.flows.graph_nodes import Step, Workshop
from belljar.flows.project import ProjectRun, changes_of
from belljar.flows.templates import at, filled
from belljar.models import canonical_json

__all__ = ["GraphOutcome", "NodeState", "Status", "resume_graph", "run_graph"]

AT_ONCE = 8
MAX_ITEMS = 10_000
_PICTURE_S = 1.0
"""How often `state.json` is made anew, at most."""
_RESOLVED = "graph.resolved.json"


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    SKIPPED = "skipped"
    BLOCKED = "blocked"


@dataclass(slots=True)
class NodeState:
    status: Status = Status.PENDING
    attempts: int = 0
    duration_ms: int | None = None
    output: Any = None
    error: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GraphOutcome:
    run_id: str
    nodes: Mapping[str, NodeState]

    @property
    def ok(self) -> bool:
        return all(node.status in (Status.FINISHED, Status.SKIPPED) for node in self.nodes.values())


Progress = Callable[[str, NodeState], None]
"""Told of every change of a node."""


def _silent(name: str, state: NodeState) -> None:
    pass


async def run_graph(
    graph: Graph, workshop: Workshop, *, at_once: int = AT_ONCE, progress: Progress = _silent
) -> GraphOutcome:
    """All of a graph. A node that fails ends nothing but what needs it.

    Raises:
        BadRequest: it names an agent that there is not; nothing has been run.
    """
    workshop.check(graph.nodes.values())
    run = workshop.run
    kept = {
        "run_id": run.run_id,
        "variables": graph.variables,
        "graph": graph.resolved(run.run_id),
        "source": graph.source,
    }
    with run.alone():
        run.keep(_RESOLVED, json.dumps(kept, indent=2).encode())
        run.event("graph_start", nodes=len(graph.nodes))
        return await _GraphRun(graph, workshop, at_once, progress, _History()).all()


async def resume_graph(
    workshop: Workshop, *, at_once: int = AT_ONCE, progress: Progress = _silent
) -> GraphOutcome:
    """What is left of a graph whose run was broken off, or in which nodes failed.

    Raises:
        NotFound: that was no run of a graph.
        Conflict: it is going on.
    """
    run = workshop.run
    try:
        kept = json.loads(run.read(_RESOLVED))
        # Not what is resolved: the value of a variable is no template, though it may look like one.
        graph = from_data(kept["source"], _RESOLVED, kept["variables"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotFound(f"{run.run_id} is not the run of a graph that can go on", field="run_id") from error
    workshop.check(graph.nodes.values())
    with run.alone():
        history = _History.of(run)
        run.event("graph_resume", finished=len(history.outputs))
        return await _GraphRun(graph, workshop, at_once, progress, history).all()


@dataclass(slots=True)
class _History:
    """What earlier processes wrote down."""

    outputs: dict[str, Any] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    written: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: ProjectRun) -> _History:
        found = cls()
        for event in run.events():
            node = event.get("node")
            if not isinstance(node, str):
                continue
            if event["event"] == "node_start":
                found.attempts[node] += 1
            elif event["event"] == "node_complete":
                found.outputs[node] = event.get("output")
            elif event["event"] == "sandbox_complete":
                found.written.setdefault(node, set()).update(one.path for one in changes_of(event))
        return found


class _GraphRun:
    def __init__(
        self, graph: Graph, workshop: Workshop, at_once: int, progress: Progress, history: _History
    ) -> None:
        self._graph = graph
        self._workshop = workshop
        self._run = workshop.run
        self._turns = asyncio.Semaphore(at_once)
        self._progress = progress
        self._history = history
        self._states = {name: NodeState(attempts=history.attempts[name]) for name in graph.nodes}
        self._stored = graph.outputs
        self._left = {name: len(node.needs) for name, node in graph.nodes.items()}
        self._followers: dict[str, list[str]] = {name: [] for name in graph.nodes}
        for name, node in graph.nodes.items():
            for one in node.needs:
                self._followers[one].append(name)
        self._pictured = time.monotonic()

    async def all(self) -> GraphOutcome:
        self._picture("running")
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for name, count in self._left.items():
                    if count == 0:
                        group.create_task(self._live_through(self._graph.nodes[name]))
        except* BelljarError as errors:
            raise errors.exceptions[0] from None
        outcome = GraphOutcome(self._run.run_id, self._states)
        counts = Counter(str(state.status) for state in self._states.values())
        self._run.event("graph_complete" if outcome.ok else "graph_failed", nodes=counts)
        self._picture("finished" if outcome.ok else "failed")
        return outcome

    async def _live_through(self, node: Node) -> None:
        """From the moment that all it needs is over, to the moment that it is."""
        state = self._states[node.id]
        if self._is_blocked(node):
            self._settle(node.id, Status.BLOCKED)
        elif self._is_skipped(node):
            self._run.event("node_skipped", node=node.id)
            self._settle(node.id, Status.SKIPPED)
        elif node.id in self._history.outputs:
            state.output = self._history.outputs[node.id]
            self._settle(node.id, Status.FINISHED)
        else:
            await self._work(node, state)
        for follower in self._followers[node.id]:
            self._left[follower] -= 1
            if self._left[follower] == 0:
                self._group.create_task(self._live_through(self._graph.nodes[follower]))

    async def _work(self, node: Node, state: NodeState) -> None:
        began = time.monotonic()
        try:
            if node.kind is Kind.MAP:
                self._settle(node.id, Status.RUNNING)
                state.output = await self._mapped(node)
            else:
                async with self._turns:
                    self._settle(node.id, Status.RUNNING)
                    state.output = await self._performed(node.id, node, {})
        except BelljarError as error:
            state.error = {"code": error.code, "message": error.message[:1000]}
            self._run.event("node_failed", node=node.id, **state.error)
            self._settle(node.id, Status.FAILED)
        else:
            state.duration_ms = round((time.monotonic() - began) * 1000)
            self._run.event("node_complete", node=node.id, duration_ms=state.duration_ms, output=state.output)
            self._settle(node.id, Status.FINISHED)

    async def _performed(self, step_id: str, node: Node, local: Mapping[str, Any]) -> Any:
        attempt = self._history.attempts[step_id] = self._history.attempts[step_id] + 1
        if step_id in self._states:
            self._states[step_id].attempts = attempt
        self._run.event("node_start", node=step_id, attempt=attempt)
        own = self._history.written.get(step_id, ())
        return await self._workshop.perform(
            Step(step_id, node, attempt, lambda reference: self._look_up(reference, local), own)
        )

    async def _mapped(self, node: Node) -> list[Any]:
        """One step for each item; those that an earlier process finished are not done again."""
        items = filled(node.fields["items"], lambda reference: self._look_up(reference, {}))
        if not isinstance(items, list) or len(items) > MAX_ITEMS:
            what = f"`items` must be a list of at most {MAX_ITEMS}"
            raise BadRequest(f"{what}, not {type(items).__name__}", field=f"{node.id}.items")
        inner = node.fields["node"]
        fields = {name: value for name, value in inner.items() if name not in ("id", "type")}
        kind = Kind.TOOL_CALL if inner["type"] == "tool_call" else Kind(inner["type"])
        places = asyncio.Semaphore(node.fields.get("max_parallel", AT_ONCE))
        outputs: list[Any] = [None] * len(items)

        async def one(index: int, item: Any) -> None:
            step_id = f"{node.id}.{index}"
            if step_id in self._history.outputs:
                outputs[index] = self._history.outputs[step_id]
                return
            async with places, self._turns:
                local = {"item": item, "index": index}
                outputs[index] = await self._performed(step_id, Node(step_id, kind, fields), local)
                self._run.event("node_complete", node=step_id, output=outputs[index])

        try:
            async with asyncio.TaskGroup() as group:
                for index, item in enumerate(items):
                    group.create_task(one(index, item))
        except* BelljarError as errors:
            raise errors.exceptions[0] from None
        return outputs

    # What a node sees

    def _look_up(self, reference: str, local: Mapping[str, Any]) -> Any:
        first, *steps = reference.split(".")
        if first in local:
            return at(local[first], reference, steps)
        if first == "run_id":
            return at(self._run.run_id, reference, steps)
        if first == "vars":
            return at(dict(self._graph.variables), reference, steps)
        if first in self._graph.variables:
            return at(self._graph.variables[first], reference, steps)
        if first in self._stored:
            return at(self._states[self._stored[first]].output, reference, steps)
        if first in self._states:
            return at(self._states[first].output, reference, steps[1:])
        raise KeyError(reference)

    def _is_blocked(self, node: Node) -> bool:
        stopped = (Status.FAILED, Status.BLOCKED)
        return any(self._states[one].status in stopped for one in node.needs)

    def _is_skipped(self, node: Node) -> bool:
        """Its branch was not taken; or what it uses was skipped; or all that it waited for."""
        if any(self._states[one.condition].output is not one.wanted for one in node.branches):
            return True
        skipped = {one for one in node.needs if self._states[one].status is Status.SKIPPED}
        return bool(skipped & node.refers_to) or (bool(skipped) and skipped == node.needs)

    # What is told

    def _settle(self, name: str, status: Status) -> None:
        self._states[name].status = status
        self._progress(name, self._states[name])
        if time.monotonic() - self._pictured > _PICTURE_S:
            self._picture("running")

    def _picture(self, status: str) -> None:
        self._pictured = time.monotonic()
        nodes = {name: asdict(state) for name, state in self._states.items()}
        state = {"run_id": self._run.run_id, "status": status, "nodes": nodes}
        self._run.keep("state.json", canonical_json(state))
