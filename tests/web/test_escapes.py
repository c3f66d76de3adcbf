"""What is written for a terminal, read by itself: the same however it is cut, bounded, and nothing but text."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.web.consoles import Console

READ = """
async (pieces) => {
  const { Ansi } = await import("./console/ansi.js");
  const reader = new Ansi();
  return pieces.flatMap((piece) => reader.read(piece)).map(({ text, style }) => [text, style]);
}
"""
SHOW = """
async ([pieces, rows, columns]) => {
  const { Screen } = await import("./console/screen.js");
  const screen = new Screen(rows, columns);
  pieces.forEach((piece) => screen.write(piece));
  return {
    lines: screen.lines.map((line) => line.map((cell) => cell.text).join("")),
    cursor: [screen.row, screen.column],
    scrolledOff: screen.scrolledOff.length,
    styles: [...new Set(screen.lines.flat().map((cell) => cell.style))],
  };
}
"""


def read(console: Console, *pieces: str) -> list[Any]:
    found: list[Any] = console.page.evaluate(READ, pieces)
    return found


def show(console: Console, *pieces: str, rows: int = 4, columns: int = 8) -> dict[str, Any]:
    found: dict[str, Any] = console.page.evaluate(SHOW, [pieces, rows, columns])
    return found


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        pytest.param("\x1b[31mr\x1b[0mp", [["r", "red"], ["p", ""]], id="colour"),
        pytest.param("\x1b[1;4;92mx", [["x", "bold underline bright-green"]], id="several"),
        pytest.param("\x1b[1mx\x1b[22my", [["x", "bold"], ["y", ""]], id="off-again"),
        pytest.param("\x1b[38;5;196mx", [["x", "bright-red"]], id="of-256"),
        pytest.param("\x1b[48;2;0;0;255mx", [["x", "on-bright-blue"]], id="of-all"),
        pytest.param("\x1b[41;37mx\x1b[mx", [["x", "white on-red"], ["x", ""]], id="background"),
        pytest.param("a\x1b[2J\x1b[10;10Hb", [["ab", ""]], id="moves-are-dropped"),
        pytest.param("a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", [["abc", ""]], id="titles-and-links"),
        pytest.param("a\x00\x08\x7f\x9bb", [["ab", ""]], id="control-characters"),
        pytest.param("a\rb", [["a", ""], ["\r", ""], ["b", ""]], id="line-restarted"),
        pytest.param("\x1b[38;5mx\x1b[999;constructormy", [["xonstructormy", ""]], id="nonsense"),
    ],
)
def test_colours_become_classes_and_the_rest_is_dropped(
    console: Console, text: str, pieces: list[Any]
) -> None:
    assert read(console, text) == pieces
    assert "".join(one for one, _ in read(console, *text)) == "".join(one for one, _ in pieces)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("ab\r\ncd", ["ab", "cd", "", ""], id="lines"),
        pytest.param("0123456789", ["01234567", "89", "", ""], id="wrapped"),
        pytest.param("1\r\n2\r\n3\r\n4\r\n5", ["2", "3", "4", "5"], id="scrolled"),
        pytest.param("\x1b[2;3Hx\x1b[4;1Hy", ["", "  x", "", "y"], id="placed"),
        pytest.param("abc\x1b[1D\x1b[K", ["ab", "", "", ""], id="line-erased"),
        pytest.param("abc\r\ndef\x1b[2J\x1b[Hx", ["x", "", "", ""], id="screen-erased"),
        pytest.param("abcd\x1b[1;2H\x1b[2P", ["ad", "", "", ""], id="characters-removed"),
        pytest.param("abcd\x1b[1;2H\x1b[2@", ["a  bcd", "", "", ""], id="characters-inserted"),
        pytest.param("1\r\n2\r\n3\x1b[1;1H\x1b[L", ["", "1", "2", "3"], id="line-inserted"),
        pytest.param("1\r\n2\r\n3\x1b[1;1H\x1b[M", ["2", "3", "", ""], id="line-removed"),
        pytest.param("1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\n", ["1", "3", "", "4"], id="region"),
        pytest.param("1\x1b[H\x1bM0", ["0", "1", "", ""], id="scrolled-back"),
        pytest.param("old\x1b[?1049hnew\x1b[?1049l", ["old", "", "", ""], id="second-screen"),
        pytest.param("\x1b[999;999Hx\x1b[99999A\x1b[99999Dy", ["y", "", "", "       x"], id="held-within"),
    ],
)
def test_a_screen_shows_what_a_terminal_would(console: Console, text: str, lines: list[str]) -> None:
    for pieces in ([text], [*text]):
        assert [line.rstrip() for line in show(console, *pieces)["lines"]] == lines


def test_no_input_breaks_a_screen(console: Console) -> None:
    chance = random.Random(1)
    words = [
        "\x1b[",
        "\x1b]",
        "\x1b",
        "?",
        ";",
        "\x07",
        "\n",
        "\r",
        "\b",
        "\t",
        "abc",
        "宽",
        "<b>",
        "9" * 300,
        "-1",
        "1049",
        "25",
    ]
    finals = [chr(code) for code in range(0x40, 0x7F)]
    noise = "".join(chance.choice(words + finals + [str(chance.randrange(99))]) for _ in range(100_000))
    found = show(console, noise, rows=10, columns=40)
    assert [len(line) for line in found["lines"]] == [40] * 10
    assert 0 <= found["cursor"][0] < 10
    assert 0 <= found["cursor"][1] <= 40
