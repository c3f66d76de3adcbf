from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from belljar.processes import Presence, epoch, is_alive, start_time


def test_a_process_has_one_start_time_and_a_later_one_another() -> None:
    with subprocess.Popen(["sleep", "60"]) as later:
        assert 0 < start_time(os.getpid()) == start_time(os.getpid())
        assert start_time(later.pid) >= start_time(os.getpid())
        later.kill()


def test_who_is_gone_has_none() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert start_time(gone.pid) == 0


def test_a_process_is_alive_until_it_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        name = epoch(process.pid)
        assert is_alive(name)
        process.kill()
    assert not is_alive(name)


def test_a_pid_that_was_given_away_is_another_process() -> None:
    assert is_alive(epoch())
    assert not is_alive(epoch() + "0")


def test_a_process_of_another_machine_counts_as_alive() -> None:
    assert is_alive("elsewhere/1/1")


ELSEWHERE = """
import platform, sys
from pathlib import Path
platform.node = lambda: "a-container"
from belljar.processes import Presence
presence = Presence(Path(sys.argv[1]))
print(presence.epoch, flush=True)
sys.stdin.read()
"""


def test_a_lock_tells_of_a_process_whose_pid_says_nothing(tmp_path: Path) -> None:
    mine = Presence(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert mine.is_alive(name)
        mine.tidy()
        assert mine.is_alive(name)
        process.kill()
    assert not mine.is_alive(name)
    mine.tidy()
    assert [path.name.partition("%")[0] for path in tmp_path.iterdir()] == [epoch().partition("/")[0]]
    mine.close()
    assert not list(tmp_path.iterdir())
