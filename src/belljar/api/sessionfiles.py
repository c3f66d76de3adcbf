"""`/sandbox/sessions/{id}/files`: look at the files of a session, and change them, while programs run.

Every file is hostile: its content goes out as something to save, a piece at a time, and what it was when the
first piece was read is what the headers say; one that shrinks meanwhile breaks the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from starlette.responses import Response

from belljar import paths
from belljar.api.answers import json_answer
from belljar.api.bodies import Body, Text
from belljar.api.calls import Call
from belljar.api.errors import WrongRequest
from belljar.api.sessions import open_session
from belljar.api.streams import EventStream, Message, last_event_id
from belljar.engines.base import Area
from belljar.engines.kept import FileEntry
from belljar.errors import BadRequest, BelljarError, LimitExceeded, NotFound, PathNotAllowed
from belljar.execution import archives
from belljar.execution.events import RunEvent
from belljar.execution.session import Session
from belljar.models import InputFile

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = [
    "MAX_DEPTH",
    "MkdirBody",
    "MoveBody",
    "archive",
    "content",
    "listing",
    "mkdir",
    "move",
    "put_archive",
    "put_content",
    "remove",
    "watch",
]

CHUNK = 1 << 20
MAX_DEPTH = 64
LOOK_AGAIN_S = 0.5
MAX_WATCHERS = 8
"""Of one session: each of them has it list its files twice a second."""

_RANGE = re.compile(r"bytes=(?!-$)([0-9]{0,18})-([0-9]{0,18})")
"""One range; what is none, or several, is answered with the whole file."""


_Change = tuple[str, Mapping[str, Any]]
_AreaName = Literal["inputs", "work", "artifacts"]


class MoveBody(Body):
    area: _AreaName = "work"
    path: Text
    to: Text


class MkdirBody(Body):
    area: _AreaName = "work"
    path: Text


async def listing(call: Call) -> Response:
    asked = call.asked(("area", "path", "depth"))
    area, path = _area(asked), _path(asked, needed=False)
    depth = asked.get("depth", "1")
    if not (depth.isascii() and depth.isdecimal() and len(depth) < 3 and 1 <= int(depth) <= MAX_DEPTH):
        raise BadRequest(f"depth is a number from 1 to {MAX_DEPTH}", field="depth")
    session = await open_session(call)
    session.used()
    entries, complete = _told(await session.kept.listing(area, path, depth=int(depth)))
    files = [
        {"path": one.path, "kind": one.kind, "size": one.size, "mtime_ns": one.mtime_ns, "mode": one.mode}
        for one in entries
    ]
    return json_answer({"area": area, "path": path, "files": files, "complete": complete})


async def content(call: Call) -> Response:
    asked = call.asked(("area", "path"))
    area, path = _area(asked), _path(asked)
    session = await open_session(call)
    session.used()
    wanted = _RANGE.fullmatch(call.headers.get("range", ""))
    first, last = (wanted[1], wanted[2]) if wanted else ("0", "")
    _, size = await session.kept.read(area, path, length=0)
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}",
        "accept-ranges": "bytes",
    }
    status = 200
    if wanted:
        if start >= end:
            raise WrongRequest(
                416, f"the file has {size} bytes", field="Range", **{"content-range": f"bytes */{size}"}
            )
        status = 206
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    headers["content-length"] = str(end - start)
    return _Pieces(_range(session, area, path, start, end), headers, status)


async def put_content(call: Call) -> Response:
    asked = call.asked(("area", "path"))
    area, path = _area(asked), _path(asked)
    session = await open_session(call)
    data = bytes(await call.read_bytes())
    await _put(session, area, [InputFile(path, data)])
    return json_answer({"area": area, "path": path, "size": len(data)})


async def remove(call: Call) -> Response:
    await call.no_body()
    asked = call.asked(("area", "path"))
    area, path = _area(asked), _path(asked)
    with (await open_session(call)).changing() as kept:
        await kept.remove(area, path)
    return json_answer({"area": area, "path": path})


async def move(call: Call) -> Response:
    body = await call.said(MoveBody)
    path, to = paths.validate(body.path, field="path"), paths.validate(body.to, field="to")
    with (await open_session(call)).changing() as kept:
        await kept.move(Area(body.area), path, to)
    return json_answer({"area": body.area, "path": to})


async def mkdir(call: Call) -> Response:
    body = await call.said(MkdirBody)
    path = paths.validate(body.path, field="path")
    with (await open_session(call)).changing() as kept:
        await kept.make_directory(Area(body.area), path)
    return json_answer({"area": body.area, "path": path})


async def archive(call: Call) -> Response:
    asked = call.asked(("area", "path"))
    area, path = _area(asked), _path(asked, needed=False)
    session = await open_session(call)
    session.used()
    entries, _ = _told(await session.kept.listing(area, path, depth=MAX_DEPTH))
    headers = {
        "content-type": "application/x-tar",
        "content-disposition": "attachment; filename=files.tar",
    }
    return _Pieces(_packed(session, area, path, entries), headers)


async def put_archive(call: Call) -> Response:
    asked = call.asked(("area", "path"))
    area, below = _area(asked), _path(asked, needed=False)
    session = await open_session(call)
    limits = session.grant.limits
    entries = await asyncio.to_thread(
        archives.unpacked, await call.read_bytes(), max_files=min(limits.input_files, limits.workspace_files)
    )
    files, folders = [], []
    for entry in entries:
        path = paths.validate(f"{below}/{entry.path}", field="archive") if below else entry.path
        if entry.content is None:
            folders.append(path)
        else:
            files.append(InputFile(path, entry.content))
    with session.changing() as kept:
        for path in folders:
            await kept.make_directory(area, path)
    await _put(session, area, files)
    return json_answer({"area": area, "path": below, "files": len(files), "folders": len(folders)})


async def watch(call: Call) -> Response:
    asked = call.asked(("area", "path"))
    area, path = _area(asked), _path(asked, needed=False)
    after = last_event_id(call.headers.get("last-event-id"))
    session = await open_session(call)
    await session.kept.listing(area, path)  # a folder that is not there is said at once
    if session.watchers >= MAX_WATCHERS:
        raise LimitExceeded(f"a session is watched by at most {MAX_WATCHERS}", field="session_id")
    return EventStream(_numbered(_changes(session, area, path), after), call.desk.patience.heartbeat_s)


async def _numbered(changes: AsyncGenerator[_Change, None], after: int) -> AsyncGenerator[Message, None]:
    """Who comes back is not told what it missed, but is told `watching` again, under numbers of its own."""
    async with aclosing(changes):
        async for kind, data in changes:
            after += 1
            yield RunEvent(after, kind, data)


async def _changes(session: Session, area: Area, path: str) -> AsyncGenerator[_Change, None]:
    """What differs between one look and the next. Watching does not count as use."""
    session.watchers += 1
    try:
        before = await _look(session, area, path)
        yield "watching", {"area": area, "path": path, "files": len(before)}
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            now = await _look(session, area, path)
            for name, entry in now.items():
                if name not in before or before[name] != entry:
                    kind = "changed" if name in before else "created"
                    yield kind, {"path": name, "kind": entry.kind, "size": entry.size}
            for name in before.keys() - now.keys():
                yield "removed", {"path": name}
            before = now
    except BelljarError as error:  # the folder or the session is gone
        yield "ended", {"reason": session.reason or error.message}
    finally:
        session.watchers -= 1


async def _look(session: Session, area: Area, path: str) -> dict[str, FileEntry]:
    session.check()
    entries, _ = _told(await session.kept.listing(area, path, depth=MAX_DEPTH))
    return {entry.path: entry for entry in entries}


async def _put(session: Session, area: Area, files: list[InputFile]) -> None:
    try:
        with session.changing() as kept:
            await kept.put(area, files)
    except (LimitExceeded, PathNotAllowed) as error:
        error.field = "path"
        raise


async def _range(
    session: Session, area: Area, path: str, start: int, end: int
) -> AsyncGenerator[bytes, None]:
    while start < end:
        data, _ = await session.kept.read(area, path, offset=start, length=min(CHUNK, end - start))
        if not data:
            raise OSError("a file of a session is shorter than it was")
        start += len(data)
        yield data


async def _packed(
    session: Session, area: Area, folder: str, entries: list[FileEntry]
) -> AsyncGenerator[bytes, None]:
    """Files and folders as a tar. What is gone by now, or has a name that breaks the rules, is left out."""
    for entry in entries:
        path = f"{folder}/{entry.path}" if folder else entry.path
        if entry.kind not in ("regular", "directory") or not paths.is_within(path, [path]):
            continue
        mtime_s = min(max(0, entry.mtime_ns // 10**9), 1 << 33)
        if entry.kind == "directory":
            yield archives.header(entry.path, 0, mode=entry.mode, mtime_s=mtime_s, folder=True)
            continue
        try:
            _, size = await session.kept.read(area, path, length=0)
        except (NotFound, BadRequest):
            continue
        yield archives.header(entry.path, size, mode=entry.mode, mtime_s=mtime_s)
        async for piece in _range(session, area, path, 0, size):
            yield piece
        yield archives.padding(size)
    yield archives.END


class _Pieces(Response):
    """A body that comes a piece at a time; nothing of it is made before the last one was taken."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], headers: Mapping[str, str], status: int = 200
    ) -> None:
        super().__init__(status_code=status, headers=headers)
        if "content-length" not in headers:
            del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _told(entries: list[FileEntry]) -> tuple[list[FileEntry], bool]:
    """Without the entry that says there were more; and whether there was none."""
    told = [entry for entry in entries if entry.kind != "too_many"]
    return told, len(told) == len(entries)


def _area(asked: Mapping[str, str]) -> Area:
    try:
        return Area(asked.get("area", Area.WORK))
    except ValueError:
        raise BadRequest(f"area is one of {', '.join(Area)}", field="area") from None


def _path(asked: Mapping[str, str], *, needed: bool = True) -> str:
    path = asked.get("path", "")
    if not path and not needed:
        return path
    return paths.validate(path, field="path")
