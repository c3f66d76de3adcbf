"""Files that come with a request: content in base64, or for `/run` the name of one in the project's inputs.

The size is known from the text before anything is decoded, and nothing but base64 is decoded.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Tag

from belljar.api.bodies import FORMS, Body, Text
from belljar.errors import BadRequest, LimitExceeded
from belljar.guest import tree
from belljar.models import InputFile

__all__ = ["FileBody", "FileOrName", "decoded", "input_files"]


class FileBody(Body):
    path: Text
    content_b64: str


_FILE, _NAME = FORMS


def _form(given: object) -> str:
    return _NAME if isinstance(given, str) else _FILE


FileOrName = Annotated[Annotated[FileBody, Tag(_FILE)] | Annotated[Text, Tag(_NAME)], Discriminator(_form)]


def input_files(
    given: Sequence[FileBody | str], *, field: str, max_bytes: int, inputs: Path | None = None
) -> tuple[InputFile, ...]:
    """All of them, within `max_bytes` together. `inputs` is where those that are only named lie. May block.

    Raises:
        BadRequest: one is not base64, or not there.
        LimitExceeded: they are too large.
    """
    files = []
    left = max_bytes
    for number, file in enumerate(given):
        place = f"{field}.{number}"
        if isinstance(file, FileBody):
            content = decoded(file.content_b64, left, field=f"{place}.content_b64")
            files.append(InputFile(file.path, content))
        else:
            content = _read_input(inputs, file, left, field=place)
            files.append(InputFile(file, content))
        left -= len(content)
    return tuple(files)


def decoded(text: str, at_most: int, *, field: str) -> bytes:
    if len(text) // 4 * 3 - text.count("=", -2) > at_most:
        raise LimitExceeded(f"{field}: the files together are larger than a request may send", field=field)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii.Error is one; not ASCII is another
        raise BadRequest(
            f"{field}: not base64 (RFC 4648, with padding, without spaces)", field=field
        ) from None


def _read_input(inputs: Path | None, path: str, at_most: int, *, field: str) -> bytes:
    if inputs is None:
        raise BadRequest(f"{field}: must be an object with path and content_b64", field=field)
    try:
        folder = os.open(inputs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise BadRequest(f"{field}: the project has no inputs of its own", field=field) from None
    try:
        return tree.read_file(folder, path, at_most)
    except tree.Refusal as refusal:
        raise BadRequest(
            f"{field}: this file of the project's inputs is {refusal.reason}", field=field
        ) from None
    finally:
        os.close(folder)
