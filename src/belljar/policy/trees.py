"""Policy files and manifests as trees of located nodes, read more strictly than YAML and JSON ask for.

No type is guessed: a scalar stays text until someone says what it should be, so YAML's `no`, `1e3` or
`2024-01-01` can never turn into something else. Anchors, aliases, merge keys, tags, second documents
and duplicate keys are refused, and size and depth are bounded. Every node knows its file, its line and
its dotted place, and makes its own complaint.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import yaml

from belljar.errors import BadPolicy
from belljar.policy.suggestions import did_you_mean, printable, shown

__all__ = ["Node", "from_json", "from_yaml", "read_text"]

_LARGEST = 256 * 1024
_DEEPEST = 16
_LONGEST_KEY = 128
_BLANK = re.compile(r"[ \t\r\n]*")
_BOOLEAN_TRAPS = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false"})


@dataclass(frozen=True, slots=True)
class Node:
    source: str
    line: int
    """1-based; of the key, where there is one."""
    place: str
    """Dotted path in the file; empty for the whole of it."""
    content: str | tuple[Node, ...] | dict[str, Node]
    plain: bool = False
    """A scalar without quotes."""

    def fault(self, message: str) -> BadPolicy:
        where = f"{self.place}: " if self.place else ""
        return BadPolicy(f"{self.source}:{self.line}: {where}{message}", field=self.place or None)

    def entries(self, keys: Collection[str] | None = None) -> dict[str, Node]:
        """The mapping it is, all of whose keys are among `keys`."""
        if not isinstance(self.content, dict):
            raise self._expected("a block of keys")
        for key, node in self.content.items():
            if keys is not None and key not in keys:
                raise node.unknown(did_you_mean(key, keys))
        return self.content

    def unknown(self, hint: str = "") -> BadPolicy:
        """The complaint that this node's key should not be there."""
        key = self.place.rpartition(".")[2]
        return BadPolicy(f"{self.source}:{self.line}: unknown key {shown(key)}{hint}", field=self.place)

    def items(self) -> tuple[Node, ...]:
        if not isinstance(self.content, tuple):
            raise self._expected("a list")
        return self.content

    def text(self) -> str:
        if not isinstance(self.content, str) or self.is_null:
            raise self._expected("a word")
        return self.content

    def boolean(self) -> bool:
        if self.plain and self.content in ("true", "false"):
            return self.content == "true"
        if isinstance(self.content, str) and self.content.lower() in _BOOLEAN_TRAPS:
            raise self.fault(f"{shown(self.content)} is not a boolean here; write true or false, without quotes")
        raise self._expected("true or false")

    @property
    def is_null(self) -> bool:
        return self.plain and self.content in ("", "~", "null", "Null", "NULL")

    def _expected(self, what: str) -> BadPolicy:
        if self.is_null:
            found = "nothing"
        elif isinstance(self.content, str):
            found = shown(self.content)
        else:
            found = "a list" if isinstance(self.content, tuple) else "a block of keys"
        return self.fault(f"expected {what}, found {found}")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file of sensible size. Raises BadPolicy with one sentence otherwise."""
    name = printable(os.fspath(path))
    try:
        # O_NONBLOCK: opening a FIFO must not wait for someone to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as exc:
        raise BadPolicy(f"{name} does not exist") from exc
    except OSError as exc:
        raise BadPolicy(f"{name} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:  # a NUL or a lone surrogate in the name
        raise BadPolicy(f"{name} is not a file name") from exc
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            raise BadPolicy(f"{name} is {'a directory' if stat.S_ISDIR(kind) else 'not a regular file'}")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(_LARGEST + 1)
    except OSError as exc:
        raise BadPolicy(f"{name} cannot be read: {exc.strerror}") from exc
    finally:
        os.close(descriptor)
    if b"\0" in data:
        raise BadPolicy(f"{name} is not a text file")
    _check_size(len(data), name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise BadPolicy(f"{name} is not UTF-8: byte {exc.start} cannot be read") from exc


def _check_size(length: int, source: str) -> None:
    if length > _LARGEST:
        raise BadPolicy(f"{source} is larger than {_LARGEST // 1024} KB")


def from_yaml(text: str, source: str) -> Node:
    _check_size(len(text), source)
    try:
        return _YamlReader(text, source).document()
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        problem = " ".join((exc.problem or "it cannot be read").split())
        raise BadPolicy(f"{source}:{line}: not valid YAML: {problem}") from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise BadPolicy(f"{source}:{line}: holds a character that YAML does not allow") from exc
    except (ValueError, OverflowError) as exc:  # PyYAML, on an escape or a version out of range
        raise BadPolicy(f"{source}: not valid YAML: a number in it is out of range") from exc


class _YamlReader:
    """Builds nodes from parser events: what we refuse never becomes a node."""

    def __init__(self, text: str, source: str) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._source = source

    def document(self) -> Node:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise BadPolicy(f"{self._source} is empty")
        root = self._node(next(self._events), "", None, 0)
        next(self._events)  # the end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._fault(event, "a second document begins; keep one in a file")
        return root

    def _node(self, event: yaml.Event, place: str, line: int | None, depth: int) -> Node:
        line = _line_of(event) if line is None else line
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._fault(event, "anchors and aliases are not allowed; write the value out")
        if getattr(event, "tag", None) is not None:
            raise self._fault(event, "tags are not allowed; write the plain value")
        if depth > _DEEPEST:
            raise self._fault(event, f"nested deeper than {_DEEPEST}")
        if isinstance(event, yaml.ScalarEvent):
            return Node(self._source, line, place, event.value, event.style is None)
        if isinstance(event, yaml.SequenceStartEvent):
            items = self._items(place, depth)
            return Node(self._source, line, place, tuple(items))
        return Node(self._source, line, place, self._entries(place, depth))

    def _items(self, place: str, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, place, None, depth + 1)

    def _entries(self, place: str, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, place, None, depth + 1)
            _add(entries, key, self._node(next(self._events), _under(place, key), key.line, depth + 1))
        return entries

    def _fault(self, event: yaml.Event, message: str) -> BadPolicy:
        return BadPolicy(f"{self._source}:{_line_of(event)}: {message}")


def _line_of(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _under(place: str, key: Node) -> str:
    name = key.content
    if not isinstance(name, str) or key.is_null or not name:
        raise key.fault("a key must be a word")
    if name == "<<":
        raise key.fault("merge keys are not allowed; write the keys out")
    if len(name) > _LONGEST_KEY or not name.isprintable():
        raise key.fault(f"the key {shown(name)} is too long or cannot be printed")
    return f"{place}.{name}" if place else name


def _add(entries: dict[str, Node], key: Node, value: Node) -> None:
    first = entries.setdefault(str(key.content), value)
    if first is not value:
        raise value.fault(f"is given twice, first in line {first.line}")


def from_json(text: str, source: str) -> Node:
    _check_size(len(text), source)
    reader = _JsonReader(text, source)
    try:
        return reader.document()
    except json.JSONDecodeError as exc:
        raise BadPolicy(f"{source}:{exc.lineno}: not valid JSON: {exc.msg}") from exc


class _JsonReader:
    """JSON with lines. Scalars are the library's; containers are ours, to know where each thing stands."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._newlines = [at for at, char in enumerate(text) if char == "\n"]
        # Numbers stay text: a number of 5,000 digits is then somebody's bad value, not our ValueError.
        self._scalar = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)

    def document(self) -> Node:
        node, at = self._node(self._skip(0), "", None, 0)
        if self._skip(at) != len(self._text):
            raise json.JSONDecodeError("Extra data", self._text, at)
        return node

    def _node(self, at: int, place: str, line: int | None, depth: int) -> tuple[Node, int]:
        line = bisect.bisect_left(self._newlines, at) + 1 if line is None else line
        if depth > _DEEPEST:
            raise BadPolicy(f"{self._source}:{line}: nested deeper than {_DEEPEST}")
        opening = self._text[at : at + 1]
        if opening == "{":
            entries, end = self._entries(at + 1, place, depth)
            return Node(self._source, line, place, entries), end
        if opening == "[":
            items, end = self._items(at + 1, place, depth)
            return Node(self._source, line, place, tuple(items)), end
        value, end = self._scalar.raw_decode(self._text, at)
        if opening == '"':
            return Node(self._source, line, place, value), end
        written = self._text[at:end]
        if written in ("NaN", "Infinity", "-Infinity"):
            raise json.JSONDecodeError("Expecting value", self._text, at)
        return Node(self._source, line, place, written, plain=True), end

    def _items(self, at: int, place: str, depth: int) -> tuple[list[Node], int]:
        items: list[Node] = []
        at = self._skip(at)
        while self._text[at : at + 1] != "]":
            if items:
                at = self._skip(self._expect(at, ","))
            item, at = self._node(at, place, None, depth + 1)
            items.append(item)
            at = self._skip(at)
        return items, at + 1

    def _entries(self, at: int, place: str, depth: int) -> tuple[dict[str, Node], int]:
        entries: dict[str, Node] = {}
        at = self._skip(at)
        while self._text[at : at + 1] != "}":
            if entries:
                at = self._skip(self._expect(at, ","))
            if self._text[at : at + 1] != '"':
                raise json.JSONDecodeError("Expecting a key in double quotes", self._text, at)
            key, at = self._node(at, place, None, depth + 1)
            at = self._skip(self._expect(self._skip(at), ":"))
            value, at = self._node(at, _under(place, key), key.line, depth + 1)
            _add(entries, key, value)
            at = self._skip(at)
        return entries, at + 1

    def _expect(self, at: int, char: str) -> int:
        if self._text[at : at + 1] != char:
            raise json.JSONDecodeError(f"Expecting '{char}'", self._text, at)
        return at + 1

    def _skip(self, at: int) -> int:
        return _BLANK.match(self._text, at).end()  # type: ignore[union-attr]  # it matches the empty string
