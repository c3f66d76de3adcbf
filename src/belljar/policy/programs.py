"""Which program a command hands to an interpreter: as text, by its place, or on its input.

Only what the command says for sure: an option that is not known here leaves open what is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from belljar.models import Language
from belljar.policy.commands import SYSTEM_DIRECTORIES
from belljar.policy.shell.script import Command, Word
from belljar.policy.shell.wrappers import SHELLS, base_name, read_commands

__all__ = ["Given", "Program", "is_of_the_system", "program_of", "programs_in"]


class Given(StrEnum):
    """How an interpreter is given its program."""

    TEXT = "text"
    FILE = "file"
    MODULE = "module"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class Program:
    given: Given
    language: Language | None
    """None: as the file says."""
    word: Word | None
    """The text, or where it lies. None: that cannot be told."""
    line: int
    """Where a text begins."""

    @property
    def text(self) -> str | None:
        return self.word.text if self.word is not None else None

    @property
    def places(self) -> tuple[str, ...]:
        """Paths at which it may lie, as the command has them."""
        if self.text is None or self.given not in (Given.FILE, Given.MODULE):
            return ()
        if self.given is Given.FILE:
            return (self.text,)
        path = self.text.replace(".", "/")
        return f"{path}.py", f"{path}/__main__.py"


_PYTHON = re.compile(r"python[\d.]*")
_NODE = ("node", "nodejs")
_SOURCES = ("source", ".")
_TELLS = frozenset({"-h", "--help", "-V", "-VV", "-v", "--version"})
"""Options with which nothing is run. To python, `-v` is another one, and harmless."""

# Options may be joined to one word, and the code to that: -Ic'print(1)'. With -i the input is run as well.
_PYTHON_OPTION = re.compile(r"-[bBdEIOPqsSuvx]*(?:(?P<how>[cmWX])(?P<joined>.*))?", re.DOTALL)
_NODE_CODE = re.compile(r"(?:-e|-p|-pe|--eval|--print)(?:=(?P<joined>.*))?", re.DOTALL)


def programs_in(script: str) -> Iterator[Program]:
    """That a shell script runs, each once for each time."""
    for command in read_commands(script).commands:
        program = program_of(command)
        if program is not None:
            yield program


def program_of(command: Command) -> Program | None:
    """None: it is no interpreter that is known here, or it runs nothing."""
    if command.name is None:
        return None
    name, words = base_name(command.name), command.words[1:]
    if _PYTHON.fullmatch(name):
        return _python(command, words)
    if name in _NODE:
        return _node(command, words)
    if name in SHELLS:
        return _shell(command, words)
    if name in _SOURCES:
        return Program(Given.FILE, Language.BASH, words[0] if words else None, command.line)
    if not is_of_the_system(command.name):
        return Program(Given.FILE, None, command.words[0], command.line)
    return None


def is_of_the_system(name: str) -> bool:
    """Whether the name of a command cannot stand for a file that a program or a caller put there."""
    directory, slash, _ = name.rpartition("/")
    return not slash or directory in SYSTEM_DIRECTORIES


def _python(command: Command, words: Sequence[Word]) -> Program | None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.text == "-":
            break
        if word.text is None or not word.text.startswith("-"):
            return Program(Given.FILE, Language.PYTHON, word, command.line)
        option = _PYTHON_OPTION.fullmatch(word.text)
        if option is None:
            tells = word.text in _TELLS
            return None if tells else Program(Given.FILE, Language.PYTHON, None, command.line)
        if option["how"]:
            value = Word(option["joined"]) if option["joined"] else rest.pop(0) if rest else None
            if option["how"] in "cm":
                given = Given.TEXT if option["how"] == "c" else Given.MODULE
                return Program(given, Language.PYTHON, value, command.line)
    return _input(command, Language.PYTHON)


def _node(command: Command, words: Sequence[Word]) -> Program | None:
    if not words or words[0].text == "-":
        return _input(command, Language.JAVASCRIPT)
    first = words[0].text
    if first is None or not first.startswith("-"):
        language = Language.of_file(first or "") or Language.JAVASCRIPT
        return Program(Given.FILE, language, words[0], command.line)
    code = _NODE_CODE.fullmatch(first)
    if code is None:
        return None if first in _TELLS else Program(Given.FILE, Language.JAVASCRIPT, None, command.line)
    word = Word(code["joined"]) if code["joined"] is not None else words[1] if len(words) > 1 else None
    return Program(Given.TEXT, Language.JAVASCRIPT, word, command.line)


def _shell(command: Command, words: Sequence[Word]) -> Program | None:
    """What is not read as commands already: a file, or its input."""
    for word in words:
        if word.text is None or not word.text.startswith(("-", "+")):
            return Program(Given.FILE, Language.BASH, word, command.line)
        if not word.text.startswith("--") and "c" in word.text:
            return None
        if not word.text.startswith("--") and "s" in word.text:
            break
    return _input(command, Language.BASH)


def _input(command: Command, language: Language) -> Program:
    redirects = [redirect for redirect in command.redirects if redirect.is_stdin]
    if not redirects:
        return Program(Given.INPUT, language, None, command.line)
    last = redirects[-1]
    if last.operator in ("<<", "<<<"):
        return Program(Given.TEXT, language, last.target, last.line)
    return Program(Given.FILE, language, last.target if last.operator == "<" else None, command.line)
