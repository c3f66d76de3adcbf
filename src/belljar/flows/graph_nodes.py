"""What each kind of node does when its turn comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from belljar import paths
from belljar.client import AsyncClient, Result
from belljar.client.wire import RunOptions
from belljar.errors import BadRequest, BelljarError, LimitExceeded, PathNotAllowed
from belljar.flows.agents import Agent
from belljar.flows.graph import Kind, Node
from belljar.flows.project import MAX_CODE_BYTES, Landed, Project, ProjectRun, prefix_for
from belljar.flows.templates import filled
from belljar.models import Language, Limits, SkipReason, canonical_json
from belljar.wording import nearest, quoted

__all__ = ["NodeFailed", "Step", "Workshop"]

OUTPUT_CHARS = 16_384
"""How much of each stream of a program is in its node's output; more goes through files."""
MAX_OUTPUT_BYTES = 1 << 20
"""Of what an agent or a tool answers."""
_TOO_MUCH = (SkipReason.TOO_LARGE, SkipReason.TOO_MANY)


class NodeFailed(BelljarError):
    """The program of a node failed; never leaves the graph's run."""

    code = "NODE_FAILED"


@dataclass(frozen=True, slots=True)
class Step:
    """One node, or one item of a map, and what is known when it begins."""

    id: str
    node: Node
    attempt: int
    look_up: Callable[[str], Any]
    own: Collection[str] = ()
    """Files that an earlier attempt wrote."""

    def field(self, name: str, default: Any = None) -> Any:
        if name not in self.node.fields:
            return default
        return filled(self.node.fields[name], self.look_up)

    def text(self, name: str) -> str | None:
        """One that is a template may turn out to be anything."""
        value = self.field(name)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"{name} is not text but {quoted(value)}", field=f"{self.id}.{name}")
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list in which a template that is a list itself is spread."""
        if name not in self.node.fields:
            return None
        found = []
        for item in self.field(name):
            found += item if isinstance(item, list) else [item]
        if not all(isinstance(item, str) for item in found):
            raise BadRequest(f"{name} is not a list of texts", field=f"{self.id}.{name}")
        return found


@dataclass(frozen=True, slots=True)
class Workshop:
    """Who does the work, and where."""

    client: AsyncClient
    project: Project
    run: ProjectRun
    allowed_prefixes: tuple[str, ...]
    agents: Mapping[str, Agent] = field(default_factory=dict)
    project_id: str | None = None

    def check(self, nodes: Collection[Node]) -> None:
        """
        Raises:
            BadRequest: a node names an agent that there is not.
        """
        for node in nodes:
            inner = node.fields.get("node", {}) if node.kind is Kind.MAP else {}
            agent = node.fields.get("agent") if node.kind is Kind.AGENT_TASK else inner.get("agent")
            if agent is not None and agent not in self.agents:
                hint = nearest(str(agent), self.agents)
                message = f"node {quoted(node.id)}: no agent {quoted(agent)} is given{hint}"
                raise BadRequest(f"{message}; name one with --agent {agent}=module:function", field=node.id)

    async def perform(self, step: Step) -> Any:
        """The node's output.

        Raises:
            BelljarError: it failed.
        """
        match step.node.kind:
            case Kind.SANDBOX_RUN:
                return await self._sandbox_run(step)
            case Kind.WRITE_FILE:
                return await self._write_file(step)
            case Kind.CONDITION:
                return _holds(step)
            case Kind.TOOL_CALL:
                return await self._tool_call(step)
            case Kind.AGENT_TASK:
                return await self._agent_task(step)
        raise AssertionError(step.node.kind)  # a map is the scheduler's

    # A program in a jar

    async def _sandbox_run(self, step: Step) -> Any:
        code, language = await asyncio.to_thread(self._code, step)
        prefix = self._prefix(step, step.text("output_prefix"))
        options = await asyncio.to_thread(self._options, step)
        self.run.event("sandbox_start", node=step.id, attempt=step.attempt)
        try:
            result = await self._result_of(code, language, options)
        except BaseException as error:
            reason = getattr(error, "code", type(error).__name__)
            self.run.event("sandbox_failed", node=step.id, reason=reason)
            raise
        output: dict[str, Any] = {}

        def told(landed: Landed) -> Mapping[str, object]:
            output.update(_output(result, landed))
            usage = {"usage": asdict(result.usage), "output_files": [asdict(one) for one in result.outputs]}
            return {"run_id": self.run.run_id, "node": step.id, **output, **usage}

        landed = await asyncio.to_thread(
            self.run.land,
            [*result.output_files.items()],
            told,
            prefix=prefix,
            step=step.id,
            overwrite=bool(step.field("overwrite")),
            own=step.own,
            ok=result.ok,
            verdict=result.verdict,
            exit_code=result.exit_code,
            exec_id=result.id,
        )
        if not step.field("allow_failure"):
            _check(step, result, landed)
        return output

    async def _result_of(self, code: str, language: str, options: RunOptions) -> Result:
        """As the client's `run`, but whoever cancels it ends the program too."""
        exec_id = None
        try:
            async with aclosing(self.client.stream(code, language, **options)) as events:
                async for event in events:
                    if isinstance(event, Result):
                        return event
                    exec_id = event.data.get("exec_id", exec_id)
        except asyncio.CancelledError:
            if exec_id is not None:
                with suppress(BelljarError):
                    await self.client.cancel(exec_id)
            raise
        raise AssertionError("a stream ends with a result")

    def _code(self, step: Step) -> tuple[str, str]:
        language = step.text("language")
        if "code" in step.node.fields:
            return step.node.fields["code"], language or Language.PYTHON
        path = step.text("code_file") or ""
        content = self.project.read(path, MAX_CODE_BYTES, field="code_file")
        try:
            code = content.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{path} is not UTF-8 text (byte {error.start})", field="code_file") from error
        return code, language or Language.of_file(path) or Language.PYTHON

    def _options(self, step: Step) -> RunOptions:
        names = step.texts("input_files") or []
        allowed = step.texts("allowed_prefixes")
        files = self.project.pack(dict.fromkeys(names), Limits(), allowed_prefixes=allowed)
        options: RunOptions = {
            "files": {file.path: file.content for file in files},
            "args": [_as_text(one) for one in step.field("args", [])],
            "env": {name: _as_text(value) for name, value in step.field("env", {}).items()},
            "stdin": _as_text(step.field("stdin", "")),
            "limits": step.field("policy", {}),
            "request_id": f"{self.run.run_id}.{step.id}.{step.attempt}",
        }
        if "timeout_s" in step.node.fields:
            options["timeout_s"] = step.field("timeout_s")
        packages = step.texts("packages")
        if packages is not None:
            options["packages"] = packages
        outputs = step.texts("output_files")
        if outputs is not None:
            options["output_files"] = outputs
        if self.project_id is not None:
            options["project_id"] = self.project_id
        return options

    def _prefix(self, step: Step, asked: str | None) -> str:
        """Where it may write: the node's own prefixes narrow the project's, and cannot widen them."""
        own = step.texts("allowed_prefixes")
        prefix = prefix_for(self.run.run_id, asked, self.allowed_prefixes)
        return prefix if own is None else paths.validate_prefixed(prefix, own, field="output_prefix")

    # A file of the project

    async def _write_file(self, step: Step) -> Any:
        path = step.text("path") or ""
        above, _, name = paths.validate(path, field=f"{step.id}.path").rpartition("/")
        prefix = self._prefix(step, above or path)
        content = _as_text(step.field("content")).encode("utf-8", "replace")
        landed = await asyncio.to_thread(
            self.run.land,
            [(name, content)],
            lambda landed: {"run_id": self.run.run_id, "node": step.id, "written_files": landed.written},
            prefix=prefix,
            step=step.id,
            overwrite=bool(step.field("overwrite")),
            own=step.own,
            ok=True,
        )
        _check_landed(step, landed)
        change = landed.changes[0]
        return {"written_files": [path], "written_bytes": change.size, "sha256": change.sha256}

    # What others do

    async def _tool_call(self, step: Step) -> Any:
        request_id = f"{self.run.run_id}.{step.id}.{step.attempt}"
        arguments = step.field("arguments", {})
        name = step.text("tool") or ""
        if self.project_id is None:
            answer = await self.client.call_tool(name, arguments=arguments, request_id=request_id)
        else:
            answer = await self.client.call_tool(
                name, arguments=arguments, request_id=request_id, project_id=self.project_id
            )
        if answer.get("status") != "success":
            raise NodeFailed(f"the tool {name} failed: {str(answer.get('summary', ''))[:500]}")
        return _bounded(step, dict(answer))

    async def _agent_task(self, step: Step) -> Any:
        agent = self.agents[step.node.fields["agent"]]
        task = {
            "run_id": self.run.run_id,
            "node": step.id,
            "prompt": step.field("prompt"),
            "input": step.field("input"),
        }
        try:
            answer = await agent(task)
        except BelljarError:
            raise
        except Exception as error:  # the user's own code
            raise NodeFailed(f"the agent raised {type(error).__name__}: {str(error)[:500]}") from error
        return _bounded(step, answer)


def _output(result: Result, landed: Landed) -> dict[str, Any]:
    return {
        "exec_id": result.id,
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "duration_ms": result.duration_ms,
        "stdout": result.stdout[:OUTPUT_CHARS],
        "stderr": result.stderr[:OUTPUT_CHARS],
        "truncated": len(result.stdout) > OUTPUT_CHARS or result.stdout_truncated,
        "written_files": [*landed.written],
        "written_bytes": landed.total_bytes,
        "refused_files": [refused._asdict() for refused in landed.refused],
        "skipped": [asdict(skip) for skip in result.skipped],
        "receipt": result.receipt,
    }


def _check(step: Step, result: Result, landed: Landed) -> None:
    if not result.ok:
        how = f"exit status {result.exit_code}" if result.exit_code is not None else str(result.verdict)
        last = result.stderr.strip().rpartition("\n")[2][:300]
        raise NodeFailed(f"the program ended with {how}" + (f": {last}" if last else ""), field=step.id)
    for skip in result.skipped:
        if skip.reason in _TOO_MUCH:
            message = f"{skip.path} was not taken ({skip.reason}): the node's files are past their limit"
            raise LimitExceeded(message, field=step.id)
    _check_landed(step, landed)


def _check_landed(step: Step, landed: Landed) -> None:
    for path, reason in landed.refused:
        hint = "; set overwrite to replace it" if reason == "exists" else ""
        message = f"{ascii(path[:200])} was not written ({reason}){hint}"
        raise PathNotAllowed(message, reason=reason, field=step.id)


def _holds(step: Step) -> bool:
    value = step.field("value")
    for name in ("equals", "not_equals", "greater_than", "less_than", "contains"):
        if name in step.node.fields:
            return _compared(name, value, step.field(name), step.id)
    raise AssertionError("a condition compares")


def _compared(how: str, value: Any, other: Any, node: str) -> bool:
    try:
        match how:
            case "equals":
                return bool(value == other)
            case "not_equals":
                return bool(value != other)
            case "greater_than":
                return bool(_number(value) > _number(other))
            case "less_than":
                return bool(_number(value) < _number(other))
        return other in value
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{quoted(value)} and {quoted(other)} cannot be compared", field=node) from error


def _number(value: Any) -> float:
    """Programs print numbers as text."""
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value).decode()


def _bounded(step: Step, answer: Any) -> Any:
    try:
        size = len(canonical_json(answer))
    except (RecursionError, TypeError, ValueError) as error:
        raise NodeFailed(f"the answer is nothing that JSON can say: {error}", field=step.id) from error
    if size > MAX_OUTPUT_BYTES:
        raise LimitExceeded(f"an answer of {size} bytes; at most {MAX_OUTPUT_BYTES}", field=step.id)
    return answer
