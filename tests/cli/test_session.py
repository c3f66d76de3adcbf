"""`belljar session` as a person uses it, against a real service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.commands import Belljar


@pytest.fixture
def session(caller: Belljar) -> Iterator[str]:
    started = caller("session", "start", "--project-id", "cli", "--env", "COLOUR=green")
    assert started.status == 0, started.err
    yield started.out.strip()
    assert caller("session", "stop", started.out.strip()).status == 0


def test_runs_share_variables_and_show_results(caller: Belljar, session: str) -> None:
    Path("cell.py").write_text("x = 40\nprint('set')\n")
    assert caller("session", "run", session, "cell.py", "--context", "main")[:2] == (0, "set\n")
    assert caller("session", "run", session, "--code", "x + 2", "--context", "main")[:2] == (0, "42\n")
    answer = caller("session", "run", session, "--code", "x", "--context", "main", "--json").json
    assert answer["results"] == [{"text/plain": "40"}]


def test_the_exit_status_is_the_programs(caller: Belljar, session: str) -> None:
    ran = caller("session", "run", session, "--language", "bash", "--code", "echo $COLOUR; exit 3")
    assert (ran.status, ran.out) == (3, "green\n")
    slow = caller("session", "run", session, "--language", "bash", "--code", "sleep 9", "--timeout", "0.2")
    assert slow.status == 124


def test_files_go_in_out_and_away(caller: Belljar, session: str) -> None:
    Path("in.txt").write_text("text")
    assert caller("session", "files", "put", session, "in.txt", "d/a").status == 0
    assert caller("session", "files", "mv", session, "d/a", "d/b").status == 0
    assert caller("session", "files", "cat", session, "d/b").out == "text"
    [found] = caller("session", "files", "ls", session, "d", "--json").json
    assert (found["path"], found["size"]) == ("b", 4)
    assert "b" in caller("session", "files", "ls", session, "--depth", "2").out
    assert caller("session", "files", "rm", session, "d").status == 0
    gone = caller("session", "files", "cat", session, "d/b")
    assert (gone.status, "NOT_FOUND" in gone.err) == (2, True)
    assert caller("session", "files", "put", session, "absent", "x").status == 2


def test_a_session_is_listed_and_shown(caller: Belljar, session: str) -> None:
    assert session in caller("session", "list", "--project-id", "cli").out
    assert session in [one["session_id"] for one in caller("session", "list", "--json").json]
    assert "COLOUR" in caller("session", "show", session).out
    assert caller("session", "show", session, "--json").json["state"] == "ready"


def test_a_session_stands_still_and_goes_on(caller: Belljar, session: str) -> None:
    assert caller("session", "pause", session, "--json").json["state"] == "paused"
    assert caller("session", "run", session, "--code", "1").status == 2
    assert caller("session", "resume", session) == (0, "", "")
    assert caller("session", "extend", session, "1000").status == 0
    assert caller("session", "interrupt", session, "--json").json == {"interrupted": []}


def test_files_are_kept_and_begun_with(caller: Belljar, session: str) -> None:
    Path("f").write_text("kept")
    caller("session", "files", "put", session, "f", "f")
    digest = caller("session", "snapshot", session).out.strip()
    copies = [
        caller("session", "fork", session).out.strip(),
        caller("session", "start", "--project-id", "cli", "--snapshot", digest).out.strip(),
    ]
    for copy in copies:
        assert caller("session", "files", "cat", copy, "f").out == "kept"
        assert caller("session", "stop", copy, "--json").json["state"] == "ended"


def test_a_file_keeps_its_name_unless_it_is_given_another(caller: Belljar, session: str) -> None:
    Path("d").mkdir()
    Path("d/named.txt").write_text("n")
    assert caller("session", "files", "put", session, "d/named.txt", "--json").json["path"] == "named.txt"
    assert caller("session", "files", "cat", session, "named.txt").out == "n"
    nameless = caller("session", "files", "put", session, "-")
    assert (nameless.status, nameless.err.count("\n")) == (2, 1)


def test_a_session_that_is_not_there(caller: Belljar) -> None:
    for command in ("show", "pause", "stop", "snapshot"):
        ran = caller("session", command, "se-none")
        assert (ran.status, "NOT_FOUND" in ran.err) == (2, True)
    assert caller("session", "start", "--env", "novalue").status == 2


def test_what_sessions_take_is_shown(caller: Belljar, session: str) -> None:
    until = time.monotonic() + 60
    while session not in [one["id"] for one in caller("top", "--once", "--json").json]:
        assert time.monotonic() < until
        time.sleep(0.2)
    shown = caller("top", "--once")
    assert (shown.status, "session" in shown.out) == (0, True)
