"""`GET /sandbox/trail`: which run left which version of a file."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from belljar.api.answers import json_answer, when
from belljar.api.calls import Call
from belljar.api.execs import page_limit
from belljar.audit.records import Filter, Status
from belljar.flows.trail import changes_in

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["show"]


async def show(call: Call) -> Response:
    """Of a page of runs, the newest first; a page on which none wrote the file is empty and has a cursor."""
    asked = call.asked(("project_id", "path", "limit", "cursor"))
    own = call.caller.projects
    wanted = Filter(
        projects=None if own is None else frozenset(own),
        project_id=asked.get("project_id"),
        status=Status.FINISHED,
    )
    found = await call.service.store.page(
        wanted, limit=page_limit(asked.get("limit")), cursor=asked.get("cursor") or None
    )
    entries = [
        {
            "exec_id": record.exec_id,
            "project_id": record.project_id,
            "at": when(record.ended_at),
            **change,
        }
        for record in found.records
        for change in changes_in(asdict(record))
        if "path" not in asked or change["path"] == asked["path"]
    ]
    return json_answer({"entries": entries, "cursor": found.cursor})
