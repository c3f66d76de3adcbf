"""Which run wrote which file: of a user's project from its runs' trails, of the service from its records.

A run cannot remove a file of a project: what it deletes in its jar stays outside of it. A file that is
gone, or is not what the last run wrote, was changed by somebody else, and the trail says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from belljar.errors import NotFound
from belljar.flows.project import Project, changes_of

__all__ = ["Entry", "Now", "Wrote", "changes_in", "state_of", "trail_of"]


class Wrote(StrEnum):
    CREATED = "created"
    CHANGED = "changed"


class Now(StrEnum):
    """What became of a file since its last entry."""

    AS_WRITTEN = "as_written"
    CHANGED = "changed"  # by no run
    REMOVED = "removed"  # by no run


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    change: Wrote
    run_id: str
    at: str
    sha256: str
    size: int
    before: str | None = None
    """sha256 of what was there."""
    node: str | None = None
    exec_id: str | None = None


def trail_of(project: Project, path: str | None = None) -> list[Entry]:
    """What runs did to a file, or to all below a folder, or to everything; the oldest first."""
    found: dict[tuple[str, str | None, str], Entry] = {}
    for run_id in project.run_ids():
        try:
            events = [*project.again(run_id).events()]
        except NotFound:
            continue
        for event in events:
            for entry in _entries(run_id, event):
                if path is None or entry.path == path or entry.path.startswith(f"{path.rstrip('/')}/"):
                    # Once, though whoever finished a landing that was broken off may have told it again.
                    found[entry.at, entry.node, entry.path] = entry
    return sorted(found.values(), key=lambda entry: entry.at)


def state_of(project: Project, last: Entry) -> Now:
    digest = project.digest(last.path)
    if digest is None:
        return Now.REMOVED
    return Now.AS_WRITTEN if digest == last.sha256 else Now.CHANGED


def changes_in(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a run of the service left, as its record says it: new, or another version of an input."""
    for artifact in record["artifacts"]:
        before = record["inputs"].get(artifact["path"])
        yield {
            "path": artifact["path"],
            "change": Wrote.CREATED if before is None else Wrote.CHANGED,
            "sha256": artifact["sha256"],
            "before": before,
            "size": artifact["size"],
        }


def _entries(run_id: str, event: Mapping[str, Any]) -> Iterator[Entry]:
    if event["event"] != "sandbox_complete":
        return
    for change in changes_of(event):
        yield Entry(
            change.path,
            Wrote.CREATED if change.before is None else Wrote.CHANGED,
            run_id,
            str(event.get("ts")),
            change.sha256,
            change.size,
            change.before,
            event.get("node"),
            event.get("exec_id"),
        )
