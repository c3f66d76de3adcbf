"""What the jail's own tests share: programs run as an ordinary user, and a process that is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
NOBODY = 65534


def _python_for_anyone() -> str:
    """The Python of this test run may lie in a home that nobody else may enter."""
    own = os.path.realpath(sys.executable)
    if all(os.stat(parent).st_mode & 0o001 for parent in Path(own).parents):
        return own
    return shutil.which("python3", path="/usr/bin:/usr/local/bin") or own


@pytest.fixture(scope="session")
def run_as_nobody() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code as a user without any privilege: nobody where we are root, else ourselves."""

    def run(code: str, *arguments: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        become: tuple[str, ...] = ()
        if os.getuid() == 0:
            become = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        return subprocess.run(
            [*under, *become, _python_for_anyone(), "-c", code, *arguments],
            env={"PATH": os.defpath, "PYTHONPATH": str(SRC)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.fixture
def dead_pid() -> int:
    """Of a process that was there a moment ago."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
