"""Our modules run in an interpreter that has none of them, whether it is like the host's or not."""

from __future__ import annotations

import marshal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belljar.guest import bundle

MODULES = {"__init__": "", "greeting": "WORD = 'hello'", "guest": "from inside import greeting"}
MAIN = """
def main(settings):
    print(greeting.WORD, settings["name"])
"""


LISTS_MODULES = "import sys\nfrom belljar.guest import agent\ndef main(settings): print(*sys.modules)"
HEAVY = {"collections", "contextlib", "enum", "functools", "importlib", "json", "re", "socket", "typing"}


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The program, its modules (what they were compiled for, compiled, as text), and the settings."""
    (tmp_path / "inside").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "inside" / f"{name}.py").write_text(text + (MAIN if name == "guest" else ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[Any] = marshal.loads(bundle.pack(("inside.greeting", "inside.guest"), {"name": "jar"}))
    return found


def said(packed: list[Any], tmp_path: Path, module: str = "inside.guest") -> str:
    with (tmp_path / "packed").open("wb+") as file:
        marshal.dump(packed, file)
        file.seek(0)
        argv = bundle.command(sys.executable, file.fileno(), module, "-I")
        return subprocess.run(
            argv, pass_fds=[file.fileno()], stdout=subprocess.PIPE, text=True, check=True
        ).stdout


def test_an_interpreter_like_the_hosts_needs_no_text(packed: list[Any], tmp_path: Path) -> None:
    program, (magic, compiled, _), settings = packed
    assert said([program, [magic, compiled, b""], settings], tmp_path) == "hello jar\n"


def test_another_interpreter_compiles_the_text(packed: list[Any], tmp_path: Path) -> None:
    program, (_, _, texts), settings = packed
    assert said([program, [b"of another", b"", texts], settings], tmp_path) == "hello jar\n"


def test_the_guest_brings_no_module_that_a_start_would_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lister").mkdir()
    (tmp_path / "lister" / "guest.py").write_text(LISTS_MODULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    packed = marshal.loads(bundle.pack((*bundle.GUEST, "lister.guest"), {}))
    loaded = said(packed, tmp_path, "lister.guest").split()
    assert "ctypes" in loaded
    assert not HEAVY & set(loaded)
