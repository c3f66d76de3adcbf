"""Policy files and manifests as trees whose nodes know their file, line and dotted place.

A node is asked for what should be there (`boolean`, `text`, `items`, `entries`) and complains by itself
when something else is.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar import strictyaml
from belljar.errors import BadPolicy, BadRequest
from belljar.wording import nearest, printable, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["Node", "from_json", "from_yaml", "read_text"]

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
    content: strictyaml.Scalar | tuple[Node, ...] | dict[str, Node]

    def fault(self, message: str) -> BadPolicy:
        where = f"{self.place}: " if self.place else ""
        return BadPolicy(f"{self.source}:{self.line}: {where}{message}", field=self.place or None)

    def unknown(self, key: str, hint: str) -> BadPolicy:
        """The complaint that `key`, whose value this node is, should not be there."""
        return BadPolicy(f"{self.source}:{self.line}: unknown key {quoted(key)}{hint}", field=self.place)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Gives a complaint about a value the file, line and key that it came from."""
        try:
            yield
        except BadPolicy:
            raise
        except BadRequest as error:
            raise self.fault(error.message) from None

    def entries(self, keys: Collection[str] | None = None) -> dict[str, Node]:
        """The mapping it is; where `keys` are given, with none but those."""
        if not isinstance(self.content, dict):
            raise self._expected("a block of keys")
        for key, node in self.content.items():
            if keys is not None and key not in keys:
                raise node.unknown(key, nearest(key, keys))
        return self.content

    def items(self) -> tuple[Node, ...]:
        if not isinstance(self.content, tuple):
            raise self._expected("a list")
        return self.content

    def text(self) -> str:
        """A scalar as text; numbers and booleans as they would be written."""
        if self.content is None or isinstance(self.content, (tuple, dict)):
            raise self._expected("a word")
        return str(self.content).lower() if isinstance(self.content, bool) else str(self.content)

    def boolean(self) -> bool:
        if isinstance(self.content, bool):
            return self.content
        if isinstance(self.content, str) and self.content.lower() in _BOOLEAN_TRAPS:
            raise self.fault(f"{quoted(self.content)} is text here; write true or false, without quotes")
        raise self._expected("true or false")

    def _expected(self, what: str) -> BadPolicy:
        if self.content is None:
            found = "nothing"
        elif isinstance(self.content, (tuple, dict)):
            found = "a list" if isinstance(self.content, tuple) else "a block of keys"
        else:
            found = quoted(self.text())
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
            data = file.read(strictyaml.MAX_BYTES + 1)
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
    if length > strictyaml.MAX_BYTES:
        raise BadPolicy(f"{source} is larger than {strictyaml.MAX_BYTES // 1024} KB")


def from_yaml(text: str, source: str) -> Node:
    _check_size(len(text), source)
    root = strictyaml.read(text, source, error=BadPolicy)
    if root.value is None:
        raise BadPolicy(f"{source} is empty")
    return _placed(root, source, "")


def _placed(node: strictyaml.Node, source: str, place: str) -> Node:
    if isinstance(node.value, tuple):
        return Node(source, node.line, place, tuple(_placed(item, source, place) for item in node.value))
    if not isinstance(node.value, Mapping):
        return Node(source, node.line, place, node.value)
    entries = {}
    for key, value in node.value.items():
        entries[key] = _placed(value, source, _under(Node(source, value.line, place, key)))
    return Node(source, node.line, place, entries)


def _under(key: Node) -> str:
    """The place of what `key` stands for."""
    name = key.text()
    if not name or len(name) > _LONGEST_KEY or not name.isprintable():
        raise key.fault(f"the key {quoted(name)} is empty, too long or cannot be printed")
    return f"{key.place}.{name}" if key.place else name


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
        # Numbers stay text until `strictyaml.scalar` reads them: it bounds them, and knows no NaN.
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
        try:
            value = strictyaml.scalar(self._text[at:end])
        except ValueError as exc:
            raise BadPolicy(f"{self._source}:{line}: {exc}") from exc
        if isinstance(value, str):
            raise json.JSONDecodeError("Expecting value", self._text, at)
        return Node(self._source, line, place, value), end

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
            value, at = self._node(at, _under(key), key.line, depth + 1)
            first = entries.setdefault(key.text(), value)
            if first is not value:
                raise value.fault(f"is given twice, first in line {first.line}")
            at = self._skip(at)
        return entries, at + 1

    def _expect(self, at: int, char: str) -> int:
        if self._text[at : at + 1] != char:
            raise json.JSONDecodeError(f"Expecting '{char}'", self._text, at)
        return at + 1

    def _skip(self, at: int) -> int:
        return _BLANK.match(self._text, at).end()  # type: ignore[union-attr]  # it matches the empty string
