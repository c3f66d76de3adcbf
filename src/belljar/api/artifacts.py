"""`/sandbox/execs/{id}/artifacts`: what a run left, as a list, and one file of it.

Every file is hostile. It is handed out as something to save, never as something that a browser would run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response

from belljar.api.answers import json_answer
from belljar.api.calls import Call
from belljar.errors import NotFound

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["FileAnswer", "listing", "one"]

_CHUNK = 1 << 18
_INERT = frozenset(
    {
        "application/json",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
        "text/csv",
        "text/markdown",
        "text/plain",
    }
)
"""Types that nothing runs; any other file is just bytes."""


async def listing(call: Call) -> Response:
    record = await call.record()
    return json_answer(
        {
            "exec_id": record.exec_id,
            "status": record.status,
            "artifacts": record.artifacts,
            "skipped": record.skipped,
        }
    )


async def one(call: Call) -> Response:
    record, path = await call.record(), call.path_params["path"]
    row = next((row for row in record.artifacts if row["path"] == path), None)
    if row is None:
        raise NotFound("this run left no such file", field="path")
    fd, size = await asyncio.to_thread(
        call.service.workspace.open_artifact, record.project_id, record.exec_id, path, row["size"]
    )
    return FileAnswer(fd, size, _headers(row, size))


def _headers(row: Mapping[str, Any], size: int) -> dict[str, str]:
    mime = row["mime"].partition(";")[0].strip()
    name = quote(row["path"].rpartition("/")[2], safe="")
    return {
        "content-type": mime if mime in _INERT else "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-length": str(size),
        "x-content-sha256": row["sha256"],
    }


class FileAnswer(Response):
    """Exactly `size` bytes of an open file, as the headers say; one that has shrunk breaks the connection."""

    def __init__(self, fd: int, size: int, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._fd = fd
        self._size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            left = self._size
            while left:
                chunk = await asyncio.to_thread(os.read, self._fd, min(left, _CHUNK))
                if not chunk:
                    raise OSError("an artifact is shorter than it was")
                left -= len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            os.close(self._fd)
