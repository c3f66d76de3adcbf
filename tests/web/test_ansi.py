"""The reader of terminal output, by itself: the same text however it is cut, and nothing that is not text."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.consoles import Console

READ = """
async (pieces) => {
  const { Ansi } = await import("./console/ansi.js");
  const reader = new Ansi();
  return pieces.flatMap((piece) => reader.read(piece)).map(({ text, style }) => [text, style]);
}
"""


def read(console: Console, *pieces: str) -> list[Any]:
    found: list[Any] = console.page.evaluate(READ, pieces)
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
def test_colours_become_classes_and_the_rest_is_dropped(console: Console, text: str, pieces: list[Any]) -> None:
    assert read(console, text) == pieces
    assert "".join(one for one, _ in read(console, *text)) == "".join(one for one, _ in pieces)
