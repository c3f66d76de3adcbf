"""The names of the design documents, used as their examples use them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from belljar.errors import PolicyEscalation
from belljar.sandboxes import SandboxManager, SessionSandbox, run_code_once


@pytest.fixture(autouse=True)
def place(jail: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BELLJAR_DATA_DIR", str(tmp_path))


async def test_a_manager_runs_code_and_shell_commands() -> None:
    async with SandboxManager(pool_size=1) as manager:
        result = await manager.execute_code(
            language="python", code="import math\nprint(f'Pi = {math.pi:.2f}')", timeout=30
        )
        assert (result.stdout, result.exit_code) == ("Pi = 3.14\n", 0)
        listed = await manager.execute_shell(command="ls -a /workspace", timeout=25)
        assert {"work", "inputs", "artifacts"} <= set(listed.stdout.split())
        files = {"analyze.py": b"print(len(open('data.csv').readlines()))", "data.csv": b"a,b,c\n1,2,3\n"}
        assert (await manager.execute_shell(command="python3 analyze.py", files=files)).stdout == "2\n"


async def test_a_manager_connects_once_for_those_who_call_at_once() -> None:
    async with SandboxManager(pool_size=1) as manager:
        results = await asyncio.gather(*(manager.execute_shell(f"echo {n}") for n in range(3)))
        assert [result.stdout for result in results] == ["0\n", "1\n", "2\n"]


async def test_a_manager_takes_a_policy(tmp_path: Path) -> None:
    policy = tmp_path / "sandbox_policy.yaml"
    policy.write_text("policies:\n  default:\n    max_execution_time: 5s\n")
    async with SandboxManager(policy_file=policy) as manager:
        with pytest.raises(PolicyEscalation):
            await manager.execute_code("1", timeout=60)


async def test_what_runs_in_a_session_sandbox_shares_files_and_variables() -> None:
    async with SessionSandbox("my-session") as sandbox:
        await sandbox.execute_code("x = 20\nopen('f', 'w').write('text')")
        assert (await sandbox.execute_code("print(x + 22)")).stdout == "42\n"
        assert (await sandbox.execute_shell_command("cat f", timeout=25)).stdout == "text"
        assert sandbox.session.project_id == "my-session"


async def test_one_program_and_nothing_left_of_it() -> None:
    assert (await run_code_once("echo hello", "bash")).stdout == "hello\n"
