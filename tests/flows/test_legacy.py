"""Legacy tools do the same as a subprocess and in a jar, and neither falls back to the other."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from belljar.client import AsyncClient
from belljar.errors import BadPolicy, BadRequest, NotFound, PathNotAllowed, PolicyEscalation
from belljar.flows.legacy import Answer, Backend, Failure, InJar, InSubprocess, call, load_tools

WORD_COUNT = """
import json, sys, pathlib
given = json.load(sys.stdin)
text = pathlib.Path(given["path"]).read_text()
pathlib.Path("docs/count.txt").write_text(str(len(text.split())))
print("counted", file=sys.stderr)
json.dump({"words": len(text.split())}, sys.stdout)
"""
DESCRIPTION: dict[str, Any] = {
    "description": "Counts the words of a file.",
    "inputs": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "paths": ["path"],
    "allowed_paths": ["docs/"],
}


@pytest.fixture
def tools_dir(tmp_path: Path) -> Path:
    return tmp_path / "tools"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "docs").mkdir(parents=True)
    (project / "docs/a.txt").write_text("one two three")
    (project / "secret.txt").write_text("not for tools")
    return project


def add(folder: Path, program: str, name: str = "count", **changes: Any) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "tool.py").write_text(program)
    (folder / name / "tool.json").write_text(json.dumps({**DESCRIPTION, **changes}))


def wait_until_gone(pid: int) -> None:
    """The kernel takes a moment; the test's own timeout says when that is too long."""
    with suppress(FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


async def run(tools_dir: Path, project: Path, backend: Backend, **arguments: Any) -> Answer:
    return await call(load_tools(tools_dir), "count", arguments, project=project, backend=backend)


async def test_a_tool_gives_the_same_answer_and_leaves_the_same_files(
    tools_dir: Path, project: Path, client: AsyncClient
) -> None:
    add(tools_dir, WORD_COUNT)
    left = {}
    backends: dict[str, Backend] = {"subprocess": InSubprocess(), "jar": InJar(client)}
    for name, backend in backends.items():
        answer = await run(tools_dir, project, backend, path="docs/a.txt")
        count = project / "docs/count.txt"
        left[name] = (answer, count.read_text())
        count.unlink()
    assert left["jar"] == left["subprocess"]
    assert left["jar"] == (Answer({"words": 3}, None, 0, "counted\n"), "3")


@pytest.mark.parametrize(
    ("program", "timeout_s", "failure"),
    [
        pytest.param("import sys; sys.exit(3)", 25, Failure.EXIT, id="exit"),
        pytest.param("print('no JSON')", 25, Failure.PROTOCOL, id="protocol"),
        pytest.param("import time; time.sleep(60)", 1, Failure.TIMEOUT, id="timeout"),
    ],
)
async def test_a_failure_is_the_same_failure_on_both(
    tools_dir: Path, project: Path, client: AsyncClient, program: str, timeout_s: int, failure: Failure
) -> None:
    add(tools_dir, program, timeout_s=timeout_s)
    for backend in (InSubprocess(), InJar(client)):
        answer = await run(tools_dir, project, backend, path="docs/a.txt")
        assert (answer.value, answer.failure) == (None, failure)


async def test_a_jar_that_cannot_be_had_is_not_replaced_by_a_subprocess(
    tools_dir: Path, project: Path, client: AsyncClient
) -> None:
    add(tools_dir, "open('docs/ran', 'w')", timeout_s=3600)  # more than policy grants
    with pytest.raises(PolicyEscalation):
        await run(tools_dir, project, InJar(client), path="docs/a.txt")
    assert not (project / "docs/ran").exists()


async def test_a_jar_has_no_file_outside_the_allowed_paths(
    tools_dir: Path, project: Path, client: AsyncClient
) -> None:
    add(tools_dir, "import json, os; print(json.dumps(sorted(os.listdir('.'))))")
    answer = await run(tools_dir, project, InJar(client), path="docs/a.txt")
    assert answer.value == ["docs", "main.py"]


async def test_what_a_jar_wrote_elsewhere_is_refused_and_nothing_of_it_lands(
    tools_dir: Path, project: Path, client: AsyncClient
) -> None:
    add(tools_dir, "open('docs/new', 'w').write('x'); open('elsewhere', 'w').write('x'); print('{}')")
    with pytest.raises(PathNotAllowed):
        await run(tools_dir, project, InJar(client), path="docs/a.txt")
    assert not (project / "docs/new").exists()


@pytest.mark.parametrize(
    "path", ["secret.txt", "../secret.txt", "/etc/passwd", "docs/../secret.txt", "docs/link", ".ssh/id_rsa"]
)
async def test_a_path_that_leads_elsewhere_is_refused_before_anything_runs(
    tools_dir: Path, project: Path, path: str
) -> None:
    add(tools_dir, "open('docs/ran', 'w')")
    os.symlink("../secret.txt", project / "docs/link")
    with pytest.raises(PathNotAllowed) as caught:
        await run(tools_dir, project, InSubprocess(), path=path)
    assert caught.value.field == "arguments.path"
    assert not (project / "docs/ran").exists()


async def test_a_subprocess_that_takes_too_long_is_killed_with_its_children(
    tools_dir: Path, project: Path
) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "open('docs/pid', 'w').write(str(child.pid))\n"
        "time.sleep(300)"
    )
    add(tools_dir, program, timeout_s=5)
    await run(tools_dir, project, InSubprocess(), path="docs/a.txt")
    pid = int((project / "docs/pid").read_text())
    await asyncio.to_thread(wait_until_gone, pid)


async def test_a_subprocess_does_not_see_the_environment_of_the_service(
    tools_dir: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    add(tools_dir, "import json, os; print(json.dumps(dict(os.environ)))")
    answer = await run(tools_dir, project, InSubprocess(), path="docs/a.txt")
    assert "API_KEY" not in answer.value


async def test_arguments_that_are_not_as_described_are_refused(tools_dir: Path, project: Path) -> None:
    add(tools_dir, WORD_COUNT)
    with pytest.raises(BadRequest, match="arguments"):
        await run(tools_dir, project, InSubprocess(), file="docs/a.txt")


@pytest.mark.parametrize("name", ["Count", "count ", "count.", "ｃount", "../count", ""])
async def test_another_name_is_another_tool(tools_dir: Path, project: Path, name: str) -> None:
    add(tools_dir, WORD_COUNT)
    with pytest.raises(NotFound):
        await call(load_tools(tools_dir), name, {}, project=project, backend=InSubprocess())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"allowed_paths": ["../"]}, "allowed_paths", id="climbs"),
        pytest.param({"allowed_paths": ["/etc"]}, "allowed_paths", id="absolute"),
        pytest.param({"paths": ["other"]}, "paths", id="unknown argument"),
        pytest.param({"timeout_s": 0}, "timeout_s", id="no time"),
        pytest.param({"timeout_s": True}, "timeout_s", id="not a number"),
        pytest.param({"surprise": 1}, "surprise", id="unknown key"),
        pytest.param({"inputs": {"type": "object", "pattern": "(a+)+$"}}, "inputs.pattern", id="expression"),
    ],
)
def test_a_description_that_is_wrong_is_refused_with_the_field(
    tools_dir: Path, changes: dict[str, Any], field: str
) -> None:
    add(tools_dir, WORD_COUNT, **changes)
    with pytest.raises(BadPolicy) as caught:
        load_tools(tools_dir)
    assert caught.value.field == field
