from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from belljar.cli.terminal import Screen, harmless


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*chunks: bytes) -> str:
    terminal = Terminal()
    screen = Screen(terminal)
    for chunk in chunks:
        screen.write(chunk)
    screen.close()
    return terminal.getvalue()


def test_colours_stay_and_end_with_the_program() -> None:
    assert shown(b"\x1b[31mred") == "\x1b[31mred\x1b[0m"


def test_a_colour_cut_in_two_is_still_one() -> None:
    assert shown(b"a\x1b[3", b"1mred") == "a\x1b[31mred\x1b[0m"


def test_what_would_act_is_shown_instead() -> None:
    clipboard = shown(b"\x1b]52;c;aGk=\x07 \x1b[2J")
    assert "\x1b]" not in clipboard
    assert "\x1b[2J" not in clipboard
    assert "\N{SYMBOL FOR ESCAPE}[2J" in clipboard


def test_a_turned_around_line_is_shown_as_it_is() -> None:
    assert "\u202e" not in shown("x\u202eevil".encode())


def test_a_file_gets_the_very_bytes() -> None:
    raw = io.BytesIO()
    target = io.TextIOWrapper(raw, encoding="utf-8")
    screen = Screen(target)
    screen.write(b"\x1b[2J\xff\x00")
    screen.close()
    assert raw.getvalue() == b"\x1b[2J\xff\x00"


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_no_bytes_reach_a_terminal_as_a_command(chunks: list[bytes]) -> None:
    import re

    text = re.sub(r"\x1b\[[0-9;:]*m", "", shown(*chunks))
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@given(st.text(max_size=50))
def test_a_name_in_a_table_cannot_break_its_line(text: str) -> None:
    assert not {"\r", "\x1b", "\x07", "\u2028"} & set(harmless(text))
