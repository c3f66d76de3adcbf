"""The contract of engines, kept for an ordinary user. Not in its own module: it takes long, and runs beside."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import belljar

NOBODY = 65534
INTERPRETERS = (
    getattr(sys, "_base_executable", sys.executable),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
)
NEEDED = (
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "iniconfig",
    "packaging",
    "pluggy",
    "pygments",
    "typing-extensions",
)


def as_nobody(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )


def python_for_everyone() -> str:
    """An interpreter that an ordinary user can run; the one that runs us may live in root's home."""
    new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    for interpreter in INTERPRETERS:
        with contextlib.suppress(OSError):
            if as_nobody([interpreter, "-c", new_enough], cwd="/").returncode == 0:
                return interpreter
    pytest.skip("no Python 3.11 or newer that an ordinary user can run; install Debian's python3")


def copy_for_everyone(folder: Path) -> None:
    """The code, the suite and what it needs, readable by anyone."""
    for name in NEEDED:
        distribution = metadata.distribution(name)
        for path in distribution.files or ():
            if path.parts[0] != ".." and Path(str(distribution.locate_file(path))).exists():
                (folder / "site" / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(distribution.locate_file(path)), folder / "site" / path)
    here = Path(__file__)
    shutil.copytree(Path(belljar.__file__).parent, folder / "site/belljar")
    shutil.copy(here.parents[2] / "pyproject.toml", folder)
    for name in ("conftest.py", "test_contract.py"):
        shutil.copy(here.with_name(name), folder)
    for place in (folder, *folder.rglob("*")):
        place.chmod(place.stat().st_mode | (0o555 if place.is_dir() else 0o444))


if os.getuid() == 0:  # anyone else keeps the contract by running its module

    @pytest.mark.timeout(900)
    def test_the_contract_is_kept_for_an_ordinary_user(jail: None) -> None:
        interpreter = python_for_everyone()
        with tempfile.TemporaryDirectory(prefix="contract-") as name:
            folder = Path(name)
            copy_for_everyone(folder)
            (folder / "tmp").mkdir(mode=0o777)
            (folder / "tmp").chmod(0o777)
            done = as_nobody(
                [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", name, name],
                cwd=name,
                env={
                    "PATH": os.defpath,
                    "PYTHONPATH": str(folder / "site"),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "TMPDIR": str(folder / "tmp"),
                    "ENGINES": "jail",  # others need the docker socket, which is root's
                },
            )
        assert done.returncode == 0, done.stdout[-20_000:]
