"""What a program wrote, made fit for a person's terminal.

Output is hostile text: it can clear the screen, write to the clipboard or turn lines around. On a
terminal, colours stay and everything else that would act is shown instead. Elsewhere bytes pass as
they are.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable
from typing import IO

_COLOUR = r"\x1b\[[0-9;:]{0,32}m"
_ACTING = re.compile(
    rf"({_COLOUR})|([\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069])"
)
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")


class Screen:
    """Writes one stream of a program to one of ours."""

    def __init__(self, target: IO[str]) -> None:
        self._target = target
        self._for_person = target.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        """The start of what may become a colour."""

    def write(self, data: bytes) -> None:
        if not self._for_person:
            self._target.flush()
            self._target.buffer.write(data)  # type: ignore[attr-defined]
            self._target.flush()
            return
        text = self._held + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._held = text[unfinished.start() :] if unfinished else ""
        self._show(text[: len(text) - len(self._held)])

    def close(self) -> None:
        if self._for_person:
            self._show(self._held + self._decoder.decode(b"", final=True))
            self._target.write("\x1b[0m")  # the program's colours end with it
            self._target.flush()

    def _show(self, text: str) -> None:
        self._target.write(harmless(text, colours=True))
        self._target.flush()


class LastingScreen(Screen):
    """One whose program goes on when nobody reads it any more: the rest is let go, and `failed` says why."""

    failed: OSError | None = None

    def write(self, data: bytes) -> None:
        self._unless_failed(lambda: super(LastingScreen, self).write(data))

    def close(self) -> None:
        self._unless_failed(super().close)

    def _unless_failed(self, work: Callable[[], None]) -> None:
        if self.failed is None:
            try:
                work()
            except OSError as error:
                self.failed = error
                silence(self._target)


def silence(target: IO[str]) -> None:
    """From now on it leads nowhere. What lies in its buffer would fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target.fileno())
    os.close(nowhere)


def harmless(text: str, *, colours: bool = False) -> str:
    """The text with everything that would act on a terminal shown as a sign instead."""

    def shown(found: re.Match[str]) -> str:
        colour, sign = found.groups()
        if colour:
            return str(colour) if colours else "␛" + str(colour)[1:]
        point = ord(sign)
        if point == 0x0D:
            return "\r" if colours else "␍"
        return chr(0x2400 + point) if point < 0x20 else "␡" if point == 0x7F else f"\\u{point:04x}"

    return _ACTING.sub(shown, text)
