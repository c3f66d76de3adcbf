from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

GRAPH = """
variables: {who: nobody}
nodes:
  - {id: hello, type: sandbox_run, code: "import os; open('x', 'w').write(os.environ['WHO'])", env: {WHO: "{{who}}"}}
  - {id: fails, type: sandbox_run, code: "import sys; sys.exit('no\\x1b[2J')", needs: [hello]}
  - {id: after, type: sandbox_run, code: "1", needs: [fails]}
"""
HERE = {"BELLJAR_PORT": "9", "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always"}


@pytest.fixture
def graph(belljar: Belljar) -> str:
    Path("g.yaml").write_text(GRAPH)
    return "g.yaml"


@pytest.mark.usefixtures("jail")
def test_a_graph_runs_and_goes_on_where_it_failed(belljar: Belljar, graph: str) -> None:
    ran = belljar("graph", "run", graph, "--var", "who=you", **HERE)
    assert ran.status == 1
    [path] = ran.out.splitlines()
    assert Path(path).read_text() == "you"
    assert "hello: finished" in ran.err
    assert "after: blocked" in ran.err
    assert "\x1b" not in ran.err
    run_id = Path(path).parent.name
    assert f"belljar graph resume {run_id}" in ran.err
    again = belljar("graph", "resume", run_id, "--json", **HERE)
    assert again.status == 1
    nodes = again.json["nodes"]
    assert (nodes["hello"]["attempts"], nodes["fails"]["attempts"]) == (1, 2)


def test_by_a_service_it_is_the_same(caller: Belljar) -> None:
    Path("g.json").write_text(json.dumps({"nodes": [{"id": "a", "type": "sandbox_run", "code": "print(7)"}]}))
    there = caller("graph", "run", "g.json", "--json")
    assert (there.status, there.json["nodes"]["a"]["output"]["stdout"]) == (0, "7\n")
    exec_id = there.json["nodes"]["a"]["output"]["exec_id"]
    assert caller("execs", "show", exec_id, "--json").json["exit_code"] == 0


@pytest.mark.usefixtures("jail")
def test_how_to_go_on_holds_outside_the_project_too(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "other one").mkdir()
    Path("g.yaml").write_text(GRAPH)
    ran = belljar("graph", "run", "g.yaml", "--project", str(tmp_path / "other one"), **HERE)
    [line] = [line for line in ran.err.splitlines() if "go on with" in line]
    command = shlex.split(line.partition("belljar graph ")[2])
    assert belljar("graph", *command, **HERE).status == 1
    assert command[2:] == ["--project", str(tmp_path / "other one")]


def test_a_graph_is_shown_to_programs_as_it_is_validated(belljar: Belljar, graph: str) -> None:
    shown = belljar("graph", "show", graph, "--json").json
    assert [(node["id"], node["needs"]) for node in shown["nodes"]] == [
        ("hello", []),
        ("fails", ["hello"]),
        ("after", ["fails"]),
    ]
    assert belljar("graph", "validate", graph, "--json").json == shown


@pytest.mark.usefixtures("jail")
def test_an_agent_is_whom_the_user_names(belljar: Belljar) -> None:
    Path("mine.py").write_text("def plan(task): return task['prompt'].upper()")
    Path("g.yaml").write_text("nodes: [{id: a, type: agent_task, agent: planner, prompt: go}]")
    refused = belljar("graph", "run", "g.yaml", **HERE)
    assert (refused.status, "no agent `planner`" in refused.err) == (2, True)
    ran = belljar("graph", "run", "g.yaml", "--agent", "planner=mine:plan", "--json", **HERE)
    assert ran.json["nodes"]["a"]["output"] == "GO"


def test_a_graph_is_checked_and_drawn(belljar: Belljar, graph: str) -> None:
    assert belljar("graph", "validate", graph).out == "g.yaml: 3 nodes, nothing wrong\n"
    assert belljar("graph", "validate", graph, "--json").json["nodes"][1]["needs"] == ["hello"]
    assert "  fails (sandbox_run)  after hello" in belljar("graph", "show", graph).out
    assert belljar("graph", "show", graph, "--format", "svg", "-o", "g.svg").status == 0
    assert Path("g.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("run", "bad.yaml"), id="bad"),
        pytest.param(("run", "none.yaml"), id="missing"),
        pytest.param(("run", "g.yaml", "--var", "x"), id="no-value"),
        pytest.param(("run", "g.yaml", "--var", "whoo=x"), id="unknown-variable"),
        pytest.param(("run", "g.yaml", "--agent", "a=os"), id="no-function"),
        pytest.param(("run", "g.yaml", "--project", "none"), id="no-project"),
        pytest.param(("resume", "none"), id="no-run"),
        pytest.param(("resume", "../.."), id="no-run-but-a-path"),
        pytest.param(("show", "g.yaml", "-o", "none/x.svg"), id="cannot-be-written"),
    ],
)
def test_what_is_wrong_is_one_line(belljar: Belljar, graph: str, arguments: tuple[str, ...]) -> None:
    Path("bad.yaml").write_text("nodes: [{id: a, type: sandbox_rum}]")
    ran = belljar("graph", *arguments, **HERE)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
