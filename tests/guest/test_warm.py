"""What `tests/engines/test_contract.py` cannot see: there a forked interpreter is compared with a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import belljar

BECOME = """
import sys
sys.path.insert(0, {source!r})
{before}
from belljar.guest import warm
warm.prepare()
warm.run_as_main(sys.argv[1], sys.argv[2:], by_line=1 << 20)
"""


def warmed(script: Path, before: str = "", stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script in an interpreter that was warm already."""
    program = BECOME.format(source=str(Path(belljar.__file__).parents[1]), before=before)
    return subprocess.run(
        [sys.executable, "-c", program, str(script), "argument"],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        timeout=30,
    )


def test_numpys_generator_is_seeded_anew(tmp_path: Path) -> None:
    """It does not do so itself after a fork, as the standard library's does."""
    script = tmp_path / "main.py"
    script.write_text("import numpy.random; print(numpy.random.seeded)")
    numpy = """
import types
numpy, generator = types.ModuleType('numpy'), types.ModuleType('numpy.random')
def seed(): generator.seeded = True
numpy.random, generator.seed, generator.seeded = generator, seed, False
sys.modules.update({'numpy': numpy, 'numpy.random': generator})
"""
    assert warmed(script, numpy).stdout == "True\n"


@pytest.mark.parametrize(
    ("change", "by_line"),
    [
        pytest.param("pass", "True False", id="as it is"),
        pytest.param("sys.__stdout__ = None", "True True", id="not to be found"),
        pytest.param("sys.stdout = io.TextIOWrapper(sys.stdout.detach())", "False False", id="taken apart"),
    ],
)
def test_stdout_is_written_by_lines_until_enough_is_written(
    tmp_path: Path, change: str, by_line: str
) -> None:
    script = tmp_path / "main.py"
    script.write_text(f"""
import io, sys
{change}
before = sys.stdout.line_buffering
for _ in range(1 << 15):
    print("a line of 32 characters, and more")
print(before, sys.stdout.line_buffering, file=sys.stderr)
""")
    done = warmed(script)
    assert done.stderr == f"{by_line}\n"
    assert done.stdout == "a line of 32 characters, and more\n" * (1 << 15)


def test_a_script_that_cannot_be_compiled_leaves_stdin_alone(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text("print(1\n")
    done = warmed(script, stdin="print('this is not the program')")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "SyntaxError" in done.stderr


def test_what_a_daemon_thread_uses_stays_until_the_end(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import threading, time\n"
        "value = 1\n"
        "def look():\n"
        "    while True: value + 1\n"
        "threading.Thread(target=look, daemon=True).start()\n"
        "time.sleep(0.1)\n"
        "print('over')\n"
    )
    done = warmed(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
