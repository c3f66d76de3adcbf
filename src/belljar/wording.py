"""How a message names what is wrong: harmless, short, and with the nearest word that would be right."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest", "printable", "quoted"]


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message that names the nearest of `known`, or nothing where none is near."""
    import difflib

    near = difflib.get_close_matches(word[:100], known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def printable(value: object) -> str:
    """Text from outside, fit for a message: on one line, nothing a terminal obeys, not endless."""
    text = str(value)
    shown = text if len(text) <= 200 else text[:199] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def quoted(value: object) -> str:
    return f"`{printable(value)}`"
