"""Filesystem and runtime escape (security.md 3.1)."""

from __future__ import annotations

from tests.hostile.attacks import Attack, Control, answers
from tests.hostile.glass import Glass


def test_host_file_is_not_there(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import os
            from tactics import *
            attempt("host", show, os.environ["HOST_FILE"])
            attempt("through_pid1", show, "/proc/1/root" + os.environ["HOST_FILE"])
            """,
        )
    )
    assert answers(result.stdout) == {"host": "ENOENT", "through_pid1": "ENOENT"}
