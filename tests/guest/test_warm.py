"""What `tests/engines/test_contract.py` cannot see: there a forked interpreter is compared with a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import belljar

BECOME = """
import sys
sys.path.insert(0, {source!r})
{before}
from belljar.guest import warm
warm.prepare()
warm.run_as_main(sys.argv[1], sys.argv[2:], unbuffered=True)
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
