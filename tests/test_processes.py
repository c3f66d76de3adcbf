from __future__ import annotations

import os
import subprocess

from belljar.processes import start_time


def test_a_process_has_one_start_time_and_a_later_one_another() -> None:
    with subprocess.Popen(["sleep", "60"]) as later:
        assert 0 < start_time(os.getpid()) == start_time(os.getpid())
        assert start_time(later.pid) >= start_time(os.getpid())
        later.kill()


def test_who_is_gone_has_none() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert start_time(gone.pid) == 0
