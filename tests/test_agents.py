"""What docs/agents.md shows is what happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.cli.commands import environment
from tests.mcp.hosts import Person, over_stdio

import belljar
from belljar.flows.legacy import load_tools
from belljar.policy.files import loads
from belljar.settings import Config, WeakerLimits

PAGE = (Path(__file__).parents[1] / "docs/agents.md").read_text()
BLOCKS = dict(re.findall(r"^```(\S+(?: [^\n]+)?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def config(jail: None, tmp_path: Path) -> Config:
    skill = tmp_path / "skills/text.count"
    skill.mkdir(parents=True)
    (skill / "manifest.json").write_text(BLOCKS["json manifest"])
    (skill / "main.py").write_text(BLOCKS["python main.py"])
    return Config(
        data_dir=tmp_path / "data",
        skills_dir=tmp_path / "skills",
        jail_accept_weaker_limits=WeakerLimits.ALWAYS,
    )


def test_the_tools_are_used_as_shown(config: Config) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS["python"]],
        env={**ours, "BELLJAR_DATA_DIR": str(config.data_dir)},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.stderr == ""
    names, result = done.stdout.splitlines()[:2]
    assert "code_run" in names
    assert result == "success exited with 0 6"


def test_the_skill_does_what_it_says(config: Config) -> None:
    call: dict[str, Any] = json.loads(BLOCKS["json invoke text.count"])
    with belljar.local(config) as client:
        told = client.invoke(
            "text.count", inputs=call["inputs"], files={}, policy_overrides=call["policy_overrides"]
        )
    assert told["outputs"] == {"words": 3}


def test_the_policy_is_one() -> None:
    assert set(loads(BLOCKS["yaml policy"]).roles) == {"reader", "analyst"}


def test_every_host_starts_the_command_that_serves_mcp() -> None:
    servers = [
        json.loads(BLOCKS["json mcp"])["mcpServers"]["belljar"],
        json.loads(BLOCKS["json mcp agent"])["mcpServers"]["belljar"],
        json.loads(BLOCKS["json vscode"])["servers"]["belljar"],
        tomllib.loads(BLOCKS["toml codex"])["mcp_servers"]["belljar"],
    ]
    assert all((server["command"], server["args"]) == ("belljar", ["mcp"]) for server in servers)


async def test_a_host_that_is_configured_as_shown_runs_programs(config: Config) -> None:
    server = json.loads(BLOCKS["json mcp"])["mcpServers"]["belljar"]
    installed = str(Path(sys.executable).parent)
    env = environment(config.data_dir, BELLJAR_PORT="0", PATH=f"{installed}:{os.environ['PATH']}")
    async with Client(stdio_client(StdioServerParameters(**server, env=env))) as client:
        ran = await client.call_tool("sandbox.run", {"code": "print(6 * 7)"})
    assert ran.structured_content["stdout"] == "42\n"


async def test_a_person_is_asked_in_the_host_as_shown(config: Config) -> None:
    person = Person("accept", approve=True)
    async with over_stdio(config.data_dir, person=person, BELLJAR_PROFILE="supervised") as client:
        ran = await client.call_tool("sandbox.run", {"code": "import os\nos.system('echo hello')"})
    assert ran.structured_content["stdout"] == "hello\n"
    question = re.sub(r"(?<=ap-)\w+|(?<=digest )\w+…", "…", person.asked[0])
    assert question == BLOCKS["text question"].rstrip("\n")


def test_a_host_looks_for_the_service_where_it_is_by_default(config: Config) -> None:
    server = json.loads(BLOCKS["json mcp agent"])["mcpServers"]["belljar"]
    by_http = json.loads(BLOCKS["json mcp http"])["mcpServers"]["belljar"]
    assert by_http["url"] == f"{server['env']['BELLJAR_RUNNER_URL']}/mcp"
    assert server["env"]["BELLJAR_RUNNER_URL"] == f"http://127.0.0.1:{config.port}"
    assert by_http["headers"] == {"Authorization": f"Bearer {server['env']['BELLJAR_TOKEN']}"}


def test_the_description_of_a_legacy_tool_is_one(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    (tmp_path / "count/tool.json").write_text(BLOCKS["json tool"])
    (tmp_path / "count/tool.py").write_text("print('{}')")
    assert load_tools(tmp_path)["count"].allowed_paths == ("docs/",)
