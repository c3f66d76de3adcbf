"""Words of a script: quotes, expansions and here-documents.

A word is read in bash's own order of decisions. Where that order depends on something this reader does
not follow, it stops: see `fail`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NoReturn

from belljar.policy.shell.script import SUBSTITUTED, Fault, Redirect, Word

# Far beyond any script a person wrote; keeps the recursion below Python's own limit.
MAX_NESTING = 30

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_WORD_RUN = re.compile(r"[^ \t\n;&|<>()\\'\"$`*?\[{]+")
_QUOTED_RUN = re.compile(r"[^\"\\$`]+")
_HERE_RUN = re.compile(r"[^\\$`]+")
_BACKTICK_ESCAPE = re.compile(r"\\([$`\\])")
_ANSI_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8}))"
)
_ANSI_NAMED = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


class Unreadable(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


@dataclass(slots=True)
class WordDraft:
    shape: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    """The unquoted text; every quoted or unknown part is one NUL."""
    static: bool = True
    many: bool = False

    def plain(self, text: str) -> None:
        self.shape.append(text)
        self.bare.append(text)

    def quoted(self, text: str) -> None:
        self.shape.append(text)
        self.bare.append("\0")

    def runtime(self, shape: str, *, many: bool) -> None:
        self.shape.append(shape)
        self.bare.append("\0")
        self.static = False
        self.many = self.many or many

    @property
    def skeleton(self) -> str:
        return "".join(self.bare)

    def frozen(self) -> Word:
        bare = self.skeleton
        in_braces = bare[bare.find("{") : bare.rfind("}")] if "{" in bare else ""
        braces = "," in in_braces or ".." in in_braces
        globs = "*" in bare or "?" in bare or 0 <= bare.find("[") < bare.rfind("]")
        return Word("".join(self.shape), self.static and not braces and not globs, self.many or braces)


@dataclass(slots=True)
class RedirectDraft:
    operator: str
    descriptor: str
    target: Word
    line: int

    def frozen(self) -> Redirect:
        return Redirect(self.operator, self.target, self.line, self.descriptor)


@dataclass(slots=True)
class HereDocument:
    """A `<<` whose text begins after the next newline."""

    redirect: RedirectDraft
    delimiter: str
    literal: bool
    strip_tabs: bool


class WordReader:
    """Reads words from a text, and keeps the place in it."""

    def __init__(self, text: str, line: int, nesting: int) -> None:
        self.text = text
        self.pos = 0
        self.nesting = nesting
        self.first_line = line
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.pending: list[HereDocument] = []
        self.in_here_document = False

    # What the grammar around the words has to provide

    def read_nested(self) -> None:
        """Reads commands up to a closing parenthesis."""
        raise NotImplementedError

    def inner(self, text: str, line: int) -> WordReader:
        """A reader for a text inside of this one, whose commands count as this one's."""
        raise NotImplementedError

    def read_all(self) -> None:
        """Reads commands up to the end of the text."""
        raise NotImplementedError

    # Where we are

    def line(self) -> int:
        return self.first_line + bisect_right(self.newlines, self.pos - 1)

    def fail(self, reason: str) -> NoReturn:
        # Some reasons quote the script.
        raise Unreadable(Fault(self.line(), reason[:120]))

    def peek(self, ahead: int = 0) -> str:
        at = self.pos + ahead
        return self.text[at] if at < len(self.text) else ""

    def looking_at(self, text: str) -> bool:
        return self.text.startswith(text, self.pos)

    def enter(self) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail(f"nested deeper than {MAX_NESTING} levels")

    def expect(self, text: str) -> None:
        if not self.looking_at(text):
            self.fail(f"{text!r} is missing")
        self.pos += len(text)

    # Blanks

    def blanks(self) -> None:
        match = _BLANKS.match(self.text, self.pos)
        if match:
            self.pos = match.end()

    def line_break(self) -> None:
        """Steps over blanks, comments and newlines."""
        while True:
            self.blanks()
            if self.peek() == "#":
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
            if self.peek() != "\n":
                return
            self.newline()

    # Words

    def at_process_substitution(self) -> bool:
        return self.peek() in ("<", ">") and self.peek(1) == "("

    def word(self, *, empty: bool = False) -> WordDraft:
        draft = WordDraft()
        while True:
            if run := _WORD_RUN.match(self.text, self.pos):
                draft.plain(run.group())
                self.pos = run.end()
            char = self.peek()
            if char == "" or char in " \t\n;&|()":
                break
            if char in "<>":
                if not self.at_process_substitution():
                    break
                self.pos += 2
                self.substitution()
                draft.runtime(SUBSTITUTED, many=False)
            elif char == "\\":
                if self.peek(1) == "":
                    self.fail("the text ends in a backslash")
                if self.peek(1) != "\n":
                    draft.quoted(self.peek(1))
                self.pos += 2
            elif char == "'":
                draft.quoted(self.single_quoted())
            elif char == '"':
                self.double_quoted(draft)
            elif char in "$`":
                self.expansion(draft, quoted=False)
            else:
                draft.plain(char)
                self.pos += 1
        if not draft.bare and not empty:
            self.fail(f"unexpected {self.peek()!r}" if self.peek() else "the text ends too early")
        return draft

    def single_quoted(self) -> str:
        start = self.pos + 1
        end = self.text.find("'", start)
        if end < 0:
            self.fail("a single quote is not closed")
        self.pos = end + 1
        return self.on_one_line(start, end)

    def on_one_line(self, start: int, end: int) -> str:
        text = self.text[start:end]
        if self.pending and "\n" in text:
            self.fail("a here-document begins inside of quotes")
        return text

    def double_quoted(self, draft: WordDraft) -> None:
        start = self.pos
        self.pos += 1
        draft.quoted("")
        while True:
            if run := _QUOTED_RUN.match(self.text, self.pos):
                draft.quoted(run.group())
                self.pos = run.end()
            char = self.peek()
            if char == "":
                self.fail("a double quote is not closed")
            if char == '"':
                self.pos += 1
                self.on_one_line(start, self.pos)
                return
            if char == "\\":
                escaped = self.peek(1)
                if escaped != "\n":
                    draft.quoted(escaped if escaped in ("$", "`", '"', "\\") else "\\" + escaped)
                self.pos += 2
            else:
                self.expansion(draft, quoted=True)

    def expansion(self, draft: WordDraft, *, quoted: bool) -> None:
        """What begins with `$` or a backtick."""
        if self.peek() == "`":
            self.backticks(quoted)
            draft.runtime(SUBSTITUTED, many=not quoted)
            return
        following = self.peek(1)
        if following == "(":
            if self.peek(2) == "(":
                self.pos += 3
                self.arithmetic()
            else:
                self.pos += 2
                self.substitution()
            draft.runtime(SUBSTITUTED, many=not quoted)
        elif following == "{":
            self.braced(draft, quoted=quoted)
        elif following == "'" and not quoted:
            draft.quoted(self.ansi_quoted())
        elif following == '"' and not quoted:
            self.pos += 1
            self.double_quoted(draft)
        elif following == "[" or self.looking_at("$\\\n"):
            self.fail(f"{self.text[self.pos : self.pos + 2]!r} is not read here")
        elif match := _PARAMETER.match(self.text, self.pos + 1):
            self.pos = match.end()
            draft.runtime("$" + match.group(), many=not quoted or match.group() == "@")
        else:
            draft.quoted("$")
            self.pos += 1

    def substitution(self) -> None:
        """The commands of `$(…)`, `<(…)` or `>(…)`, and the closing parenthesis."""
        start = self.pos
        pending, self.pending = self.pending, []
        in_here_document, self.in_here_document = self.in_here_document, False
        self.read_nested()
        if self.pending:
            self.fail("a here-document has no text")
        self.expect(")")
        self.pending, self.in_here_document = pending, in_here_document
        self.on_one_line(start, self.pos)

    def backticks(self, quoted: bool) -> None:
        line, start = self.line(), self.pos + 1
        end = start
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            self.fail("a backtick is not closed")
        content = self.on_one_line(start, end)
        if quoted and '\\"' in content:
            self.fail("an escaped quote inside of backticks; write $(…)")
        inner = self.inner(_BACKTICK_ESCAPE.sub(r"\1", content), line)
        inner.read_all()
        self.pos = end + 1

    def arithmetic(self) -> None:
        """The rest of `((…))`, from after the two parentheses."""
        start = self.pos
        self.enter()
        depth = 2
        while depth:
            char = self.peek()
            if char in ("", "'", "\\"):
                self.fail("an arithmetic expression is not closed, or not plain")
            if char == '"':
                self.double_quoted(WordDraft())
                continue
            if char in "$`":
                self.expansion(WordDraft(), quoted=True)
                continue
            if char == "(":
                depth += 1
            elif char == ")":
                depth -= 1
                if depth == 1 and self.peek(1) != ")":
                    self.fail("'((' begins arithmetic; put a space between two opening parentheses")
            self.pos += 1
        self.on_one_line(start, self.pos)
        self.nesting -= 1

    def matched(self, closer: str) -> None:
        """Up to the closing bracket of a subscript."""
        start = self.pos
        depth = 1
        while depth:
            char = self.peek()
            if char in ("", "\\"):
                self.fail(f"{closer!r} is missing")
            elif char == "'":
                self.single_quoted()
                continue
            elif char == '"':
                self.double_quoted(WordDraft())
                continue
            elif char in "$`":
                self.expansion(WordDraft(), quoted=False)
                continue
            depth += (char == "[") - (char == closer)
            self.pos += 1
        self.on_one_line(start, self.pos)

    def braced(self, draft: WordDraft, *, quoted: bool) -> None:
        """`${…}`: a variable, whatever is done to it."""
        start = self.pos + 2
        self.pos = start
        self.enter()
        if self.peek() in ("", " ", "\t", "\n", "|"):
            self.fail("'${' must be followed by a name")
        while (char := self.peek()) != "}":
            if char == "":
                self.fail("'${' is not closed")
            elif char == "'":
                # Quotes something or not, depending on the operator: bash itself has to look twice.
                if quoted:
                    self.fail("a single quote inside of a quoted '${'")
                self.single_quoted()
            elif char == '"':
                if self.in_here_document:
                    self.fail("a quote inside of '${' in a here-document")
                self.double_quoted(WordDraft())
            elif char == "\\":
                self.pos += 2
            elif char in "$`":
                self.expansion(WordDraft(), quoted=quoted)
            elif self.at_process_substitution():
                self.fail("a process substitution inside of '${'")
            else:
                self.pos += 1
        content = self.on_one_line(start, self.pos)
        self.pos += 1
        self.nesting -= 1
        if content.endswith("@P"):
            self.fail("'@P' runs what the variable holds")
        name = _PARAMETER.match(content)
        shape = f"${name.group()}" if name and not content.startswith("#") else SUBSTITUTED
        draft.runtime(shape, many=not quoted or "@" in content)

    def ansi_quoted(self) -> str:
        start = self.pos + 2
        end = start
        while end < len(self.text) and self.text[end] != "'":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            self.fail("a quote is not closed")
        content = self.on_one_line(start, end)
        self.pos = end + 1
        decoded, at = [], 0
        while at < len(content):
            if content[at] != "\\":
                decoded.append(content[at])
                at += 1
                continue
            escape = _ANSI_ESCAPE.match(content, at)
            if not escape:
                self.fail(f"the escape {content[at : at + 2]!r} in $'…' is not read here")
            decoded.append(_unescaped(escape))
            at = escape.end()
        if "" in decoded:
            self.fail("an escape in $'…' stands for no ASCII character")
        return "".join(decoded)

    # Here-documents

    def newline(self) -> None:
        """Steps over a newline, and over the here-documents that begin after it."""
        self.pos += 1
        pending, self.pending = self.pending, []
        for document in pending:
            line = self.line()
            body: list[str] = []
            while (text := self.here_line(document)) != document.delimiter:
                body.append(text + "\n")
            document.redirect.line = line
            content = "".join(body)
            if document.literal:
                document.redirect.target = Word(content)
            else:
                document.redirect.target = self.inner(content, line).here_text()

    def here_line(self, document: HereDocument) -> str:
        parts: list[str] = []
        while True:
            if self.pos >= len(self.text):
                self.fail(f"the here-document has no end mark {document.delimiter!r}")
            end = self.text.find("\n", self.pos)
            end = len(self.text) if end < 0 else end
            part = self.text[self.pos : end]
            self.pos = min(end + 1, len(self.text))
            # bash joins lines before it looks for the end mark.
            joined = not document.literal and (len(part) - len(part.rstrip("\\"))) % 2 == 1
            parts.append(part[:-1] if joined else part)
            if not joined:
                text = "".join(parts)
                return text.lstrip("\t") if document.strip_tabs else text

    def here_text(self) -> Word:
        self.in_here_document = True
        draft = WordDraft()
        while self.pos < len(self.text):
            if run := _HERE_RUN.match(self.text, self.pos):
                draft.quoted(run.group())
                self.pos = run.end()
            elif self.peek() == "\\":
                draft.quoted(
                    self.peek(1) if self.peek(1) in ("\\", "$", "`") else self.text[self.pos : self.pos + 2]
                )
                self.pos += 2
            else:
                self.expansion(draft, quoted=True)
        return draft.frozen()


def _unescaped(escape: re.Match[str]) -> str:
    named, octal, *hexadecimal = escape.groups()
    if named:
        return _ANSI_NAMED[named]
    code = int(octal, 8) if octal else int(next(filter(None, hexadecimal)), 16)
    return chr(code) if 0 < code < 128 else ""
