from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from belljar import errors
from belljar.errors import BelljarError, PathNotAllowed, PolicyEscalation

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = re.compile(
    r"^(?P<indent> {4,})(?P<name>\w+) +(\((?P<note>never .*)\)|(?P<code>[A-Z_]+) +\S.*)$", re.MULTILINE
)


def tree(cls: type[BelljarError], depth: int = 0) -> Iterator[tuple[int, str, str | None]]:
    yield depth, cls.__name__, getattr(cls, "code", None)
    for below in cls.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below, depth + 1)


def drawn() -> Iterator[tuple[int, str, str | None]]:
    for row in ROW.finditer(errors.__doc__ or ""):
        yield (len(row["indent"]) - 4) // 2, row["name"], row["code"]


CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_the_docstring_draws_the_tree() -> None:
    assert list(drawn()) == list(tree(BelljarError))


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [vars(cls)["code"] for cls in CLASSES if cls is not BelljarError]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not BelljarError])
def test_a_code_is_its_class_in_capitals(cls: type[BelljarError]) -> None:
    assert cls.code == re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()


def test_the_root_has_no_code_and_so_cannot_cross_the_wire() -> None:
    assert not hasattr(BelljarError, "code")


def test_an_error_knows_its_message_and_field() -> None:
    error = errors.BadConfig("no such key", field="sandbox.x")
    assert (str(error), error.message, error.field) == ("no such key", "no such key", "sandbox.x")


def test_a_refused_path_says_which_rule_it_breaks() -> None:
    assert PathNotAllowed("has ..", reason="parent", field="path").reason == "parent"


def test_an_escalation_names_field_value_ceiling_and_layer() -> None:
    error = PolicyEscalation(field="limits.memory_mb", asked=4096, ceiling=512, layer="role analyst")
    assert str(error) == "limits.memory_mb: asked for 4096, but layer 'role analyst' grants 512"
    assert (error.field, error.asked, error.ceiling, error.layer) == (
        "limits.memory_mb",
        4096,
        512,
        "role analyst",
    )
