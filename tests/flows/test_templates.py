from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadRequest
from belljar.flows.templates import at, filled, references

SCOPE: dict[str, Any] = {"run_id": "r1", "a.output": {"x": [1, 2]}, "n": 3, "text": "{{run_id}}"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param("{{run_id}}", "r1", id="alone"),
        pytest.param("a/{{ run_id }}/b", "a/r1/b", id="within"),
        pytest.param("{{n}}", 3, id="keeps-its-type"),
        pytest.param("n is {{n}}", "n is 3", id="text-in-text"),
        pytest.param("{{a.output}} {{n}}", '{"x": [1, 2]} 3', id="json-in-text"),
        pytest.param(["{{n}}", {"k-{{n}}": "{{a.output}}"}], [3, {"k-3": {"x": [1, 2]}}], id="nested"),
        pytest.param("{{text}}", "{{run_id}}", id="not-filled-twice"),
        pytest.param("<{{text}}>", "<{{run_id}}>", id="not-filled-twice-in-text"),
        pytest.param("{{unknown}} {n} {{ 1 }}", "{{unknown}} {n} {{ 1 }}", id="left-alone"),
    ],
)
def test_a_template_becomes_what_it_stands_for(given: Any, wanted: Any) -> None:
    assert filled(given, SCOPE.__getitem__) == wanted


def test_references_are_found_wherever_they_are() -> None:
    assert [*references({"{{a}}": ["{{b.c}} {{d}}", 1, None]})] == ["a", "b.c", "d"]


def test_a_step_that_is_not_there_is_told() -> None:
    assert at({"x": [10, 20]}, "a.x.1", ["x", "1"]) == 20
    with pytest.raises(BadRequest, match="no `y`; it has x"):
        at({"x": 1}, "a.y", ["y"])


@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_a_program_said_is_never_a_template(value: Any) -> None:
    assert filled("{{said}}", {"said": value}.__getitem__) == value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    assert filled("<{{said}}>", {"said": value}.__getitem__) == f"<{text}>"
