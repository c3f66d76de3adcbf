from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

HERE = {"BELLJAR_PORT": "9", "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always"}


@pytest.mark.usefixtures("jail")
def test_who_wrote_a_file_is_told(belljar: Belljar) -> None:
    run = ("run", "--output-prefix", "docs/out", "--overwrite", "--json", "--code")
    first = belljar(*run, "open('f', 'w').write('1')", **HERE).json["run_id"]
    second = belljar(*run, "open('f', 'w').write('2')", **HERE).json["run_id"]
    found = belljar("trail", "docs/out/f", "--json").json
    assert [(one["run_id"], one["change"]) for one in found["entries"]] == [
        (first, "created"),
        (second, "changed"),
    ]
    assert found["entries"][1]["before"] == found["entries"][0]["sha256"]
    assert found["now"] == {"docs/out/f": "as_written"}
    Path("docs/out/f").unlink()
    assert "removed" in belljar("trail").out
    assert belljar("trail", "elsewhere", "--json").json == {"entries": [], "now": {}}


def test_no_project_is_one_line(belljar: Belljar) -> None:
    ran = belljar("trail", "--project", "none")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
