"""The grammar around the words: from a text to the commands it would run.

    read_script("a=1 ls | wc -l; echo $(date)")  ─►  ls · wc -l · date · echo $(…)

Every simple command is found: in pipes, lists, substitutions, function bodies and control flow.

The reader is exact or gives up: where bash and a reader could differ on where a command begins, it
stops with a fault that names the line, and the caller decides what that means. tree-sitter's bash
grammar was tried first. Without an error it takes `r\\⏎m` for two words and loses the substitutions
in patterns, and 50 kB of `a|a|a|` cost it gigabytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice

from belljar.policy.shell.script import RUNTIME_WORDS, Assignment, Command, Fault, Script, Word
from belljar.policy.shell.words import HereDocument, RedirectDraft, Unreadable, WordReader

# About two seconds of reading; text in one piece, such as a here-document of base64, is cheap.
MAX_CHARS = 1_000_000
MAX_TOKENS = 50_000
_TOKEN = re.compile(r"\w+|[^\w \t]")

FETCHERS = frozenset("aria2c curl fetch ftp http https nc ncat netcat socat wget".split())
"""Programs that print what they got from the network."""

DECLARATIONS = frozenset({"declare", "typeset", "local", "export", "readonly"})

_OPENERS = frozenset({"{", "[[", "if", "while", "until", "for", "select", "case"})
_RESERVED = _OPENERS.union("} ! then elif else fi do done in esac function time coproc".split())
_KEYWORD = re.compile(
    r"(?:\[\[|[{}!]|if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time|coproc)"
    r"(?=[ \t\n;&|<>()]|\\\n[ \t]|\Z)"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REDIRECT = re.compile(
    r"(?:(?P<fd>[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\})(?=[<>]))?(?P<op>&>>|&>|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>)"
)
_ASSIGNMENT_SHAPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_FOR_IN = re.compile(r"in(?=[ \t\n;]|\\\n)")
_CONDITIONAL_END = re.compile(r"\]\](?=[ \t\n;&|<>()]|\Z)")


def read_script(text: str) -> Script:
    """The commands of a script. Never raises; takes time linear in the text."""
    if len(text) > MAX_CHARS or any(islice(_TOKEN.finditer(text), MAX_TOKENS, None)):
        return Script((), Fault(1, "the script is too long to be read"))
    reader = _ScriptReader(text)
    fault = None
    try:
        reader.read_all()
    except Unreadable as exc:
        fault = exc.fault
    return Script(
        tuple(draft.frozen() for draft in reader.commands), fault, next(iter(reader.bash_only), None)
    )


@dataclass(slots=True)
class _CommandDraft:
    line: int
    inside: tuple[str, ...]
    words: list[Word] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    redirects: list[RedirectDraft] = field(default_factory=list)
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


class _ScriptReader(WordReader):
    """Recursive descent over the text."""

    def __init__(self, text: str, line: int = 1, parent: _ScriptReader | None = None) -> None:
        super().__init__(text, line, parent.nesting + 1 if parent else 0)
        self.commands: list[_CommandDraft] = parent.commands if parent else []
        self.bash_only: list[Fault] = parent.bash_only if parent else []
        self.inside: tuple[str, ...] = parent.inside if parent else ()
        self.functions: set[str] = set()

    def inner(self, text: str, line: int) -> _ScriptReader:
        reader = _ScriptReader(text, line, self)
        reader.enter()
        return reader

    def read_nested(self) -> None:
        self.list_until(frozenset())

    def note_bash_only(self, construct: str) -> None:
        self.bash_only.append(Fault(self.line(), f"only bash reads {construct!r} as it is meant"))

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
        redirect = RedirectDraft(operator.removesuffix("-"), match.group("fd") or "", word.frozen(), line)
        draft.redirects.append(redirect)
        if redirect.operator != "<<":
            return
        written = self.text[start : self.pos]
        if "$" in written or "`" in written or "\n" in written:
            self.fail("the end mark of a here-document must be a plain word")
        literal = "\0" in word.skeleton
        self.pending.append(HereDocument(redirect, "".join(word.shape), literal, operator == "<<-"))
