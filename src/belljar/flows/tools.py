"""Tools for agents: the catalogue, the run that a call of one is, and its result in words an LLM can use.

All of them run in a jar, on the project's `work`. The files tools run no code of the caller, but in a jar
their calls have a record, a receipt, limits and a refusal like every other, and the host has no second way
to read a tree that programs wrote. What policy calls `sandbox_enabled: false` is leave, not a duty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any

from belljar import paths
from belljar.errors import NotFound, ToolNotAllowed, ToolUnavailable
from belljar.flows.schemas import Schema
from belljar.models import Grant, InputFile, Language, PatternRules, RiskTier, RunRequest, Verdict
from belljar.policy.decisions import PolicySet, decide
from belljar.policy.patterns import expression
from belljar.wording import nearest, quoted

__all__ = [
    "Definition",
    "Format",
    "Outcome",
    "Strategy",
    "catalogue",
    "in_format",
    "request_for",
    "result_of",
]

MAX_CHARS = 16_000
"""Of a stream in a result; the first three quarters and the last quarter of it."""
PROGRAM = "filetools.py"
_ONLY_READ = frozenset({"file_read", "search"})


class Strategy(StrEnum):
    """How a call is carried out."""

    JAR = "jar"  # at once, in a jar with the limits of its grant
    APPROVAL = "approval"  # in a jar, once a person has said yes


class Format(StrEnum):
    """In which form the catalogue is wanted."""

    BELLJAR = "belljar"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool as a role sees it."""

    name: str
    description: str
    risk: RiskTier
    strategy: Strategy
    input_schema: Mapping[str, Any]
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run of a call ended."""

    exec_id: str
    verdict: str | None
    exit_code: int | None
    duration_ms: int
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    artifacts: Sequence[Mapping[str, Any]] = ()
    error_code: str | None = None
    """If what it left could not be kept."""
    error_reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Tool:
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    request: Callable[[str, Mapping[str, Any], Grant], RunRequest]
    summary: Callable[[Mapping[str, Any]], str] | None = None
    """Of what a file tool answered; None: the tool runs a program of the caller."""

    def schema(self, grant: Grant) -> dict[str, Any]:
        properties = {name: dict(schema) for name, schema in self.properties.items()}
        if "language" in properties:
            properties["language"]["enum"] = sorted(map(str, grant.languages))
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }


def _code_run(name: str, given: Mapping[str, Any], grant: Grant) -> RunRequest:
    files = tuple(InputFile(path, text.encode()) for path, text in given.get("files", {}).items())
    language = Language(given.get("language", Language.PYTHON))
    packages = tuple(given.get("packages", ()))
    return RunRequest(language=language, code=given["code"], files=files, packages=packages)


def _shell_exec(name: str, given: Mapping[str, Any], grant: Grant) -> RunRequest:
    return RunRequest(language=Language.BASH, code=given["command"])


def _on_files(name: str, given: Mapping[str, Any], grant: Grant) -> RunRequest:
    for field in ("path", "under"):
        if field in given:
            paths.validate(given[field], field=f"arguments.{field}")
    asked = {"tool": name, "arguments": given, "rules": [_rule(each) for each in grant.paths]}
    program = (resources.files("belljar.flows") / PROGRAM).read_bytes()
    return RunRequest(
        command=("python3", f"/workspace/inputs/{PROGRAM}"),
        inputs=(InputFile(PROGRAM, program),),
        stdin=json.dumps(asked).encode(),
    )


def _rule(rules: PatternRules) -> dict[str, list[str] | None]:
    allow = None if rules.allow is None else [expression(pattern) for pattern in rules.allow]
    return {"allow": allow, "deny": [expression(pattern) for pattern in rules.deny]}


_PATH = {"type": "string", "description": "Relative to the project's work folder."}
_TIMEOUT = {"type": "number", "exclusiveMinimum": 0, "description": "Seconds it may take."}

_BUILT: Mapping[str, _Tool] = MappingProxyType(
    {
        "code_run": _Tool(
            "Run a program in a sealed jar without network, in the project's work folder. Files it makes or "
            "changes there are kept for later calls; what it prints comes back.",
            {
                "code": {"type": "string"},
                "language": {"type": "string", "description": "python if left out."},
                "files": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "maxProperties": 100,
                    "description": "Text files to put there first, by path.",
                },
                "packages": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "To install first for a Python program, such as numpy>=2; where allowed.",
                },
                "timeout_s": _TIMEOUT,
            },
            ("code",),
            _code_run,
        ),
        "shell_exec": _Tool(
            "Run a bash command line in a sealed jar without network, in the project's work folder. Files it "
            "makes or changes there are kept for later calls.",
            {"command": {"type": "string", "minLength": 1}, "timeout_s": _TIMEOUT},
            ("command",),
            _shell_exec,
        ),
        "file_read": _Tool(
            "Read a text file of the project's work folder, from a line on.",
            {
                "path": _PATH,
                "offset": {"type": "integer", "minimum": 1, "description": "First line; 1 if left out."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 2000, "description": "Lines at most."},
            },
            ("path",),
            _on_files,
            lambda said: f"lines {said['first_line']} to {_last_line(said)} of {said['total_lines']}",
        ),
        "file_write": _Tool(
            "Write a text file in the project's work folder.",
            {
                "path": _PATH,
                "content": {"type": "string"},
                "overwrite": {"type": "boolean", "description": "It may replace a file; false if left out."},
            },
            ("path", "content"),
            _on_files,
            lambda said: (
                f"{'created' if said['created'] else 'replaced'} {said['path']}, {said['bytes']} bytes"
            ),
        ),
        "file_edit": _Tool(
            "Replace a piece of a text file of the project's work folder. The old text must be there exactly "
            "as given, and once unless `all` is said.",
            {
                "path": _PATH,
                "old": {"type": "string", "minLength": 1},
                "new": {"type": "string"},
                "all": {"type": "boolean", "description": "Replace each; false if left out."},
            },
            ("path", "old", "new"),
            _on_files,
            lambda said: f"replaced {said['replaced']} in {said['path']}",
        ),
        "search": _Tool(
            "Find lines in the files of the project's work folder; without a query, list the files.",
            {
                "query": {"type": "string", "maxLength": 1000},
                "regex": {"type": "boolean", "description": "The query is a regular expression of Python."},
                "under": {"type": "string", "description": "Only in this folder."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 200},
            },
            (),
            _on_files,
            lambda said: f"{len(said['matches'])} found{', and there are more' if said['truncated'] else ''}",
        ),
    }
)


def _last_line(said: Mapping[str, Any]) -> int:
    return int(said["next_offset"] or said["total_lines"] + 1) - 1


def catalogue(policies: PolicySet, role: str | None) -> tuple[Definition, ...]:
    """The tools that this role may use, of those that are built."""
    found = []
    for name, tool in _BUILT.items():
        try:
            grant = decide(policies, role=role, tool=name).grant
        except ToolNotAllowed:
            continue
        waits = grant.risk is RiskTier.CRITICAL
        strategy = Strategy.APPROVAL if waits else Strategy.JAR
        limits = {"timeout_s": grant.limits.timeout_s, "memory_mb": grant.limits.memory_mb}
        found.append(Definition(name, tool.description, grant.risk, strategy, tool.schema(grant), limits))
    return tuple(found)


def in_format(definition: Definition, form: Format) -> dict[str, Any]:
    """As the API of an LLM takes it."""
    if form is Format.BELLJAR:
        return asdict(definition)
    said = {"name": definition.name, "description": definition.description}
    if form is Format.ANTHROPIC:
        return {**said, "input_schema": definition.input_schema}
    return {"type": "function", "function": {**said, "parameters": definition.input_schema}}


def request_for(
    policies: PolicySet, role: str | None, name: str, arguments: Mapping[str, Any]
) -> tuple[RunRequest, dict[str, object]]:
    """The run that a call is, and what it asks of policy. Whether the role may is decided with the run.

    Raises:
        NotFound: there is no tool of exactly that name.
        ToolUnavailable: policy knows it, but it is not built.
        ToolNotAllowed: it is not for this role.
        BadRequest: the arguments are not what its schema asks for.
    """
    if name not in policies.tools:
        near = nearest(name, _BUILT)
        raise NotFound(f"there is no tool {quoted(name)}{near}", field="tool")
    tool = _BUILT.get(name)
    if tool is None:
        what = f"tool `{name}` is known to policy but not part of this version"
        raise ToolUnavailable(f"{what}; it has {', '.join(_BUILT)}", field="tool")
    try:
        grant = decide(policies, role=role, tool=name).grant
    except ToolNotAllowed:  # it is refused, and that written down, when the run is asked for
        grant = decide(policies, tool=name).grant
    Schema(tool.schema(grant), len(tool.properties) + 2).check(arguments, field="arguments")
    overrides: dict[str, object] = {}
    if "timeout_s" in arguments:
        overrides["limits.timeout_s"] = arguments["timeout_s"]
    return tool.request(name, arguments, grant), overrides


def result_of(name: str, outcome: Outcome) -> dict[str, Any]:
    """What an LLM is told: `status`, a `summary` in a sentence, `data`, and where the rest is."""
    tool = _BUILT[name]
    said = _said(outcome) if tool.summary is not None else None
    if said is not None and tool.summary is not None:
        ok = bool(said.pop("ok"))
        summary = tool.summary(said) if ok else str(said["message"])
        data: dict[str, Any] = said
    else:
        ok = outcome.verdict == Verdict.EXITED and outcome.exit_code == 0
        summary = _ended(outcome)
        data = {
            "exit_code": outcome.exit_code,
            "verdict": outcome.verdict,
            "stdout": _shortened(outcome.stdout),
            "stderr": _shortened(outcome.stderr),
            "files": [{"path": row["path"], "size": row["size"]} for row in outcome.artifacts],
        }
    if outcome.error_code is not None and (said is None or name not in _ONLY_READ):
        ok, summary = False, f"{summary}; but {outcome.error_reason}"
    return {
        "tool": name,
        "exec_id": outcome.exec_id,
        "status": "success" if ok else "error",
        "summary": summary,
        "error_code": outcome.error_code,
        "error_reason": outcome.error_reason,
        "data": data,
        "rest": _rest(outcome) if tool.summary is None else [],
    }


def _said(outcome: Outcome) -> dict[str, Any] | None:
    """What our own program answered; None if it did not get that far."""
    if outcome.exit_code != 0:
        return None
    try:
        said: dict[str, Any] = json.loads(outcome.stdout)
    except ValueError:  # cut off by the limit of stdout
        return None
    return said


def _ended(outcome: Outcome) -> str:
    how = f"exited with {outcome.exit_code}" if outcome.verdict == Verdict.EXITED else str(outcome.verdict)
    files = f", {len(outcome.artifacts)} files made or changed" if outcome.artifacts else ""
    return f"{how} after {outcome.duration_ms} ms{files}"


def _shortened(stream: bytes) -> str:
    text = stream.decode("utf-8", "replace")
    if len(text) <= MAX_CHARS:
        return text
    head, tail = text[: MAX_CHARS * 3 // 4], text[-MAX_CHARS // 4 :]
    return f"{head}\n… {len(text) - len(head) - len(tail)} characters left out …\n{tail}"


def _rest(outcome: Outcome) -> list[dict[str, Any]]:
    """Where what was left out can be read."""
    streams = (
        ("stdout", outcome.stdout, outcome.stdout_bytes),
        ("stderr", outcome.stderr, outcome.stderr_bytes),
    )
    rest: list[dict[str, Any]] = [
        {"what": what, "bytes": size, "route": f"/sandbox/execs/{outcome.exec_id}/events"}
        for what, kept, size in streams
        if size > len(kept) or len(kept.decode("utf-8", "replace")) > MAX_CHARS
    ]
    if outcome.artifacts:
        rest.append({"what": "files", "route": f"/sandbox/execs/{outcome.exec_id}/artifacts"})
    return rest
