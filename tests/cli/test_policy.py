"""`belljar policy explain` says what runs here are granted, and runs here are held to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.commands import WITHOUT_CGROUPS_TOO, Belljar

if TYPE_CHECKING:
    from pathlib import Path

HERE = {"BELLJAR_MEMORY_MB": "77", "BELLJAR_PROFILE": "supervised"}


def explained(belljar: Belljar, *arguments: str, **settings: str) -> dict[str, Any]:
    ran = belljar("policy", "explain", "--json", *arguments, **settings)
    return {row["field"]: row["value"] for row in ran.json["fields"]}


def test_without_a_policy_it_is_the_configured_one(belljar: Belljar) -> None:
    said = explained(belljar, **HERE)
    assert (said["limits.memory_mb"], said["approve_at"]) == (77, "high")


def test_a_policy_that_is_named_is_alone(belljar: Belljar) -> None:
    said = explained(belljar, "--profile", "default", **HERE)
    assert (said["limits.memory_mb"], said["approve_at"]) == (512, None)


def test_a_plain_run_is_explained_as_one_of_its_tool(belljar: Belljar, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {code_run: {max_memory: 64MB}}}")
    here = {"BELLJAR_POLICY": str(policy), "BELLJAR_MEMORY_MB": "77"}
    assert explained(belljar, **here)["limits.memory_mb"] == 64
    assert explained(belljar, "--tool", "shell_exec", **here)["limits.memory_mb"] == 77


@pytest.mark.usefixtures("jail")
def test_a_program_run_here_has_the_rules_of_its_tool(belljar: Belljar, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        """
policies:
  ceilings: {max_memory: 1GB}
  tools:
    code_run: {max_memory: 64MB}
    shell_exec: {allowed_commands: [echo]}
"""
    )

    def run(language: str, code: str) -> tuple[str, str]:
        words = ("run", "--local", "--memory-mb", "128", "--language", language, "--code", code)
        ran = belljar(*words, BELLJAR_POLICY=str(policy), **WITHOUT_CGROUPS_TOO)
        return ran.out, ran.err

    assert run("bash", "echo hello")[0] == "hello\n"
    assert "COMMAND_NOT_ALLOWED" in run("bash", "ls")[1]
    assert "POLICY_ESCALATION" in run("python", "print(1)")[1]
