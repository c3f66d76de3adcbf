"""How a wrong word is shown to a person, and which right word is near it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "printable", "shown"]

_LONGEST = 60


def printable(text: str) -> str:
    """`text` on one line, with what cannot be printed escaped."""
    return repr(text)[1:-1]


def shown(text: str) -> str:
    """`text` in backticks, printable, and cut where it is long."""
    return f"`{printable(text if len(text) <= _LONGEST else text[:_LONGEST] + '…')}`"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of a sentence that names the nearest of `words`, or nothing."""
    if len(word) > _LONGEST:
        return ""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
