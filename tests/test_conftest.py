from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


SKIPS = {
    "in-the-test": "def test() -> None: pytest.skip('no moon')",
    "mark": "@pytest.mark.skip(reason='no moon')\ndef test() -> None: ...",
    "module": "pytest.skip('no moon', allow_module_level=True)",
}


@pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS)
@pytest.mark.parametrize(("ci", "passes"), [("true", False), ("", True)], ids=["ci", "elsewhere"])
def test_a_skip_fails_in_ci_only(tmp_path: Path, skip: str, ci: str, passes: bool) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_skips.py").write_text(f"import pytest\n{skip}\n")
    (tmp_path / "test_runs.py").write_text("def test() -> None: ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": os.defpath, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == passes, done.stdout
    assert "no moon" in done.stdout
