"""The form of a body: a model that takes its own fields only, of their own types, and says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from belljar.errors import BadRequest
from belljar.wording import nearest, quoted

__all__ = ["FORMS", "Body", "Id", "Text", "checked"]

_ID = r"^[!-~]{1,200}$"
_TEXT = r"^[^\x00]*$"
_IN_WORDS = {
    _ID: "must be 1 to 200 visible characters of ASCII, without spaces",
    _TEXT: "must not contain a NUL character",
}

Id = Annotated[str, StringConstraints(pattern=_ID)]
"""A name that a caller gives."""
Text = Annotated[str, StringConstraints(pattern=_TEXT)]
"""Something that can be passed to a program."""

FORMS = ("<file>", "<name>")
"""Tags of alternatives: pydantic names them in the place of a fault, but no caller wrote them."""

_Model = TypeVar("_Model", bound="Body")


class Body(BaseModel):
    """What a request may say: these fields, of these types, and nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def checked(model: type[_Model], value: dict[str, Any]) -> _Model:
    """
    Raises:
        BadRequest: with the first field at fault.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _fault(model, error) from None


def _fault(model: type[Body], error: ValidationError) -> BadRequest:
    """One of pydantic's complaints as a sentence: that of an unknown name, the likely cause of others."""
    found = error.errors(include_url=False, include_input=False)
    first = min(found, key=lambda one: one["type"] != "extra_forbidden")
    unknown = first["type"] == "extra_forbidden"
    *above, last = first["loc"] or ("body",)
    place = [step for step in (*above, *(() if unknown else (last,))) if step not in FORMS]
    if unknown:
        hint = nearest(str(last), _fields(model, place))
        field = ".".join(map(str, (*place, last)))[:200]
        return BadRequest(f"unknown field {quoted(last)}{hint}", field=field)
    field = ".".join(map(str, place))[:200]
    said = first["msg"][:1].lower() + first["msg"][1:]
    pattern = first.get("ctx", {}).get("pattern", "")
    return BadRequest(f"{field}: {_IN_WORDS.get(pattern, said)}", field=field)


def _fields(model: type[BaseModel], place: Iterable[int | str]) -> list[str]:
    """The fields that may be given at a place within a model."""
    for step in place:
        if isinstance(step, str) and step in model.model_fields:
            inner = model.model_fields[step].annotation
            model = next(found for found in _models_in(inner))
    return [*model.model_fields]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)
