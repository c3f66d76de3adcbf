"""A graph of runs as a file says it: read, checked, and put in order. Nothing here runs anything.

    variables: {year: 2026}
    nodes:
      - {id: clean, type: sandbox_run, code_file: clean.py, input_files: [docs/in.csv]}
      - {id: chart, type: sandbox_run, code_file: chart.py, input_files: ["{{clean.output.written_files}}"]}
    edges: [{from: clean, to: chart}]

A node waits for what its `needs` and the edges name, for every node that its templates refer to, and for a
condition that has it as a branch. Whatever is wrong is one error with the file, the line, the field and what
may have been meant.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from belljar import strictyaml
from belljar.errors import BadRequest, LimitExceeded
from belljar.flows.templates import filled, references
from belljar.wording import nearest, printable, quoted

__all__ = ["Branch", "Graph", "Kind", "Node", "from_data", "read", "read_file"]

MAX_BYTES = 4 << 20
MAX_NODES = 10_000
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_OWN_NAMES = ("run_id", "item", "index", "vars")


class Kind(StrEnum):
    SANDBOX_RUN = "sandbox_run"  # a program in a jar
    WRITE_FILE = "write_file"  # a file of the project
    CONDITION = "condition"  # which of two branches goes on
    MAP = "map"  # one node for each item of a list
    TOOL_CALL = "tool.call"  # a tool of the service
    AGENT_TASK = "agent_task"  # something that the user's own program or endpoint does


_ANY = object
_TEXT, _TEXTS, _TABLE, _LIST = str, [str], dict, list
_COMMON: Mapping[str, Any] = {"id": _TEXT, "type": _TEXT, "needs": _TEXTS, "store_output": _TEXT}
_COMPARISONS = ("equals", "not_equals", "greater_than", "less_than", "contains")
_FIELDS: Mapping[Kind, Mapping[str, Any]] = {
    Kind.SANDBOX_RUN: {
        "language": _TEXT,
        "code": _TEXT,
        "code_file": _TEXT,
        "input_files": _TEXTS,
        "output_files": _TEXTS,
        "output_prefix": _TEXT,
        "allowed_prefixes": _TEXTS,
        "timeout_s": float,
        "overwrite": bool,
        "packages": _TEXTS,
        "args": _LIST,
        "env": _TABLE,
        "stdin": _ANY,
        "policy": _TABLE,
        "allow_failure": bool,
    },
    Kind.WRITE_FILE: {"path": _TEXT, "content": _ANY, "overwrite": bool, "allowed_prefixes": _TEXTS},
    Kind.CONDITION: {"value": _ANY, "then": _TEXTS, "else": _TEXTS, **dict.fromkeys(_COMPARISONS, _ANY)},
    Kind.MAP: {"items": _ANY, "node": _TABLE, "max_parallel": int},
    Kind.TOOL_CALL: {"tool": _TEXT, "arguments": _TABLE},
    Kind.AGENT_TASK: {"agent": _TEXT, "prompt": _TEXT, "input": _ANY},
}
_REQUIRED: Mapping[Kind, tuple[str, ...]] = {
    Kind.SANDBOX_RUN: (),
    Kind.WRITE_FILE: ("path", "content"),
    Kind.CONDITION: ("value",),
    Kind.MAP: ("items", "node"),
    Kind.TOOL_CALL: ("tool",),
    Kind.AGENT_TASK: ("agent",),
}
_KINDS: Mapping[str, Kind] = {**{str(kind): kind for kind in Kind}, "tool_call": Kind.TOOL_CALL}
_SAID = {
    str: "text",
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    dict: "a table",
    list: "a list",
}


@dataclass(frozen=True, slots=True)
class Branch:
    condition: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    kind: Kind
    fields: Mapping[str, Any]
    """As written, templates and all; without `id`, `type`, `needs` and `store_output`."""
    needs: frozenset[str] = frozenset()
    """All that must be over before it begins."""
    refers_to: frozenset[str] = frozenset()
    """Those of them whose output it uses."""
    branches: tuple[Branch, ...] = ()
    store_output: str | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: Mapping[str, Node]
    """In an order in which each comes after those that it needs."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What was read."""

    def resolved(self, run_id: str) -> dict[str, Any]:
        """The graph with the run's id and the variables filled in, outside of code."""

        def look_up(reference: str) -> Any:
            first, *steps = reference.split(".")
            if first == "run_id" and not steps:
                return run_id
            name = steps[0] if first == "vars" and steps else first
            if name not in self.variables or len(steps) > (first == "vars"):
                raise KeyError(reference)
            return self.variables[name]

        def of_node(node: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: value
                if name == "code"
                else of_node(value)
                if name == "node" and isinstance(value, dict)
                else filled(value, look_up)
                for name, value in node.items()
            }

        return {**self.source, "nodes": [of_node(node) for node in self.source["nodes"]]}

    @property
    def outputs(self) -> dict[str, str]:
        """Name of a stored output to the node that stores it."""
        return {node.store_output: name for name, node in self.nodes.items() if node.store_output}


def read_file(path: str | os.PathLike[str], variables: Mapping[str, Any] | None = None) -> Graph:
    """
    Raises:
        BadRequest: it cannot be read, or is no graph.
    """
    name = printable(os.fspath(path))
    if name.endswith(".json"):
        try:
            with open(path, "rb") as file:
                text = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            raise BadRequest(f"{name}: cannot be read: {getattr(error, 'strerror', error)}") from error
        return _checked(_json(text, name), name, variables)
    return _checked(strictyaml.read_file(path, error=BadRequest), name, variables)


def read(text: str, name: str, variables: Mapping[str, Any] | None = None) -> Graph:
    """As `read_file`, from text; JSON if the name ends in `.json`."""
    if name.endswith(".json"):
        return _checked(_json(text.encode("utf-8", "surrogatepass"), name), name, variables)
    return _checked(strictyaml.read(text, name, error=BadRequest), name, variables)


def from_data(data: Mapping[str, Any], name: str, variables: Mapping[str, Any] | None = None) -> Graph:
    return _checked(_as_node(data), name, variables)


def _json(text: bytes, name: str) -> strictyaml.Node:
    if len(text) > MAX_BYTES:
        raise LimitExceeded(f"{name}: larger than {MAX_BYTES >> 20} MB")

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if twice:
            raise BadRequest(f"{name}: duplicate key {quoted(twice[0])}")
        return dict(pairs)

    def constant(word: str) -> NoReturn:
        raise BadRequest(f"{name}: {word} is not a number that JSON has")

    try:
        return _as_node(json.loads(text, object_pairs_hook=table, parse_constant=constant))
    except json.JSONDecodeError as error:
        raise BadRequest(f"{name}:{error.lineno}: not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name}: not UTF-8 text; save the file as UTF-8") from error
    except (RecursionError, ValueError) as error:
        raise BadRequest(f"{name}: not JSON that can be read: {error}") from error


def _as_node(value: Any) -> strictyaml.Node:
    """JSON in the shape of what `strictyaml` reads; it knows no lines."""
    if isinstance(value, dict):
        return strictyaml.Node({str(key): _as_node(item) for key, item in value.items()}, 0)
    if isinstance(value, list):
        return strictyaml.Node(tuple(map(_as_node, value)), 0)
    return strictyaml.Node(value, 0)


def _plain(node: strictyaml.Node) -> Any:
    if isinstance(node.value, Mapping):
        return {key: _plain(item) for key, item in node.value.items()}
    if isinstance(node.value, tuple):
        return [_plain(item) for item in node.value]
    return node.value


def _checked(root: strictyaml.Node, name: str, variables: Mapping[str, Any] | None) -> Graph:
    return _Reader(name).graph(root, variables or {})


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[str, int] = {}

    def graph(self, root: strictyaml.Node, given: Mapping[str, Any]) -> Graph:
        known = ("name", "variables", "nodes", "edges")
        top = self._table(root, "the graph", known)
        variables = _plain(top["variables"]) if "variables" in top else {}
        if not isinstance(variables, dict):
            self._fail("variables: must be a table", "variables", top["variables"].line)
        for name in given:
            if name not in variables:
                hint = nearest(name, variables)
                raise BadRequest(f"the graph has no variable {quoted(name)}{hint}", field=name)
        listed = top["nodes"].value if "nodes" in top else None
        if not isinstance(listed, tuple) or not listed:
            self._fail("nodes: must be a list with one node at least", "nodes", root.line)
        if len(listed) > MAX_NODES:
            raise LimitExceeded(
                f"{self._file}: {len(listed)} nodes; at most {MAX_NODES} are taken", field="nodes"
            )
        nodes: dict[str, Node] = {}
        for place, one in enumerate(listed):
            node = self._node(one, f"nodes.{place}")
            if node.id in nodes:
                first = self._lines[node.id]
                where = f" on line {first}" if first else ""
                self._fail(
                    f"duplicate id {quoted(node.id)}; another node has it{where}",
                    f"nodes.{place}.id",
                    one.line,
                )
            nodes[node.id] = node
            self._lines[node.id] = one.line
        nodes = self._linked(nodes, top.get("edges"), {*variables})
        self._check_names(nodes, variables)
        return Graph(self._ordered(nodes), {**variables, **given}, _plain(root))

    # One node

    def _node(self, one: strictyaml.Node, place: str) -> Node:
        if not isinstance(one.value, Mapping):
            self._fail("must be a table with `id` and `type`", place, one.line)
        said = _plain(one)
        kind = _KINDS.get(said.get("type")) if isinstance(said.get("type"), str) else None
        if kind is None:
            named = said.get("type")
            what = (
                f"unknown type {quoted(named)}{nearest(str(named), _KINDS)}"
                if "type" in said
                else "no `type`"
            )
            self._fail(f"{what}; there are {', '.join(Kind)}", f"{place}.type", one.line)
        fields = {**_COMMON, **_FIELDS[kind]}
        table = self._table(one, f"a {kind}", fields, place)
        for name, value in said.items():
            self._check_type(name, value, fields[name], f"{place}.{name}", table[name].line)
        node_id = said.get("id", "")
        if not _ID.fullmatch(node_id) or node_id in _OWN_NAMES:
            what = "an id is letters, digits, `-` and `_`, at most 64, and none of " + ", ".join(_OWN_NAMES)
            self._fail(f"{quoted(node_id)}: {what}", f"{place}.id", one.line)
        for name in _REQUIRED[kind]:
            if name not in said:
                self._fail(f"node {quoted(node_id)}: `{name}` is missing", f"{place}.{name}", one.line)
        getattr(self, f"_check_{kind.name.lower()}", lambda *_: None)(said, place, one)
        own = {name: value for name, value in said.items() if name not in _COMMON}
        needs = frozenset(said.get("needs", ()))
        return Node(node_id, kind, own, needs, store_output=said.get("store_output"))

    def _check_sandbox_run(self, said: Mapping[str, Any], place: str, one: strictyaml.Node) -> None:
        if ("code" in said) == ("code_file" in said):
            what = (
                "give either `code` or `code_file`, not both"
                if "code" in said
                else "give `code` or `code_file`"
            )
            self._fail(f"node {quoted(said['id'])}: {what}", f"{place}.code", one.line)

    def _check_condition(self, said: Mapping[str, Any], place: str, one: strictyaml.Node) -> None:
        if sum(name in said for name in _COMPARISONS) != 1:
            what = f"give one of {', '.join(_COMPARISONS)}"
            self._fail(f"node {quoted(said['id'])}: {what}", place, one.line)

    def _check_map(self, said: Mapping[str, Any], place: str, one: strictyaml.Node) -> None:
        assert isinstance(one.value, Mapping)
        inner = one.value["node"]
        assert isinstance(inner.value, Mapping)
        if "id" not in inner.value:
            inner = strictyaml.Node(
                {"id": strictyaml.Node(said["id"], inner.line), **inner.value}, inner.line
            )
        node = self._node(inner, f"{place}.node")
        if node.kind in (Kind.MAP, Kind.CONDITION):
            self._fail(f"a {node.kind} cannot be inside a map", f"{place}.node.type", inner.line)
        if said.get("max_parallel", 1) < 1:
            self._fail("max_parallel: must be 1 or more", f"{place}.max_parallel", one.line)

    # All of them

    def _linked(
        self, nodes: Mapping[str, Node], edges: strictyaml.Node | None, variables: set[str]
    ) -> dict[str, Node]:
        needs = {name: set(node.needs) for name, node in nodes.items()}
        branches: dict[str, list[Branch]] = {name: [] for name in nodes}
        for place, (source, target, line) in enumerate(self._edges(edges)):
            for end, one in (("from", source), ("to", target)):
                self._check_known(one, nodes, f"edges.{place}.{end}", line)
            needs[target].add(source)
        stored = {node.store_output: name for name, node in nodes.items() if node.store_output}
        scope = {*nodes, *stored, *variables, "run_id", "vars"}
        linked = {}
        for name, node in nodes.items():
            line = self._lines[name]
            for one in node.needs:
                self._check_known(one, nodes, f"{name}.needs", line)
            for wanted, field_name in ((True, "then"), (False, "else")):
                for one in node.fields.get(field_name, ()) if node.kind is Kind.CONDITION else ():
                    self._check_known(one, nodes, f"{name}.{field_name}", line)
                    needs[one].add(name)
                    branches[one].append(Branch(name, wanted))
            linked[name] = self._references(node, nodes, stored, scope)
        return {
            name: Node(
                name,
                node.kind,
                node.fields,
                frozenset(needs[name] | refers),
                frozenset(refers),
                tuple(branches[name]),
                node.store_output,
            )
            for name, node in nodes.items()
            for refers in [linked[name]]
        }

    def _references(
        self, node: Node, nodes: Mapping[str, Node], stored: Mapping[str, str], scope: set[str]
    ) -> set[str]:
        """The nodes whose output it uses."""
        found = set()
        known = scope | {"item", "index"} if node.kind is Kind.MAP else scope
        for name, value in _values(node.fields):
            for reference in references(value):
                first, *steps = reference.split(".")
                if name == "code" and first not in known:
                    continue  # braces of the program's own
                problem = None
                if name == "code":
                    problem = "is in `code`: no value is put into a program; use `env`, `args` or `stdin`"
                elif first not in known:
                    problem = f"refers to nothing{nearest(first, known)}"
                elif first in nodes and steps[:1] != ["output"]:
                    problem = f"names a node; write {{{{{first}.output}}}} for its output"
                if problem is not None:
                    what = f"node {quoted(node.id)}: {quoted('{{' + reference + '}}')} {problem}"
                    self._fail(what, f"{node.id}.{name}", self._lines[node.id])
                if first in nodes:
                    found.add(first)
                elif first in stored:
                    found.add(stored[first])
        return found

    def _edges(self, edges: strictyaml.Node | None) -> Iterator[tuple[str, str, int]]:
        if edges is None:
            return
        if not isinstance(edges.value, tuple):
            self._fail("edges: must be a list", "edges", edges.line)
        for place, edge in enumerate(edges.value):
            table = self._table(edge, "an edge", ("from", "to"), f"edges.{place}")
            ends = [table[end].value if end in table else None for end in ("from", "to")]
            if not all(isinstance(end, str) for end in ends):
                self._fail("an edge has a `from` and a `to`", f"edges.{place}", edge.line)
            yield str(ends[0]), str(ends[1]), edge.line

    def _check_known(self, name: str, nodes: Mapping[str, Node], place: str, line: int) -> None:
        if name not in nodes:
            self._fail(f"there is no node {quoted(name)}{nearest(name, nodes)}", place, line)

    def _check_names(self, nodes: Mapping[str, Node], variables: Mapping[str, Any]) -> None:
        taken = {**dict.fromkeys(_OWN_NAMES, "belljar"), **dict.fromkeys(nodes, "a node")}
        for name in variables:
            if not _ID.fullmatch(name) or name in taken:
                self._fail(f"the variable {quoted(name)} needs another name", f"variables.{name}", 0)
            taken[name] = "a variable"
        for node in nodes.values():
            if node.store_output is not None:
                if not _ID.fullmatch(node.store_output) or node.store_output in taken:
                    what = f"store_output: {quoted(node.store_output)} is no free name"
                    self._fail(
                        f"node {quoted(node.id)}: {what}", f"{node.id}.store_output", self._lines[node.id]
                    )
                taken[node.store_output] = "an output"

    def _ordered(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        left = {name: len(node.needs) for name, node in nodes.items()}
        followers: dict[str, list[str]] = {name: [] for name in nodes}
        for name, node in nodes.items():
            for one in node.needs:
                followers[one].append(name)
        ready = [name for name, count in left.items() if count == 0]
        ordered: dict[str, Node] = {}
        for name in ready:  # grows while it is walked
            ordered[name] = nodes[name]
            for follower in followers[name]:
                left[follower] -= 1
                if left[follower] == 0:
                    ready.append(follower)
        if len(ordered) < len(nodes):
            loop = _loop(nodes, next(name for name in nodes if name not in ordered), ordered)
            self._fail(f"the nodes wait for one another: {' -> '.join(loop)}", loop[0], self._lines[loop[0]])
        return ordered

    # Forms

    def _table(
        self, node: strictyaml.Node, what: str, known: Iterable[str], place: str = ""
    ) -> Mapping[str, strictyaml.Node]:
        if not isinstance(node.value, Mapping):
            self._fail(f"{what} must be a table", place, node.line)
        for key, value in node.value.items():
            if key not in known:
                field_name = f"{place}.{key}".lstrip(".")
                self._fail(f"{what} has no {quoted(key)}{nearest(key, known)}", field_name, value.line)
        return node.value

    def _check_type(self, name: str, value: Any, wanted: Any, place: str, line: int) -> None:
        if wanted is _ANY:
            return
        if wanted == _TEXTS:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                self._fail(f"{name}: must be a list of texts", place, line)
            return
        number = wanted is float and isinstance(value, int) and not isinstance(value, bool)
        right = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
        if not (right or number):
            self._fail(f"{name}: must be {_SAID[wanted]}", place, line)

    def _fail(self, what: str, place: str, line: int) -> NoReturn:
        where = f"{self._file}:{line}" if line else f"{self._file}: {printable(place)}"
        raise BadRequest(f"{where}: {what}", field=printable(place))


def _values(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values, those of a map's inner node among them."""
    for name, value in fields.items():
        if name == "node" and isinstance(value, dict):
            yield from _values(value)
        else:
            yield name, value


def _loop(nodes: Mapping[str, Node], start: str, done: Mapping[str, Node]) -> list[str]:
    """A way round, in the direction in which things are needed."""
    path: list[str] = []
    name = start
    while name not in path:
        path.append(name)
        name = min(one for one in nodes[name].needs if one not in done)
    return [*path[path.index(name) :], name][::-1]
