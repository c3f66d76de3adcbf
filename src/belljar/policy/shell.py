"""Reads a shell script into the simple commands it would run, without running anything.

    read_script("a=1 ls | wc -l; echo $(date)")  ─►  ls · wc -l · date · echo $(…)

Every simple command is found: in pipes, lists, substitutions, function bodies and control flow.
A word keeps what can be known of it before the run: quotes are removed, and what only the run decides
(variables, substitutions, globs) is marked, never guessed.

The reader is exact or gives up: where bash and a reader could differ on where a command begins, it
stops with a fault that names the line, and the caller decides what that means. tree-sitter's bash
grammar was tried first; it reads `r\\⏎m` as two words and loses substitutions in patterns, without an
error, and 50 kB of `a|a|a|` take it gigabytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

MAX_SCRIPT_CHARS = 1_000_000
# Far beyond any script a person wrote; keeps the recursion below Python's own limit.
MAX_NESTING = 30

SUBSTITUTED = "$(…)"
"""Stands in `Word.shape` for a part that is no plain variable."""

FETCHERS = frozenset({"curl", "wget", "aria2c", "fetch", "http", "https", "nc", "ncat", "netcat", "socat", "ftp"})
"""Programs that print what they got from the network."""

DECLARATIONS = frozenset({"declare", "typeset", "local", "export", "readonly"})

_OPENERS = frozenset({"{", "[[", "if", "while", "until", "for", "select", "case"})
_RESERVED = _OPENERS | {"}", "!", "then", "elif", "else", "fi", "do", "done", "in", "esac", "function", "time", "coproc"}
_KEYWORD = re.compile(
    r"(?:\[\[|[{}!]|if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time|coproc)"
    r"(?=[ \t\n;&|<>()]|\\\n[ \t]|\Z)"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_REDIRECT = re.compile(
    r"(?:(?P<fd>[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\})(?=[<>]))?(?P<op>&>>|&>|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>)"
)
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_WORD_RUN = re.compile(r"[^ \t\n;&|<>()\\'\"$`*?\[{]+")
_QUOTED_RUN = re.compile(r"[^\"\\$`]+")
_HERE_RUN = re.compile(r"[^\\$`]+")
_ASSIGNMENT_SHAPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ANSI_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8}))"
)
_ANSI_NAMED = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, as far as it can be known before the run."""

    shape: str
    """Without quotes; a variable stands as `$NAME`, any other unknown part as `$(…)`."""
    static: bool = True
    """Whether `shape` is exactly what the program will be given."""
    many: bool = False
    """Whether it may become several words, of any spelling, or none."""

    @property
    def text(self) -> str | None:
        return self.shape if self.static else None

    @property
    def may_be_option(self) -> bool:
        if self.static or self.shape.startswith("-"):
            return self.shape.startswith("-")
        return self.many or self.shape.startswith(("$", "*", "?", "["))


RUNTIME_WORDS = Word(SUBSTITUTED, static=False, many=True)
"""Any number of words that only the run decides."""


@dataclass(frozen=True, slots=True)
class Assignment:
    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class Redirect:
    operator: str
    """As written, without the descriptor; `<<-` is `<<`."""
    target: Word
    """The file; for `<<` and `<<<` the text itself."""
    line: int
    """Where the target, or the text of a here-document, begins."""
    descriptor: str = ""

    @property
    def is_stdin(self) -> bool:
        return self.operator[0] == "<" and self.descriptor in ("", "0")


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. Without words it only assigns or redirects."""

    words: tuple[Word, ...]
    line: int
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    inside: tuple[str, ...] = ()
    """Names of the functions whose bodies it stands in."""
    concurrent: bool = False
    """Runs beside others: part of a pipe, or in the background."""
    fetched: bool = False
    """What a network program printed reaches it, by pipe or substitution."""
    calls_function: bool = False
    """Its name was surely defined as a function above, so that no program of that name runs."""

    @property
    def name(self) -> str | None:
        """The first word; None if there is none, or only the run decides it."""
        return self.words[0].text if self.words else None

    def __str__(self) -> str:
        text = " ".join(word.shape for word in self.words[:12])
        return text if len(text) <= 80 and len(self.words) <= 12 else text[:79] + "…"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a script could not be read to its end."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Script:
    commands: tuple[Command, ...]
    """In the order they were completed: what is inside a substitution comes before its command."""
    fault: Fault | None = None
    """Set if the text could not be read; then `commands` are those before it."""
    bash_only: Fault | None = None
    """The first construct in which other shells would run something else: to dash, `((rm))` runs rm."""


def read_script(text: str) -> Script:
    """The commands of a script. Never raises; takes time linear in the text."""
    if len(text) > MAX_SCRIPT_CHARS:
        return Script((), Fault(1, f"the script is longer than {MAX_SCRIPT_CHARS} characters"))
    reader = _Reader(text)
    fault = None
    try:
        reader.read_all()
    except _Unreadable as exc:
        fault = Fault(exc.line, exc.reason)
    return Script(tuple(draft.frozen() for draft in reader.commands), fault, next(iter(reader.bash_only), None))


class _Unreadable(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class _WordDraft:
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
class _RedirectDraft:
    operator: str
    descriptor: str
    target: Word
    line: int

    def frozen(self) -> Redirect:
        return Redirect(self.operator, self.target, self.line, self.descriptor)


@dataclass(slots=True)
class _CommandDraft:
    line: int
    inside: tuple[str, ...]
    words: list[Word] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    redirects: list[_RedirectDraft] = field(default_factory=list)
    concurrent: bool = False
    fetched: bool = False
    calls_function: bool = False

    @property
    def fetches(self) -> bool:
        # Any word, because the program may stand behind `sudo` or `timeout 5`.
        return any(word.static and word.shape.rpartition("/")[2] in FETCHERS for word in self.words)

    def frozen(self) -> Command:
        return Command(
            tuple(self.words),
            self.line,
            tuple(self.assignments),
            tuple(redirect.frozen() for redirect in self.redirects),
            self.inside,
            self.concurrent,
            self.fetched,
            self.calls_function,
        )


@dataclass(slots=True)
class _HereDocument:
    """A `<<` whose text begins after the next newline."""

    redirect: _RedirectDraft
    delimiter: str
    literal: bool
    strip_tabs: bool


class _Reader:
    """Recursive descent over the text, in bash's own order of decisions."""

    def __init__(self, text: str, *, line: int = 1, parent: _Reader | None = None) -> None:
        self.text = text
        self.pos = 0
        self.first_line = line
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.pending: list[_HereDocument] = []
        self.in_here_document = False
        self.commands: list[_CommandDraft] = parent.commands if parent else []
        self.bash_only: list[Fault] = parent.bash_only if parent else []
        self.inside: tuple[str, ...] = parent.inside if parent else ()
        self.nesting: int = parent.nesting + 1 if parent else 0
        self.functions: set[str] = set()

    # Where we are

    def line(self) -> int:
        return self.first_line + bisect_right(self.newlines, self.pos - 1)

    def fail(self, reason: str) -> NoReturn:
        raise _Unreadable(self.line(), reason)

    def peek(self, ahead: int = 0) -> str:
        at = self.pos + ahead
        return self.text[at] if at < len(self.text) else ""

    def looking_at(self, text: str) -> bool:
        return self.text.startswith(text, self.pos)

    def note_bash_only(self, construct: str) -> None:
        self.bash_only.append(Fault(self.line(), f"only bash reads {construct!r} as it is meant"))

    def enter(self) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail(f"nested deeper than {MAX_NESTING} levels")

    # Lists and pipelines

    def read_all(self) -> None:
        control = _CONTROL.search(self.text)
        if control:
            self.pos = control.start()
            self.fail(f"the control character {control.group()!r} has no place in a script")
        self.list_until(frozenset(), top=self.nesting == 0)
        if self.pos < len(self.text):
            self.fail(f"unexpected {self.peek()!r}")
        if self.pending:
            self.fail("a here-document has no text")

    def list_until(self, closers: frozenset[str], *, top: bool = False, case: bool = False) -> str:
        """Reads commands up to a closing keyword, which it consumes and returns, or up to `)` or the end."""
        self.enter()
        closed_by = ""
        while True:
            self.line_break()
            keyword = _KEYWORD.match(self.text, self.pos)
            if keyword and keyword.group() in closers:
                self.pos = keyword.end()
                closed_by = keyword.group()
                break
            if self.peek() in ("", ")"):
                break
            first = len(self.commands)
            defined = self.and_or()
            self.blanks()
            char = self.peek()
            if char == ";":
                if self.peek(1) in (";", "&"):
                    if not case:
                        self.fail("';;' outside of a case")
                    closed_by = ";;"
                    self.pos += 3 if self.looking_at(";;&") else 2
                    break
                self.pos += 1
            elif char == "&":
                self.pos += 1
                defined = None
                for command in self.commands[first:]:
                    command.concurrent = True
            elif char not in ("", "\n", ")", "#"):
                self.fail(f"unexpected {char!r}")
            if top and defined is not None:
                self.functions.add(defined)
        self.nesting -= 1
        return closed_by

    def and_or(self) -> str | None:
        """Returns the name of a function if this defines one and surely does so."""
        defined = self.pipeline()
        while self.looking_at("&&") or self.looking_at("||"):
            self.pos += 2
            self.line_break()
            self.pipeline()
            defined = None
        return defined

    def pipeline(self) -> str | None:
        first = len(self.commands)
        defined = self.prefixed_command()
        parts = [len(self.commands)]
        while self.peek() == "|" and self.peek(1) != "|":
            self.pos += 2 if self.peek(1) == "&" else 1
            self.line_break()
            self.prefixed_command(later=True)
            parts.append(len(self.commands))
        if len(parts) == 1:
            return defined
        fetched = False
        for end in parts:
            for command in self.commands[first:end]:
                command.concurrent = True
                command.fetched = command.fetched or fetched
            fetched = fetched or any(command.fetches for command in self.commands[first:end])
            first = end
        return None

    def prefixed_command(self, *, later: bool = False) -> str | None:
        """A command, perhaps behind `!` or `time`, which are words of the language here.

        In a `later` part of a pipeline, `time` is a program like any other.
        """
        prefixed = False
        while True:
            self.blanks()
            keyword = _KEYWORD.match(self.text, self.pos)
            if not keyword or keyword.group() not in ("!", "time"):
                break
            prefixed = True
            self.pos = keyword.end()
            if keyword.group() == "time" and later:
                self.simple_command(Word("time"))
                return None
            if keyword.group() == "time":
                self.blanks()
                if self.looking_at("-p") and self.peek(2) in (" ", "\t"):
                    self.pos += 2
                    self.blanks()
                if self.peek() == "-":
                    self.fail("'time' takes no option but -p")
        if prefixed and self.peek() in ("", "\n", ";", "|", "&", ")"):
            self.blanks()
            return None
        defined = self.command()
        self.blanks()
        return None if prefixed else defined

    # Commands

    def command(self) -> str | None:
        keyword = _KEYWORD.match(self.text, self.pos)
        if keyword and keyword.group() == "function":
            return self.function_keyword(keyword.end())
        if self.peek() != "(" and not (keyword and keyword.group() in _OPENERS):
            return self.simple_command()
        self.compound()
        return None

    def compound(self) -> None:
        line = self.line()
        if self.looking_at("(("):
            self.note_bash_only("((")
            self.pos += 2
            self.arithmetic()
        elif self.peek() == "(":
            self.pos += 1
            self.list_until(frozenset())
            self.expect(")")
        else:
            keyword = _KEYWORD.match(self.text, self.pos)
            word = keyword.group() if keyword else ""
            self.pos += len(word)
            if word == "{":
                self.block("}")
            elif word == "[[":
                self.note_bash_only("[[")
                self.conditional()
            elif word == "if":
                self.block("then")
                while True:
                    closed_by = self.block("elif", "else", "fi")
                    if closed_by == "fi":
                        break
                    self.block("then" if closed_by == "elif" else "fi")
                    if closed_by == "else":
                        break
            elif word in ("while", "until"):
                self.block("do")
                self.block("done")
            elif word in ("for", "select"):
                self.loop()
            elif word == "case":
                self.case()
            else:
                self.fail("a compound command was expected")
        self.compound_redirects(line)

    def block(self, *closers: str) -> str:
        closed_by = self.list_until(frozenset(closers))
        if not closed_by:
            self.fail(f"{closers[-1]!r} is missing")
        return closed_by

    def expect(self, text: str) -> None:
        if not self.looking_at(text):
            self.fail(f"{text!r} is missing")
        self.pos += len(text)

    def compound_redirects(self, line: int) -> None:
        draft = _CommandDraft(line, self.inside)
        while True:
            self.blanks()
            match = _REDIRECT.match(self.text, self.pos)
            if not match:
                break
            self.redirect(draft, match)
        if draft.redirects:
            self.commands.append(draft)

    def loop(self) -> None:
        self.blanks()
        if self.looking_at("(("):
            self.pos += 2
            self.arithmetic()
        else:
            name = self.plain_word("a variable")
            draft = _CommandDraft(self.line(), self.inside)
            draft.assignments.append(Assignment(name, RUNTIME_WORDS))
            self.commands.append(draft)
            self.line_break()
            if _FOR_IN.match(self.text, self.pos):
                self.pos += 2
                while True:
                    self.blanks()
                    if self.peek() in ("", ";", "\n", "#"):
                        break
                    self.word()
        self.blanks()
        if self.peek() == ";":
            self.pos += 1
        self.line_break()
        keyword = _KEYWORD.match(self.text, self.pos)
        if not keyword or keyword.group() not in ("do", "{"):
            self.fail("'do' is missing")
        self.pos = keyword.end()
        self.block("done" if keyword.group() == "do" else "}")

    def case(self) -> None:
        self.blanks()
        self.word()
        self.line_break()
        if self.plain_word("'in'") != "in":
            self.fail("'in' is missing")
        while True:
            self.line_break()
            keyword = _KEYWORD.match(self.text, self.pos)
            if keyword and keyword.group() == "esac":
                self.pos = keyword.end()
                return
            if self.peek() == "(":
                self.pos += 1
                self.blanks()
            self.word()
            self.blanks()
            while self.peek() == "|":
                self.pos += 1
                self.blanks()
                self.word()
                self.blanks()
            self.expect(")")
            closed_by = self.list_until(frozenset({"esac"}), case=True)
            if closed_by == "esac":
                return
            if not closed_by:
                self.fail("'esac' is missing")

    def function_keyword(self, end: int) -> str:
        self.pos = end
        self.blanks()
        name = self.plain_word("a name")
        self.blanks()
        if self.peek() == "(":
            self.empty_parentheses()
        return self.function_body(name)

    def empty_parentheses(self) -> None:
        self.pos += 1
        self.blanks()
        self.expect(")")

    def function_body(self, name: str) -> str:
        self.line_break()
        keyword = _KEYWORD.match(self.text, self.pos)
        if self.peek() != "(" and not (keyword and keyword.group() in _OPENERS):
            self.fail("a function needs a body in braces")
        outside = self.inside
        self.inside = (*outside, name)
        self.compound()
        self.inside = outside
        return name

    def plain_word(self, what: str) -> str:
        draft = self.word()
        if "\0" in draft.skeleton:
            self.fail(f"{what} was expected")
        return draft.skeleton

    def conditional(self) -> None:
        while True:
            self.blanks()
            char = self.peek()
            if char == "\n":
                self.newline()
            elif _CONDITIONAL_END.match(self.text, self.pos):
                self.pos += 2
                return
            elif char in ("", ";", "#"):
                self.fail("']]' is missing")
            elif char in "()&|<>" and not self.at_process_substitution():
                self.pos += 1
            else:
                self.word()

    def simple_command(self, name: Word | None = None) -> str | None:
        nested = len(self.commands)
        draft = _CommandDraft(self.line(), self.inside, [name] if name else [])
        while True:
            self.blanks()
            char = self.peek()
            if char in ("", "\n", ";", ")", "|", "#") or (char == "&" and self.peek(1) != ">"):
                break
            if char == "(":
                if len(draft.words) != 1 or draft.assignments or draft.redirects or not draft.words[0].static:
                    self.fail("unexpected '('")
                self.empty_parentheses()
                return self.function_body(draft.words[0].shape)
            redirect = _REDIRECT.match(self.text, self.pos)
            if redirect and not self.at_process_substitution():
                self.redirect(draft, redirect)
            elif not draft.words and self.assignment(draft):
                pass
            elif draft.words and draft.words[0].text in DECLARATIONS and self.assignment(draft):
                assignment = draft.assignments.pop()
                value = assignment.value
                draft.words.append(Word(f"{assignment.name}={value.shape}", value.static))
            else:
                self.argument(draft)
        if not (draft.words or draft.assignments or draft.redirects):
            self.fail(f"unexpected {self.peek()!r}" if self.peek() else "a command is missing")
        draft.fetched = any(command.fetches for command in self.commands[nested:])
        draft.calls_function = bool(draft.words) and draft.words[0].text in self.functions
        self.commands.append(draft)
        return None

    def argument(self, draft: _CommandDraft) -> None:
        line = self.line()
        word = self.word()
        if not draft.words:
            draft.line = line
            # Out of place, or split by a line continuation.
            if word.skeleton in _RESERVED or _ASSIGNMENT_SHAPE.match(word.skeleton):
                self.fail(f"unexpected {word.skeleton!r}")
        draft.words.append(word.frozen())

    def assignment(self, draft: _CommandDraft) -> bool:
        """Reads `NAME=value`, `NAME+=value` or `NAME[…]=value`, if one is here."""
        match = _NAME.match(self.text, self.pos)
        if not match:
            return False
        after = self.text[match.end() : match.end() + 2]
        if after[:1] != "=" and after != "+=" and after[:1] != "[":
            return False
        self.pos = match.end()
        if after[0] == "[":
            self.pos += 1
            self.matched("]")
        if self.peek() == "+":
            self.pos += 1
        self.expect("=")
        if self.peek() == "(":
            self.array()
            value = RUNTIME_WORDS
        else:
            value = self.word(empty=True).frozen()
        draft.assignments.append(Assignment(match.group(), value))
        return True

    def array(self) -> None:
        self.pos += 1
        while True:
            self.line_break()
            if self.peek() == ")":
                break
            self.word()
        self.pos += 1
        if self.peek() not in ("", " ", "\t", "\n", ";", "&", "|", "<", ">", ")"):
            self.fail("something is attached to the end of an array")

    # Redirections

    def redirect(self, draft: _CommandDraft, match: re.Match[str]) -> None:
        operator = match.group("op")
        if operator.startswith("&"):
            self.note_bash_only(operator)
        self.pos = match.end()
        self.blanks()
        start, line = self.pos, self.line()
        word = self.word()
        redirect = _RedirectDraft(operator.removesuffix("-") if operator == "<<-" else operator, match.group("fd") or "", word.frozen(), line)
        draft.redirects.append(redirect)
        if redirect.operator != "<<":
            return
        written = self.text[start : self.pos]
        if "$" in written or "`" in written or "\n" in written:
            self.fail("the end mark of a here-document must be a plain word")
        literal = "\0" in word.skeleton
        self.pending.append(_HereDocument(redirect, "".join(word.shape), literal, operator == "<<-"))

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
                inner = _Reader(content, line=line, parent=self)
                document.redirect.target = inner.here_text()

    def here_line(self, document: _HereDocument) -> str:
        text = ""
        while True:
            if self.pos >= len(self.text):
                self.fail(f"the here-document has no end mark {document.delimiter!r}")
            end = self.text.find("\n", self.pos)
            end = len(self.text) if end < 0 else end
            text += self.text[self.pos : end]
            self.pos = min(end + 1, len(self.text))
            # bash joins lines before it looks for the end mark.
            if document.literal or (len(text) - len(text.rstrip("\\"))) % 2 == 0:
                return text.lstrip("\t") if document.strip_tabs else text
            text = text[:-1]

    def here_text(self) -> Word:
        self.enter()
        self.in_here_document = True
        draft = _WordDraft()
        while self.pos < len(self.text):
            if run := _HERE_RUN.match(self.text, self.pos):
                draft.quoted(run.group())
                self.pos = run.end()
            elif self.peek() == "\\":
                draft.quoted(self.peek(1) if self.peek(1) in ("\\", "$", "`") else self.text[self.pos : self.pos + 2])
                self.pos += 2
            else:
                self.expansion(draft, quoted=True)
        return draft.frozen()

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

    def word(self, *, empty: bool = False) -> _WordDraft:
        draft = _WordDraft()
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

    def double_quoted(self, draft: _WordDraft) -> None:
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

    def expansion(self, draft: _WordDraft, *, quoted: bool) -> None:
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
        self.list_until(frozenset())
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
        inner = _Reader(re.sub(r"\\([$`\\])", r"\1", content), line=line, parent=self)
        inner.enter()
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
                self.double_quoted(_WordDraft())
                continue
            if char in "$`":
                self.expansion(_WordDraft(), quoted=True)
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
                self.double_quoted(_WordDraft())
                continue
            elif char in "$`":
                self.expansion(_WordDraft(), quoted=False)
                continue
            depth += (char == "[") - (char == closer)
            self.pos += 1
        self.on_one_line(start, self.pos)

    def braced(self, draft: _WordDraft, *, quoted: bool) -> None:
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
                self.double_quoted(_WordDraft())
            elif char == "\\":
                self.pos += 2
            elif char in "$`":
                self.expansion(_WordDraft(), quoted=quoted)
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


_FOR_IN = re.compile(r"in(?=[ \t\n;]|\\\n)")
_CONDITIONAL_END = re.compile(r"\]\](?=[ \t\n;&|<>()]|\Z)")


def _unescaped(escape: re.Match[str]) -> str:
    named, octal, *hexadecimal = escape.groups()
    if named:
        return _ANSI_NAMED[named]
    code = int(octal, 8) if octal else int(next(filter(None, hexadecimal)), 16)
    return chr(code) if 0 < code < 128 else ""


def static_words(texts: Iterable[str]) -> tuple[Word, ...]:
    return tuple(Word(text) for text in texts)
