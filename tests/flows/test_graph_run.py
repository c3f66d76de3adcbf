"""Graphs that run: in a real jail where a program runs, with plain functions where only the order matters."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.api.served import TOKEN, serving

from belljar.client import AsyncClient
from belljar.config import Config
from belljar.errors import BadRequest, Conflict, NotFound
from belljar.flows.graph import from_data, read_file
from belljar.flows.graph_nodes import Workshop
from belljar.flows.graph_run import GraphOutcome, Status, resume_graph, run_graph
from belljar.flows.project import Project
from belljar.service import Service
from belljar.settings import WeakerLimits

ROOT = Path(__file__).parents[2]
PREFIXES = ("docs/", ".belljar/runs/")
ARTIFACTS = "docs/artifacts/r1"


async def nobody(task: Mapping[str, Any]) -> Any:
    return task["input"]


async def run(client: Any, folder: Path, *nodes: dict[str, Any], **options: Any) -> GraphOutcome:
    """All of a graph as run `r1` of a project."""
    agents = {"a": options.pop("agent", nobody)}
    graph = from_data({"nodes": [*nodes], **options.pop("top", {})}, "g.json")
    with Project(folder) as project:
        # Other tests have runs of that name at the service, but not in this project of it.
        workshop = Workshop(client, project, project.start("r1"), PREFIXES, agents, token_hex(8))
        return await run_graph(graph, workshop, **options)


async def resume(client: Any, folder: Path, agent: Any = nobody) -> GraphOutcome:
    with Project(folder) as project:
        return await resume_graph(Workshop(client, project, project.again("r1"), PREFIXES, {"a": agent}))


def program(name: str, code: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "sandbox_run", "code": code, **fields}


def task(name: str, value: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "agent_task", "agent": "a", "input": value, **fields}


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / ".belljar/runs/r1/events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def named(folder: Path, name: str) -> list[Path]:
    return [*folder.rglob(name)]


def killed_when(enough: Callable[[], bool], code: str, folder: Path, **environment: str) -> None:
    """A program that was killed as soon as it had done enough."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}) as process:
        while not enough():
            assert process.poll() is None, "it was over before it could be killed"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)


def statuses(outcome: GraphOutcome) -> dict[str, str]:
    return {name: str(state.status) for name, state in outcome.nodes.items()}


# Programs


async def test_a_program_gets_its_files_and_what_it_leaves_lands(client: AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "docs/input").mkdir(parents=True)
    (tmp_path / "docs/input/data.csv").write_text("1,2")
    code = "open('out.txt', 'w').write(open('docs/input/data.csv').read() * 2); print('done')"
    node = program(
        "step",
        code,
        input_files=["docs/input/data.csv"],
        output_prefix="docs/artifacts/{{run_id}}",
        allowed_prefixes=["docs/", ".belljar/runs/{{run_id}}/"],
        timeout_s=30,
        store_output="result",
    )
    outcome = await run(client, tmp_path, node, task("after", "{{result.stdout}}"))
    assert outcome.ok
    assert outcome.nodes["after"].output == "done\n"
    output = outcome.nodes["step"].output
    assert {"exit_code", "timed_out", "duration_ms", "written_files", "stdout", "stderr"} <= output.keys()
    assert output["written_files"] == [f"{ARTIFACTS}/out.txt"]
    assert (tmp_path / ARTIFACTS / "out.txt").read_text() == "1,21,2"
    kept = json.loads((tmp_path / ".belljar/runs/r1/sandbox/step/result.json").read_text())
    assert (kept["exit_code"], kept["exec_id"]) == (0, output["exec_id"])
    told = [
        event["event"] for name in ("sandbox_start", "sandbox_complete") for event in events(tmp_path, name)
    ]
    assert told == ["sandbox_start", "sandbox_complete"]
    assert json.loads((tmp_path / ".belljar/runs/r1/state.json").read_text())["status"] == "finished"
    resolved = json.loads((tmp_path / ".belljar/runs/r1/graph.resolved.json").read_text())
    assert resolved["graph"]["nodes"][0]["output_prefix"] == ARTIFACTS


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"input_files": ["../../etc/passwd"]}, "PATH_NOT_ALLOWED", id="input-parent"),
        pytest.param({"input_files": ["/etc/passwd"]}, "PATH_NOT_ALLOWED", id="input-absolute"),
        pytest.param({"input_files": ["{{evil}}"]}, "PATH_NOT_ALLOWED", id="input-by-template"),
        pytest.param({"input_files": ["src/x"], "allowed_prefixes": ["docs/"]}, "PATH_NOT_ALLOWED", id="input-prefix"),
        pytest.param({"output_prefix": "docs/../../out"}, "PATH_NOT_ALLOWED", id="output-parent"),
        pytest.param({"output_prefix": "src"}, "PATH_NOT_ALLOWED", id="output-outside"),
        pytest.param({"output_prefix": "src", "allowed_prefixes": ["src"]}, "PATH_NOT_ALLOWED", id="output-widened"),
        pytest.param({"output_prefix": "docs/x", "allowed_prefixes": ["docs/y"]}, "PATH_NOT_ALLOWED", id="output-narrowed"),
        pytest.param({"policy": {"memory_mb": 10**9}}, "POLICY_ESCALATION", id="escalation"),
        pytest.param({"policy": {"memroy_mb": 64}}, "BAD_REQUEST", id="unknown-policy"),
        pytest.param({"language": "cobol"}, "UNSUPPORTED_LANGUAGE", id="language"),
    ],
)  # fmt: skip
async def test_what_may_not_be_is_refused_and_nothing_runs(
    client: AsyncClient, tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    outcome = await run(
        client,
        tmp_path,
        program("x", "open('f', 'w')", **fields),
        top={"variables": {"evil": "../../etc/passwd"}},
    )
    error = outcome.nodes["x"].error
    assert error is not None
    assert error["code"] in (code, "BAD_POLICY")
    assert not events(tmp_path, "sandbox_complete")
    assert not named(tmp_path / "docs", "f")


async def test_files_past_their_limit_are_refused(client: AsyncClient, tmp_path: Path) -> None:
    code = "open('large', 'wb').write(bytes(3 << 20))"
    outcome = await run(client, tmp_path, program("x", code, policy={"artifact_mb": 1}))
    assert outcome.nodes["x"].error is not None
    assert outcome.nodes["x"].error["code"] == "LIMIT_EXCEEDED"
    assert not named(tmp_path / "docs", "large")


async def test_a_file_that_exists_is_replaced_only_when_asked(client: AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "docs/out").mkdir(parents=True)
    (tmp_path / "docs/out/f").write_text("mine")
    node = program("x", "open('f', 'w').write('theirs')", output_prefix="docs/out")
    refused = await run(client, tmp_path, node)
    assert statuses(refused) == {"x": "failed"}
    assert (tmp_path / "docs/out/f").read_text() == "mine"
    assert (await run(client, tmp_path, node | {"overwrite": True})).ok
    assert (tmp_path / "docs/out/f").read_text() == "theirs"
    assert [event["path"] for event in events(tmp_path, "overwrite")] == ["docs/out/f"]


async def test_a_program_that_fails_fails_its_node_unless_that_is_allowed(
    client: AsyncClient, tmp_path: Path
) -> None:
    nodes = [
        program("bad", "import sys; sys.exit('no')"),
        program("after", "1", needs=["bad"]),
        program("other", "print(1)"),
        program("may", "import sys; sys.exit(3)", allow_failure=True),
        {"id": "look", "type": "condition", "value": "{{may.output.exit_code}}", "equals": 3},
    ]
    outcome = await run(client, tmp_path, *nodes)
    assert statuses(outcome) == {
        "bad": "failed", "after": "blocked", "other": "finished", "may": "finished", "look": "finished",
    }  # fmt: skip
    assert "no" in str(outcome.nodes["bad"].error)
    assert outcome.nodes["look"].output is True


async def test_values_reach_a_program_as_data(client: AsyncClient, tmp_path: Path) -> None:
    evil = "'); import os; os._exit(7) #\n$(id) {{run_id}}"
    code = "import os, sys; print([sys.argv[1], os.environ['E'], sys.stdin.read()].count(sys.argv[1]))"
    node = program("x", code, args=["{{t.output}}"], env={"E": "{{t.output}}"}, stdin="{{t.output}}")
    outcome = await run(client, tmp_path, task("t", evil), node)
    assert outcome.nodes["x"].output["stdout"] == "3\n"


async def test_a_graph_that_is_cancelled_ends_its_programs(client: AsyncClient, tmp_path: Path) -> None:
    graph = from_data({"nodes": [program("x", "import time; time.sleep(50)")]}, "g")
    with Project(tmp_path) as project:
        workshop = Workshop(client, project, project.start("r1"), PREFIXES, project_id="cancelled")
        running = asyncio.create_task(run_graph(graph, workshop))
        for _ in range(6000):
            found = (await client.execs(project_id="cancelled", status="running")).records
            if found:
                break
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    told = [event async for event in client.events(found[0]["exec_id"])]
    assert told[-1].data["verdict"] == "cancelled"
    assert [event["reason"] for event in events(tmp_path, "sandbox_failed")] == ["CancelledError"]


async def test_a_code_file_says_its_language(client: AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/x.sh").write_text("echo $((6 * 7))")
    node = {"id": "x", "type": "sandbox_run", "code_file": "scripts/x.sh"}
    outcome = await run(client, tmp_path, node)
    assert outcome.nodes["x"].output["stdout"] == "42\n"


async def test_a_tool_is_called(client: AsyncClient, tmp_path: Path) -> None:
    node = {"id": "x", "type": "tool.call", "tool": "code_run", "arguments": {"code": "print(6 * 7)"}}
    outcome = await run(client, tmp_path, node, {**node, "id": "y", "type": "tool_call", "tool": "no_such"})
    assert "42" in json.dumps(outcome.nodes["x"].output), outcome
    assert statuses(outcome)["y"] == "failed"


async def test_the_same_graph_runs_by_a_service(jail: None, tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path / "data", token=TOKEN, jail_accept_weaker_limits=WeakerLimits.ALWAYS)
    async with Service.open(config) as service, serving(service) as port:
        async with AsyncClient(f"http://127.0.0.1:{port}", TOKEN) as client:
            outcome = await run(client, tmp_path, program("a", "print(1)"), task("b", "{{a.output.stdout}}"))
    assert outcome.nodes["b"].output == "1\n"


@pytest.mark.timeout(120)
async def test_the_example_draws_its_chart(client: AsyncClient, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/visitors", tmp_path / "examples/visitors")
    graph = read_file(tmp_path / "examples/visitors/graph.yaml")
    with Project(tmp_path) as project:
        outcome = await run_graph(
            graph, Workshop(client, project, project.start("r1"), PREFIXES, project_id="example")
        )
    assert outcome.ok, outcome
    assert (tmp_path / ARTIFACTS / "visitors.svg").read_text().count("<circle") == 4
    assert "stand out: 4" in (tmp_path / ARTIFACTS / "report.md").read_text()


# Order. No program runs in these, so there is nobody to run it.


async def test_independent_nodes_run_at_the_same_time(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def meets(task: Mapping[str, Any]) -> None:
        await both.wait()

    async with asyncio.timeout(30):
        assert (await run(None, tmp_path, task("x"), task("y"), agent=meets)).ok


async def test_no_more_than_asked_run_at_once(tmp_path: Path) -> None:
    running, most = 0, 0

    async def counts(task: Mapping[str, Any]) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return int(task["input"])

    node = {"id": "m", "type": "map", "items": [*range(20)], "max_parallel": 3, "node": task("n", "{{item}}")}
    outcome = await run(None, tmp_path, node, agent=counts)
    assert (outcome.nodes["m"].output, most) == ([*range(20)], 3)
    most = 0
    await run(None, tmp_path, *(task(f"t{n}", n) for n in range(20)), agent=counts, at_once=2)
    assert most == 2


async def test_a_map_has_items_and_their_number(tmp_path: Path) -> None:
    node = {"id": "m", "type": "map", "items": "{{x.output}}", "node": task("n", "{{index}}: {{item.k}}")}
    outcome = await run(None, tmp_path, task("x", [{"k": 1}, {"k": 2}]), node)
    assert outcome.nodes["m"].output == ["0: 1", "1: 2"]
    assert statuses(await run(None, tmp_path, task("x", "no list"), node))["m"] == "failed"


@pytest.mark.parametrize(
    ("value", "comparison", "holds"),
    [
        pytest.param("5\n", {"greater_than": 4}, True, id="printed-number"),
        pytest.param(5, {"less_than": "4"}, False, id="less"),
        pytest.param("abc", {"contains": "b"}, True, id="contains"),
        pytest.param([1], {"contains": 2}, False, id="not-in-list"),
        pytest.param(None, {"not_equals": 1}, True, id="not-equal"),
    ],
)
async def test_a_condition_decides_which_branch_goes_on(
    tmp_path: Path, value: Any, comparison: dict[str, Any], holds: bool
) -> None:
    outcome = await run(
        None,
        tmp_path,
        task("v", value),
        {
            "id": "c",
            "type": "condition",
            "value": "{{v.output}}",
            "then": ["yes"],
            "else": ["no"],
            **comparison,
        },
        task("yes", 1),
        task("no", 2),
        task("uses_yes", "{{yes.output}}"),
        task("join", needs=["yes", "no"]),
    )
    taken, left = ("finished", "skipped") if holds else ("skipped", "finished")
    found = statuses(outcome)
    assert (found["yes"], found["no"], found["uses_yes"], found["join"]) == (taken, left, taken, "finished")
    assert outcome.ok


async def test_a_file_is_written_where_it_may_be(tmp_path: Path) -> None:
    good = {"id": "w", "type": "write_file", "path": "docs/{{run_id}}/a.md", "content": "x {{t.output}}"}
    bad = {"id": "b", "type": "write_file", "path": "src/a.py", "content": "x"}
    up = {"id": "u", "type": "write_file", "path": "docs/{{t.output}}", "content": "x"}
    outcome = await run(None, tmp_path, task("t", "../../up"), good, bad, up)
    assert statuses(outcome) == {"t": "finished", "w": "finished", "b": "failed", "u": "failed"}
    assert (tmp_path / "docs/r1/a.md").read_text() == "x ../../up"
    assert not (tmp_path.parent / "up").exists()


async def test_an_agent_that_raises_fails_its_node(tmp_path: Path) -> None:
    async def raises(task: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("of its own")

    outcome = await run(None, tmp_path, task("x"), agent=raises)
    assert "ZeroDivisionError" in str(outcome.nodes["x"].error)

    async def odd(task: Mapping[str, Any]) -> object:
        return object()

    assert not (await run(None, tmp_path, task("x"), agent=odd)).ok


async def test_an_agent_that_nobody_named_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no agent `b`"):
        await run(None, tmp_path, task("x"), task("y") | {"agent": "b"})
    assert not events(tmp_path, "node_start")


# Broken off, and gone on with


async def test_what_failed_is_run_again_and_what_finished_is_not(tmp_path: Path) -> None:
    calls: list[str] = []
    broken = True

    async def sometimes(task: Mapping[str, Any]) -> str:
        calls.append(task["node"])
        if task["node"] in ("b", "m.1") and broken:
            raise ValueError("not yet")
        return f"{task['node']}!"

    nodes = [
        task("a"), task("b", needs=["a"]), task("c", "{{b.output}}"),
        {"id": "m", "type": "map", "items": [0, 1], "max_parallel": 1, "node": task("n")},
    ]  # fmt: skip
    first = await run(None, tmp_path, *nodes, agent=sometimes)
    assert statuses(first) == {"a": "finished", "b": "failed", "m": "failed", "c": "blocked"}
    broken = False
    again = await resume(None, tmp_path, sometimes)
    assert again.ok
    assert sorted(calls) == ["a", "b", "b", "c", "m.0", "m.1", "m.1"]
    assert again.nodes["b"].attempts == 2
    assert again.nodes["m"].output == ["m.0!", "m.1!"]


async def test_a_step_that_runs_again_may_replace_its_own_files(client: AsyncClient, tmp_path: Path) -> None:
    code = "open('f', 'w').write('x'); open('n', 'w'); import sys; sys.exit(len(open('docs/ok').read()))"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/ok").write_text("not")
    node = program("x", code, input_files=["docs/ok"])
    assert not (await run(client, tmp_path, node)).ok
    (tmp_path / "docs/ok").write_text("")
    assert (await resume(client, tmp_path)).ok


async def test_a_variable_that_looks_like_a_template_is_none_when_it_goes_on(tmp_path: Path) -> None:
    async def fails_once(one: Mapping[str, Any]) -> Any:
        if len(events(tmp_path, "node_start")) == 1:
            raise ValueError("not yet")
        return one["input"]

    top = {"variables": {"x": "{{run_id}}"}}
    assert not (await run(None, tmp_path, task("a", "{{x}}"), agent=fails_once, top=top)).ok
    assert (await resume(None, tmp_path, fails_once)).nodes["a"].output == "{{run_id}}"


async def test_only_a_run_of_a_graph_goes_on(tmp_path: Path) -> None:
    with Project(tmp_path) as project:
        project.start("r1")
    with pytest.raises(NotFound):
        await resume(None, tmp_path)


async def test_a_run_that_is_going_on_is_left_alone(tmp_path: Path) -> None:
    async def looks(one: Mapping[str, Any]) -> None:
        with pytest.raises(Conflict):
            await resume(None, tmp_path)

    outcome = await run(None, tmp_path, task("x"), agent=looks)
    assert outcome.ok, outcome


MANY = """
import asyncio, os, sys
from pathlib import Path
from belljar.flows.graph import from_data
from belljar.flows.graph_nodes import Workshop
from belljar.flows.graph_run import run_graph
from belljar.flows.project import Project
done = os.open("done.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
async def agent(task):
    enough = os.fstat(done).st_size > 2000
    await asyncio.sleep(0.2 if enough else 0.001)  # from then on it can be killed at leisure
    os.write(done, (task["node"] + "\\n").encode())
    return task["node"]
nodes = [{"id": f"n{n}", "type": "agent_task", "agent": "a", "needs": [f"n{n - 7}"] if n >= 7 else []} for n in range(1000)]
nodes.append({"id": "m", "type": "map", "items": list(range(50)), "node": {"type": "agent_task", "agent": "a"}})
with Project(Path()) as project:
    workshop = Workshop(None, project, project.start("r1"), ("docs/",), {"a": agent})
    asyncio.run(run_graph(from_data({"nodes": nodes}, "g"), workshop))
"""


async def test_a_graph_of_a_thousand_nodes_survives_being_killed(tmp_path: Path) -> None:
    done = tmp_path / "done.txt"
    killed_when(lambda: done.exists() and done.read_text().count("\n") >= 300, MANY, tmp_path)
    before = {event["node"] for event in events(tmp_path, "node_complete")}
    assert 200 < len(before) < 1050
    ran: list[str] = []

    async def agent(task: Mapping[str, Any]) -> str:
        ran.append(task["node"])
        return str(task["node"])

    outcome = await resume(None, tmp_path, agent)
    assert outcome.ok
    assert not before & set(ran), "what was finished is not run again"
    assert len(ran) == len(set(ran))
    steps = {f"n{n}" for n in range(1000)} | {f"m.{n}" for n in range(50)}
    assert before | set(ran) >= steps
    assert all(outcome.nodes[name].output == name for name in outcome.nodes if name != "m")
    state = json.loads((tmp_path / ".belljar/runs/r1/state.json").read_text())
    assert {node["status"] for node in state["nodes"].values()} == {Status.FINISHED}


JARS = """
import asyncio, sys
from pathlib import Path
from belljar import alocal
from belljar.flows.graph import from_data
from belljar.flows.graph_nodes import Workshop
from belljar.flows.graph_run import run_graph
from belljar.flows.project import Project
code = "import sys; open(sys.argv[1], 'w').write(sys.argv[1] * 10)"
nodes = [{"id": f"n{n}", "type": "sandbox_run", "code": code, "args": [f"f{n}"], "output_prefix": "docs/out",
          "needs": [f"n{n - 2}"] if n > 1 else []} for n in range(24)]
async def main():
    with Project(Path()) as project:
        async with alocal() as client:
            workshop = Workshop(client, project, project.start("r1"), ("docs/",))
            await run_graph(from_data({"nodes": nodes}, "g"), workshop)
asyncio.run(main())
"""


async def test_a_graph_of_jars_that_is_killed_leaves_every_file_whole(
    client: AsyncClient, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    killed_when(
        lambda: len(named(folder / "docs", "f*")) >= 5,
        JARS,
        folder,
        BELLJAR_DATA_DIR=str(tmp_path / "data"),
        BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS="always",
    )
    outcome = await resume(client, folder)
    assert outcome.ok, outcome
    files = {path.name: path.read_text() for path in named(folder / "docs/out", "*")}
    assert files == {f"f{n}": f"f{n}" * 10 for n in range(24)}
