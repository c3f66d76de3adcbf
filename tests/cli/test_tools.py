from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

UPPER = "import json, sys; print(json.dumps(open(json.load(sys.stdin)['path']).read().upper()))"
DESCRIPTION = {
    "description": "Shouts.",
    "inputs": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "paths": ["path"],
    "allowed_paths": ["docs/"],
}


def test_the_tools_are_listed_for_people_and_for_an_llm(caller: Belljar) -> None:
    assert "file_edit" in caller("tools", "list").out
    definitions = caller("tools", "list", "--format", "openai").json
    assert {"code_run", "search"} <= {one["function"]["name"] for one in definitions}


def test_a_tool_is_called(caller: Belljar) -> None:
    ran = caller("tools", "call", "code_run", "--arguments", '{"code": "print(6 * 7)"}')
    assert (ran.status, ran.json["data"]["stdout"]) == (0, "42\n")


def test_a_tool_that_does_not_succeed_is_status_1(caller: Belljar) -> None:
    assert caller("tools", "call", "code_run", "--arguments", '{"code": "1 / 0"}').status == 1


def test_a_tool_that_is_not_built_is_refused(caller: Belljar) -> None:
    ran = caller("tools", "call", "network_scan")
    assert ran.status == 2
    assert "TOOL_UNAVAILABLE" in ran.err


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize("in_jar", ["false", "true"])
def test_a_legacy_tool_is_called_by_either_backend(belljar: Belljar, tmp_path: Path, in_jar: str) -> None:
    tool = tmp_path / "tools/shout"
    tool.mkdir(parents=True)
    (tool / "tool.py").write_text(UPPER)
    (tool / "tool.json").write_text(json.dumps(DESCRIPTION))
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("hi")
    ran = belljar(
        "tools",
        "legacy",
        "shout",
        "--arguments",
        '{"path": "docs/a.txt"}',
        BELLJAR_TOOLS_DIR=str(tmp_path / "tools"),
        BELLJAR_RUNNER_FEATURES_USE_FOR_TOOLS=in_jar,
        BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS="always",
        BELLJAR_PORT="0",
    )
    assert (ran.status, ran.json["value"]) == (0, "HI"), ran.err


def test_without_a_folder_of_tools_it_says_so(belljar: Belljar) -> None:
    ran = belljar("tools", "legacy", "shout")
    assert ran.status == 2
    assert "tools_dir" in ran.err
