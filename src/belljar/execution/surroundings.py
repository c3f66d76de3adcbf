"""What a run finds in its session and did not bring itself.

A person's yes to such a run is bound to the files there, by the sha256 of each. What cannot be told by its
bytes (a link, a pipe, a name that cannot be read back) cannot be bound, so it is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from belljar.engines.base import Area
from belljar.engines.collecting import MAX_DEPTH
from belljar.engines.kept import KeptJar
from belljar.errors import BadRequest, LimitExceeded, NotFound, Refused

__all__ = ["Shared", "Surroundings", "files_of"]

PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Surroundings:
    files: Mapping[str, str]
    """By `area/path`."""
    begun: int
    """So many programs had been begun: another may change what no file shows, such as `/tmp` or variables."""


@runtime_checkable
class Shared(Protocol):
    """Where a run is not the first: a session."""

    async def surroundings(self) -> Surroundings: ...

    def alone(self, seen: Surroundings, *, still: bool) -> AbstractAsyncContextManager[None]: ...


async def files_of(kept: KeptJar) -> dict[str, str]:
    """All of them, as `area/path`. Only a piece of one is in memory at a time.

    Raises:
        Refused: something there cannot be bound.
    """
    found: dict[str, str] = {}
    left = kept.jar.grant.limits.workspace_mb << 20
    for area in Area:
        for entry in await kept.listing(area, depth=MAX_DEPTH):
            name = f"{area}/{entry.path}"
            if entry.kind == "directory" and entry.path.count("/") + 1 < MAX_DEPTH:
                continue
            if entry.kind != "regular":
                raise _unbound(name, entry.kind)
            try:
                found[name], size = await _sha256(kept, area, entry.path, left)
            except (BadRequest, NotFound) as error:
                raise _unbound(name, error.message) from error
            left -= size
    return found


async def _sha256(kept: KeptJar, area: Area, path: str, most: int) -> tuple[str, int]:
    digest, offset = hashlib.sha256(), 0
    while True:
        piece, size = await kept.read(area, path, offset=offset, length=PIECE)
        if size > most:
            raise LimitExceeded("the files are larger than the workspace")
        digest.update(piece)
        offset += len(piece)
        if not piece or offset >= size:
            return digest.hexdigest(), offset


def _unbound(name: str, why: str) -> Refused:
    return Refused(
        f"a person has to see this run first, and {name} in the session cannot be shown ({why}); remove it",
        field="session_id",
    )
