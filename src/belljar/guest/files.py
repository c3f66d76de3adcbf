"""The files of a session, looked at and changed while its programs live: list, read, remove, move, mkdir.

Everything is named by area and path and opened by descriptor (`tree`), and everything that is sent has a cap
from the host. What a program changes meanwhile can only change what is sent. Standard library only.
"""

from __future__ import annotations

import os
import time

from belljar.guest import protocol, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

REMOVING_S = 3.0
"""For one removal: a program may add as fast as we take away."""
_PER_FRAME = 256
_NAMES_PER_FRAME = 1 << 16
"""Bytes of paths, far enough from MAX_PAYLOAD however they are written."""


def answer(areas: dict[str, int], stream: int, request: dict[str, Any]) -> Iterator[bytes]:
    """Frames that answer one operation; END is the last of them."""
    area, path = areas[request["area"]], os.fsencode(request["path"])
    outcome: dict[str, object] = {}
    if request["op"] == "list":
        yield from _list(area, path, stream, request)
    elif request["op"] == "read":
        outcome["size"] = yield from _read(area, path, stream, request)
    elif request["op"] == "remove":
        tree.remove_tree(area, path, time.monotonic() + REMOVING_S)
    elif request["op"] == "move":
        tree.move(area, path, os.fsencode(request["to"]))
    else:
        tree.make_directory(area, path)
    yield protocol.encode_json(protocol.END, stream, **outcome)


def _list(area: int, path: bytes, stream: int, request: dict[str, Any]) -> Iterator[bytes]:
    fd = tree.open_beneath(area, path, os.O_DIRECTORY) if path else os.dup(area)
    try:
        found: list[object] = []
        name_bytes = 0
        for entry in tree.listing(
            fd,
            max_entries=request["max_entries"],
            max_depth=request["max_depth"],
            max_name_bytes=request["max_name_bytes"],
            directories=True,
        ):
            if isinstance(entry, tree.Skip):
                if entry.reason == tree.TOO_DEEP:
                    continue  # it was named as a directory
                found.append({"path": tree.display_name(entry.path), "kind": entry.reason})
            else:
                found.append(
                    {
                        "path": tree.display_name(entry.path),
                        "kind": entry.kind,
                        "size": entry.size,
                        "mtime_ns": entry.mtime_ns,
                        "mode": entry.mode,
                    }
                )
            name_bytes += len(entry.path)
            if len(found) == _PER_FRAME or name_bytes > _NAMES_PER_FRAME:
                yield protocol.encode_json(protocol.NOTE, stream, entries=found)
                found, name_bytes = [], 0
        yield protocol.encode_json(protocol.NOTE, stream, entries=found)
    finally:
        os.close(fd)


def _read(area: int, path: bytes, stream: int, request: dict[str, Any]) -> Any:
    """DATA of the wanted range; returns the whole size."""
    fd, size = tree.open_regular(area, path, 1 << 62)
    try:
        os.lseek(fd, request["offset"], os.SEEK_SET)
        left = request["length"]
        while left > 0 and (chunk := os.read(fd, min(left, protocol.CHUNK))):
            left -= len(chunk)
            yield protocol.encode(protocol.DATA, stream, chunk)
    finally:
        os.close(fd)
    return size
