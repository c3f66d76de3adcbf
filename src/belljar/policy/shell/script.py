"""What is known of a script before it runs: its commands, word by word."""

from __future__ import annotations

from dataclasses import dataclass

SUBSTITUTED = "$(…)"
"""Stands in `Word.shape` for a part that is no plain variable."""


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
