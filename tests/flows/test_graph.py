"""Graphs as files: what is taken, and how what is not taken is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest, BelljarError
from belljar.flows.graph import Graph, Kind, from_data, read, read_file
from belljar.flows.graph_picture import as_svg, as_text

EXAMPLE = Path(__file__).parents[2] / "examples/visitors/graph.yaml"

SEED_NODE = {
    "id": "sandbox_step_1",
    "type": "sandbox_run",
    "language": "python",
    "code": "print('hello')",
    "input_files": ["docs/input/data.csv", ".belljar/runs/{{run_id}}/context.json"],
    "output_prefix": "docs/artifacts/{{run_id}}",
    "allowed_prefixes": ["docs/", ".belljar/runs/{{run_id}}/"],
    "timeout_s": 30,
    "overwrite": False,
    "store_output": "sandbox_result",
}


def run_node(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "sandbox_run", "code": "1", **fields}


def graph(*nodes: dict[str, Any], **top: Any) -> Graph:
    return from_data({"nodes": [*nodes], **top}, "g.json")


def test_the_node_of_the_design_is_taken_as_it_is() -> None:
    assert graph(SEED_NODE).outputs == {"sandbox_result": "sandbox_step_1"}


def test_the_example_is_a_graph() -> None:
    found = read_file(EXAMPLE)
    assert [node.kind for node in found.nodes.values()].count(Kind.SANDBOX_RUN) == 3


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps({"nodes": [SEED_NODE]}))
    assert read_file(tmp_path / "g.json").nodes == graph(SEED_NODE).nodes


def test_a_node_waits_for_all_that_it_needs() -> None:
    found = graph(
        run_node("d", needs=["a"], stdin="{{b.output.stdout}} {{kept}}"),
        run_node("a"),
        run_node("b"),
        run_node("c", store_output="kept"),
        run_node("e"),
        {"id": "if", "type": "condition", "value": 1, "equals": 1, "then": ["e"]},
        edges=[{"from": "e", "to": "d"}],
    )
    assert found.nodes["d"].needs == {"a", "b", "c", "e"}
    assert found.nodes["d"].refers_to == {"b", "c"}
    assert found.nodes["e"].needs == {"if"}
    order = [*found.nodes]
    assert all(
        order.index(one) < order.index(name) for name, node in found.nodes.items() for one in node.needs
    )


def test_the_resolved_graph_has_its_variables_but_not_in_code() -> None:
    found = graph(
        run_node("a", code="print('{{y}}')", stdin="{{x}} {{b.output}}", env={"R": "{{run_id}}"}),
        run_node("b"),
        variables={"x": 1},
    )
    resolved = found.resolved("r1")["nodes"][0]
    assert (resolved["code"], resolved["stdin"], resolved["env"]) == (
        "print('{{y}}')",
        "1 {{b.output}}",
        {"R": "r1"},
    )


BAD: dict[str, tuple[str, str]] = {
    "loop": (
        "nodes:\n- {id: a, type: sandbox_run, code: x, needs: [b]}\n- {id: b, type: sandbox_run, code: x, needs: [a]}",
        "wait for one another: a -> b -> a",
    ),
    "loop-of-itself": ("nodes: [{id: a, type: sandbox_run, code: x, stdin: '{{a.output}}'}]", "a -> a"),
    "unknown-type": (
        "nodes:\n- {id: a, type: sandbox_rum}",
        "g.yaml:2: unknown type `sandbox_rum`; did you mean `sandbox_run`?",
    ),
    "no-type": ("nodes:\n- {id: a}", "no `type`"),
    "unknown-field": (
        "nodes:\n- id: a\n  type: sandbox_run\n  code: x\n  input_file: []",
        "g.yaml:5: a sandbox_run has no `input_file`; did you mean `input_files`?",
    ),
    "unknown-need": (
        "nodes:\n- {id: first, type: sandbox_run, code: x}\n- {id: b, type: sandbox_run, code: x, needs: [frist]}",
        "g.yaml:3: there is no node `frist`; did you mean `first`?",
    ),
    "unknown-reference": (
        "nodes:\n- {id: clean, type: sandbox_run, code: x}\n- {id: b, type: sandbox_run, code: x, stdin: '{{cleen.output}}'}",
        "refers to nothing; did you mean `clean`?",
    ),
    "reference-without-output": (
        "nodes:\n- {id: a, type: sandbox_run, code: x}\n- {id: b, type: sandbox_run, code: x, stdin: '{{a.stdout}}'}",
        "write {{a.output}}",
    ),
    "unknown-edge": (
        "nodes:\n- {id: a, type: sandbox_run, code: x}\nedges: [{from: a, to: z}]",
        "no node `z`",
    ),
    "duplicate-id": (
        "nodes:\n- {id: a, type: sandbox_run, code: x}\n- {id: a, type: sandbox_run, code: y}",
        "g.yaml:3: duplicate id `a`; another node has it on line 2",
    ),
    "duplicate-key": ("nodes:\n- {id: a, type: sandbox_run, code: x, code: y}", "duplicate key `code`"),
    "code-and-code-file": (
        "nodes:\n- {id: a, type: sandbox_run, code: x, code_file: y.py}",
        "either `code` or `code_file`, not both",
    ),
    "no-code": ("nodes:\n- {id: a, type: sandbox_run}", "give `code` or `code_file`"),
    "template-in-code": (
        "variables: {name: x}\nnodes:\n- {id: a, type: sandbox_run, code: \"print('{{name}}')\"}",
        "no value is put into a program; use `env`, `args` or `stdin`",
    ),
    "output-in-code": (
        "nodes:\n- {id: a, type: sandbox_run, code: x}\n- {id: b, type: sandbox_run, code: 'x = {{a.output.stdout}}'}",
        "is in `code`",
    ),
    "item-in-code-of-a-map": (
        "nodes:\n- {id: a, type: map, items: [1], node: {type: sandbox_run, code: 'f({{item}})'}}",
        "is in `code`",
    ),
    "item-outside-a-map": (
        "nodes:\n- {id: a, type: sandbox_run, code: x, stdin: '{{item}}'}",
        "refers to nothing",
    ),
    "map-in-a-map": (
        "nodes:\n- {id: a, type: map, items: [], node: {type: map, items: [], node: {type: sandbox_run, code: x}}}",
        "cannot be inside a map",
    ),
    "wrong-type": ("nodes:\n- {id: a, type: sandbox_run, code: 1}", "code: must be text"),
    "yes-is-no-boolean": (
        "nodes:\n- {id: a, type: sandbox_run, code: x, overwrite: 'yes'}",
        "overwrite: must be true or false",
    ),
    "bad-id": ("nodes:\n- {id: ../a, type: sandbox_run, code: x}", "an id is letters"),
    "id-of-ours": ("nodes:\n- {id: run_id, type: sandbox_run, code: x}", "an id is letters"),
    "output-with-a-nodes-name": (
        "nodes:\n- {id: a, type: sandbox_run, code: x, store_output: a}",
        "is no free name",
    ),
    "two-comparisons": (
        "nodes:\n- {id: a, type: condition, value: 1, equals: 1, less_than: 2}",
        "give one of equals",
    ),
    "no-path": ("nodes:\n- {id: a, type: write_file, content: x}", "`path` is missing"),
    "no-nodes": ("nodes: []", "one node at least"),
    "nothing": ("", "must be a table"),
    "not-yaml": ("nodes: [", "not YAML"),
    "list": ("- 1", "must be a table"),
}


@pytest.mark.parametrize(("text", "says"), [pytest.param(*case, id=name) for name, case in BAD.items()])
def test_a_bad_graph_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(text, "g.yaml")
    assert says in refused.value.message
    assert refused.value.message.startswith("g.yaml")


def test_braces_that_refer_to_nothing_are_just_code() -> None:
    assert graph(run_node("a", code="print(f'{{x}} {{a_name}}')")).nodes


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"nodes": NaN}', '{"nodes": [], "nodes": []}', "[" * 100_000, '"\ud800"']
)
def test_bad_json_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"^g\.json"):
        read(text, "g.json")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["sandbox_run", "map", "{{a.output}}"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["nodes", "id", "type", "code", "needs", "items", "node", "edges", "then"]), inner, max_size=4),
))  # fmt: skip
def test_whatever_it_is_it_is_a_graph_or_an_error_of_ours(data: Any) -> None:
    try:
        from_data(data, "g.json")
    except BelljarError:
        pass


def test_a_variable_that_the_graph_does_not_have_is_refused() -> None:
    with pytest.raises(BadRequest, match="did you mean `year`"):
        from_data({"variables": {"year": 1}, "nodes": [run_node("a")]}, "g", {"yaer": "2"})


def test_a_file_that_is_not_there_is_a_bad_request(tmp_path: Path) -> None:
    for name in ("none.json", "none.yaml"):
        with pytest.raises(BadRequest, match="cannot be read"):
            read_file(tmp_path / name)


def test_a_graph_is_drawn_with_every_node_and_nothing_that_acts() -> None:
    found = graph(run_node("a"), run_node("b", needs=["a"]))
    assert as_text(found).splitlines() == ["a (sandbox_run)", "  b (sandbox_run)  after a"]
    drawn = as_svg(read_file(EXAMPLE))
    assert all(name in drawn for name in read_file(EXAMPLE).nodes)
    assert "<script" not in drawn
