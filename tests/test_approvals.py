"""What docs/approvals.md shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from belljar.models import RiskTier
from belljar.policy.files import loads

PAGE = (Path(__file__).parents[1] / "docs/approvals.md").read_text()
BLOCKS = dict(re.findall(r"^```(\S+(?: [^\n]+)?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_the_example_does_what_it_says(jail: None, tmp_path: Path) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS["python"]],
        env={**ours, "BELLJAR_DATA_DIR": str(tmp_path), "BELLJAR_PROFILE": "supervised"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.stderr, done.stdout.strip()) == ("", BLOCKS["text"].strip())


def test_the_policy_has_two_persons() -> None:
    assert loads(BLOCKS["yaml policy"]).approvers == {RiskTier.CRITICAL: {"approver"}}
