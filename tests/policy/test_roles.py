from __future__ import annotations

import pytest

from belljar.models import Language, RunRequest
from belljar.policy.files import loads
from belljar.policy.manifests import loads as skill_of
from belljar.policy.roles import tool_of

POLICIES = loads(
    """
policies:
  tools:
    skill.text.count: {risk_level: low}
  agent_roles:
    anybody: {}
    coder: {tools: [code_run, file_read]}
    typist: {tools: [shell_exec]}
    reader: {tools: [file_read]}
""",
    name="policy.yaml",
)


@pytest.mark.parametrize(
    ("request_", "tool"),
    [
        pytest.param(RunRequest(code="1", language=Language.PYTHON), "code_run", id="python"),
        pytest.param(RunRequest(code="1", language=Language.JAVASCRIPT), "code_run", id="javascript"),
        pytest.param(RunRequest(code="1"), "code_run", id="default"),
        pytest.param(RunRequest(code="ls", language=Language.BASH), "shell_exec", id="bash"),
        pytest.param(RunRequest(command=("python3", "-c", "1")), "shell_exec", id="command"),
        pytest.param(
            RunRequest(language=Language.PYTHON, inline=(), args=("x.py",)), "code_run", id="inline"
        ),
    ],
)
def test_every_plain_run_is_a_run_of_a_tool(request_: RunRequest, tool: str) -> None:
    assert tool_of(request_) == tool


@pytest.mark.parametrize(
    ("role", "tools"),
    [
        (None, ("code_run", "shell_exec")),
        ("anybody", ("code_run", "shell_exec")),
        ("coder", ("code_run",)),
        ("typist", ("shell_exec",)),
        ("reader", ()),
    ],
)
def test_a_role_runs_programs_by_the_tools_it_lists(role: str | None, tools: tuple[str, ...]) -> None:
    assert POLICIES.runners(role) == tools
    assert POLICIES.usual_tool(role) == (tools[0] if tools else None)


@pytest.mark.parametrize(("skill", "tool"), [("text.count", "skill.text.count"), ("text.sort", None)])
def test_a_skill_is_its_own_tool_where_policy_knows_it(skill: str, tool: str | None) -> None:
    assert POLICIES.usual_tool(None, skill_of(f'{{"id": "{skill}"}}')) == tool
