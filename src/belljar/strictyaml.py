"""YAML as settings and policies need it: small, plain, and with line numbers.

What a person reads in the file is what the program gets. So there is one document, no key twice, and
none of YAML's surprises: `no`, `on`, `012` and `1:30` are strings, only `true` and `false` are booleans,
and anchors, aliases, tags, merge keys and directives are refused.
"""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from belljar.errors import BadConfig, BelljarError
from belljar.wording import printable, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import yaml

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Node",
    "Scalar",
    "read",
    "read_file",
    "scalar",
]

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32

Scalar: TypeAlias = str | int | float | bool | None

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Node:
    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    """Keys of a mapping are text as written, whatever they look like."""
    line: int
    """1-based; for a value of a mapping, the line of its key."""


def read(text: str, name: str, *, error: type[BelljarError] = BadConfig) -> Node:
    """The one document in `text`; an empty one is a node with the value None.

    Raises:
        error: with one sentence that begins with `name` and the line.
    """
    # Imported here: most commands read no file, and the import costs more than they do.
    import yaml

    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise error(f"{name}: larger than the {MAX_BYTES // 1024} KiB that are read; make it smaller")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(yaml.parse(text, Loader=loader), name, error).document()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise error(f"{where}: not YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, ValueError, OverflowError) as exc:
        # Characters that YAML does not allow; PyYAML has several ways of saying so.
        raise error(f"{name}: not YAML: it holds characters that no YAML file may hold") from exc


def read_file(path: str | os.PathLike[str], *, error: type[BelljarError] = BadConfig) -> Node:
    """Like `read`, for a regular UTF-8 file; never waits for a FIFO or a device, never reads past the cap."""
    name = printable(os.fspath(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise error(f"{name}: cannot be read: not a regular file")
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not a path"
        raise error(f"{name}: cannot be read: {why}") from exc
    try:
        return read(data.decode("utf-8-sig"), name, error=error)
    except UnicodeDecodeError as exc:
        if len(data) > MAX_BYTES:  # the cut may have split a character; the size is the real reason
            return read("x" * len(data), name, error=error)
        line = data.count(b"\n", 0, exc.start) + 1
        raise error(f"{name}:{line}: not UTF-8 text; save the file as UTF-8") from exc


def scalar(text: str) -> Scalar:
    """What unquoted text means. Raises ValueError for a number that is too large to be meant."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        # Length first: int() of a long run of digits is slow, and then refuses by itself.
        if len(text) > 20 or abs(int(text)) > _MAX_INT:
            raise ValueError(f"the number {quoted(text)} is too large")
        return int(text)
    if _FLOAT.fullmatch(text):
        if math.isinf(number := float(text)):
            raise ValueError(f"the number {quoted(text)} is too large")
        return number
    return text


class _Reader:
    """Builds the tree from parser events, so that nothing is expanded before it is looked at."""

    def __init__(self, events: Iterator[yaml.Event], name: str, error: type[BelljarError]) -> None:
        self._events = events
        self._name = name
        self._error = error

    def document(self) -> Node:
        import yaml

        next(self._events)  # the stream's start
        start = next(self._events)
        if not isinstance(start, yaml.DocumentStartEvent):
            return Node(None, 1)
        if start.version or start.tags:
            raise self._fail(start, "a `%` directive is not understood here; leave it out")
        node = self._node(next(self._events), depth=1)
        next(self._events)  # the document's end
        after = next(self._events)
        if isinstance(after, yaml.DocumentStartEvent):
            raise self._fail(after, "a second document begins here; keep one document in the file")
        return node

    def _node(self, event: yaml.Event, *, depth: int, key_line: int | None = None) -> Node:
        import yaml

        if depth > MAX_DEPTH:
            raise self._fail(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise self._fail(
                event, f"the alias `*{event.anchor}` is not understood here; write the value out"
            )
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            raise self._fail(event, f"the anchor `&{event.anchor}` is not understood here; leave it out")
        if event.tag is not None:
            raise self._fail(event, f"the tag {quoted(event.tag)} is not understood here; leave it out")
        line = key_line or _line(event)
        if isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # without libyaml, PyYAML lets "\\ud800" through
            return Node(self._scalar(event), line)
        if isinstance(event, yaml.MappingStartEvent):
            return Node(self._mapping(depth), line)
        items = []
        while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(item, depth=depth + 1))
        return Node(tuple(items), line)

    def _mapping(self, depth: int) -> Mapping[str, Node]:
        import yaml

        entries: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._node(event, depth=depth + 1)  # refuses what no node may be
            if not isinstance(event, yaml.ScalarEvent):
                raise self._fail(event, "a key must be plain text")
            key: str = event.value
            if key == "<<":
                raise self._fail(event, "the merge key `<<` is not understood here; write the values out")
            if key in entries:
                first = entries[key].line
                raise self._fail(event, f"duplicate key {quoted(key)}; it is already given on line {first}")
            entries[key] = self._node(next(self._events), depth=depth + 1, key_line=_line(event))
        return entries

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        if not event.implicit[0]:  # in quotes or a block: always text
            text: str = event.value
            return text
        try:
            return scalar(event.value)
        except ValueError as exc:
            raise self._fail(event, str(exc)) from exc

    def _fail(self, event: yaml.Event, what: str) -> BelljarError:
        return self._error(f"{self._name}:{_line(event)}: {what}")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
