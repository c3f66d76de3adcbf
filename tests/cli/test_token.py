from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from belljar.tokens import Role, Tokens

if TYPE_CHECKING:
    from tests.cli.commands import Belljar


def test_a_token_is_shown_once_and_known_by_its_hash(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("token", "create", "--role", "agent", "--project", "a", "--project", "b", "--note", "ci")
    assert ran.status == 0
    known = Tokens(tmp_path / "data").identify(ran.out.strip())
    assert known is not None
    assert (known.role, known.projects, known.note) == (Role.AGENT, ("a", "b"), "ci")
    assert known.id in ran.err
    listed = belljar("token", "list").out
    assert known.id in listed
    assert ran.out.strip() not in listed
    file = tmp_path / "data/tokens.json"
    assert ran.out.strip() not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_token_can_have_a_role_of_the_policy(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("token", "create", "--role", "agent", "--agent-role", "reader")
    known = Tokens(tmp_path / "data").identify(ran.out.strip())
    assert known is not None
    assert known.agent_role == "reader"
    assert "has no role reader" in ran.err


def test_a_revoked_token_is_nobodys(belljar: Belljar, tmp_path: Path) -> None:
    made = belljar("token", "create", "--role", "viewer", "--json").json
    assert made["projects"] is None
    assert belljar("token", "revoke", made["id"]) == (0, "", "")
    assert Tokens(tmp_path / "data").identify(made["token"]) is None
    assert belljar("token", "list", "--json").json == []


def test_json_says_what_was_revoked(belljar: Belljar) -> None:
    made = belljar("token", "create", "--role", "viewer", "--json").json
    assert belljar("token", "revoke", made["id"], "--json").json == {"id": made["id"], "revoked": True}


def test_the_data_directory_may_be_given(belljar: Belljar, tmp_path: Path) -> None:
    made = belljar("token", "create", "--role", "agent", "--data-dir", str(tmp_path / "other")).out.strip()
    assert Tokens(tmp_path / "other").identify(made) is not None
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["create", "--role", "root"], id="role"),
        pytest.param(["create", "--role", "agent", "--project", "../x"], id="project"),
        pytest.param(["create", "--role", "agent", "--note", "a\nb"], id="note"),
        pytest.param(["revoke", "tok-1"], id="unknown"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    belljar: Belljar, tmp_path: Path, arguments: list[str]
) -> None:
    ran = belljar("token", *arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "data/tokens.json").exists()


def test_a_data_directory_that_is_none_is_one_line(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    ran = belljar("token", "create", "--role", "agent")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "BAD_CONFIG" in ran.err
