"""The catalogue, what a call amounts to, and what an LLM is told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belljar.errors import BadRequest, NotFound, PathNotAllowed, ToolUnavailable
from belljar.flows.tools import (
    MAX_CHARS,
    Format,
    Outcome,
    Strategy,
    catalogue,
    in_format,
    request_for,
    result_of,
)
from belljar.models import RiskTier
from belljar.policy.decisions import PolicySet
from belljar.policy.files import loads

POLICY = """
policies:
  default: {approve_code_at: off}
  tools:
    browser_automation: {risk_level: high}
    file_read:
      risk_level: low
      denied_paths: [/workspace/.env, "/workspace/**/*.key"]
    code_run: {risk_level: high, supported_languages: [python], max_execution_time: 2m}
    search: {risk_level: low, allowed_paths: [/workspace/work/docs/**]}
  agent_roles:
    reader: {tools: [file_read, search]}
    nobody: {tools: []}
    anybody: {}
"""
POLICIES = loads(POLICY)


def outcome(stdout: bytes = b"", exit_code: int | None = 0, **more: Any) -> Outcome:
    given: dict[str, Any] = {
        "verdict": "exited",
        "stderr": b"",
        "stdout_bytes": len(stdout),
        "stderr_bytes": 0,
    }
    return Outcome("ex-1", exit_code=exit_code, duration_ms=5, stdout=stdout, **(given | more))


def test_every_tool_has_the_tier_of_the_design() -> None:
    tiers = {tool.name: tool.risk for tool in catalogue(PolicySet(), None)}
    assert tiers == {
        "code_run": RiskTier.HIGH,
        "shell_exec": RiskTier.HIGH,
        "file_read": RiskTier.LOW,
        "file_write": RiskTier.MEDIUM,
        "file_edit": RiskTier.MEDIUM,
        "search": RiskTier.LOW,
    }


def test_a_tool_that_waits_for_a_person_says_so() -> None:
    asks = loads("policies: {tools: {code_run: {risk_level: critical}}}", name="p")
    tools = {tool.name: tool.strategy for tool in catalogue(asks, None)}
    assert tools["code_run"] is Strategy.APPROVAL
    assert tools["shell_exec"] is Strategy.JAR


@pytest.mark.parametrize(
    ("role", "names"),
    [
        pytest.param("reader", ["file_read", "search"], id="listed"),
        pytest.param("nobody", [], id="empty list"),
        pytest.param("anybody", [tool.name for tool in catalogue(POLICIES, None)], id="no list"),
    ],
)
def test_a_role_sees_the_tools_it_may_use(role: str, names: list[str]) -> None:
    assert [tool.name for tool in catalogue(POLICIES, role)] == names


def test_a_role_that_policy_does_not_have_is_an_error() -> None:
    with pytest.raises(BadRequest, match="role"):
        catalogue(POLICIES, "ghost")


def test_a_definition_shows_what_policy_grants() -> None:
    code_run = catalogue(POLICIES, None)[0]
    assert code_run.input_schema["properties"]["language"]["enum"] == ["python"]
    assert code_run.limits["timeout_s"] == 120


def test_definitions_have_the_form_of_the_llm_s_api() -> None:
    tool = catalogue(POLICIES, None)[0]
    openai, anthropic = in_format(tool, Format.OPENAI), in_format(tool, Format.ANTHROPIC)
    assert openai["type"] == "function"
    assert openai["function"] == {
        "name": "code_run",
        "description": tool.description,
        "parameters": tool.input_schema,
    }
    assert anthropic == {
        "name": "code_run",
        "description": tool.description,
        "input_schema": tool.input_schema,
    }


@pytest.mark.parametrize(
    "name",
    [
        "Code_run",
        "code_run ",
        " code_run",
        "ｃode_run",
        "functions.code_run",
        "code_run.",
        "code-run",
        "bash",
        "",
    ],
)
def test_another_name_is_another_tool(name: str) -> None:
    with pytest.raises(NotFound):
        request_for(POLICIES, None, name, {"code": "1"})


@pytest.mark.parametrize("name", ["browser_automation", "system_admin", "network_scan"])
def test_a_tool_that_is_not_built_is_refused_by_a_code_of_its_own(name: str) -> None:
    with pytest.raises(ToolUnavailable, match=name):
        request_for(POLICIES, None, name, {})


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        pytest.param("code_run", {}, "arguments", id="missing"),
        pytest.param("code_run", {"code": 1}, "arguments.code", id="type"),
        pytest.param("code_run", {"code": "1", "network": True}, "arguments.network", id="unknown"),
        pytest.param("code_run", {"code": "1", "language": "perl"}, "arguments.language", id="language"),
        pytest.param("code_run", {"code": "1", "language": "bash"}, "arguments.language", id="not granted"),
        pytest.param("file_read", {"path": "a", "offset": 0}, "arguments.offset", id="range"),
        pytest.param("file_edit", {"path": "a", "old": "", "new": "x"}, "arguments.old", id="empty"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_field(
    name: str, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        request_for(POLICIES, None, name, arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", ".ssh/id", "a\x00b", ""])
@pytest.mark.parametrize("name", ["file_read", "file_write", "file_edit"])
def test_a_path_that_breaks_the_rules_is_refused(name: str, path: str) -> None:
    arguments = {"path": path, "content": "", "old": "a", "new": "b"}
    allowed = {"file_read": ("path",), "file_write": ("path", "content"), "file_edit": ("path", "old", "new")}
    with pytest.raises(PathNotAllowed) as caught:
        request_for(POLICIES, None, name, {key: arguments[key] for key in allowed[name]})
    assert caught.value.field == "arguments.path"


def test_the_rules_of_policy_go_with_a_file_tool() -> None:
    request, _ = request_for(POLICIES, None, "search", {"query": "x"})
    assert json.loads(request.stdin)["rules"] == [{"allow": ["/workspace/work/docs/.*"], "deny": []}]


def test_what_a_call_asks_of_policy_is_its_time() -> None:
    _, overrides = request_for(POLICIES, None, "code_run", {"code": "1", "timeout_s": 3})
    assert overrides == {"limits.timeout_s": 3}


# What an LLM is told


def test_a_program_that_succeeds_is_told_in_a_sentence() -> None:
    told = result_of("code_run", outcome(b"hello\n"))
    assert (told["status"], told["summary"]) == ("success", "exited with 0 after 5 ms")
    assert told["data"]["stdout"] == "hello\n"
    assert told["rest"] == []


@pytest.mark.parametrize(
    ("ended", "summary"),
    [
        pytest.param(outcome(exit_code=3), "exited with 3", id="exit"),
        pytest.param(outcome(exit_code=None, verdict="timeout"), "timeout", id="timeout"),
    ],
)
def test_a_program_that_fails_is_an_error_to_the_llm(ended: Outcome, summary: str) -> None:
    told = result_of("shell_exec", ended)
    assert told["status"] == "error"
    assert told["summary"].startswith(summary)


def test_long_output_is_shortened_with_a_pointer_to_the_rest() -> None:
    told = result_of("code_run", outcome(b"a" * 50_000 + b"the end"))
    assert len(told["data"]["stdout"]) < MAX_CHARS + 100
    assert told["data"]["stdout"].endswith("the end")
    assert told["rest"] == [{"what": "stdout", "bytes": 50_007, "route": "/sandbox/execs/ex-1/events"}]


def test_files_that_were_made_are_pointed_to() -> None:
    told = result_of("code_run", outcome(artifacts=[{"path": "a.txt", "size": 3}]))
    assert told["data"]["files"] == [{"path": "a.txt", "size": 3}]
    assert told["rest"] == [{"what": "files", "route": "/sandbox/execs/ex-1/artifacts"}]


def test_a_file_tool_that_did_not_get_to_its_answer_is_an_error() -> None:
    told = result_of("file_read", outcome(b"", exit_code=None, verdict="oom"))
    assert (told["status"], told["summary"]) == ("error", "oom after 5 ms")


@pytest.mark.parametrize(
    ("tool", "said", "status"),
    [
        pytest.param(
            "file_write", {"ok": True, "path": "a", "bytes": 3, "created": True}, "error", id="written"
        ),
        pytest.param("search", {"ok": True, "matches": [], "truncated": False}, "success", id="only read"),
    ],
)
def test_a_tool_whose_work_is_not_kept_has_failed(tool: str, said: dict[str, Any], status: str) -> None:
    lost: dict[str, Any] = {"error_code": "STORE_UNAVAILABLE", "error_reason": "no room"}
    told = result_of(tool, outcome(json.dumps(said).encode(), **lost))
    assert told["status"] == status
    assert {name: told[name] for name in lost} == lost
    assert told["summary"].endswith("; but no room") == (status == "error")


def test_languages_are_named_in_plain_words() -> None:
    with pytest.raises(BadRequest, match=r"'ruby' is not one of \['python'\]"):
        request_for(POLICIES, None, "code_run", {"code": "1", "language": "ruby"})


def test_an_argument_of_an_unknown_name_is_named_with_the_nearest() -> None:
    with pytest.raises(BadRequest, match="unknown name `cod`; did you mean `code`") as caught:
        request_for(POLICIES, None, "code_run", {"cod": "1"})
    assert caught.value.field == "arguments.cod"
