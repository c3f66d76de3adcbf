"""What runs have left on the host goes away again: by age, then by size, the oldest first.

Only the files. The record and the receipt of a run stay, with the digests of what there was. A run
that is still going on is never touched.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple


class Left(NamedTuple):
    """One run's folder."""

    modified: float
    bytes: int
    path: Path


def sweep(
    projects: Path, *, live: Collection[str], now: float, keep_days: float, keep_gb: float
) -> tuple[Path, ...]:
    """Remove what is too old or too much; 0 is no such limit. Returns what was removed."""
    oldest_first = sorted(left for left in _folders(projects) if left.path.name not in live)
    total = sum(left.bytes for left in oldest_first)
    removed = []
    for left in oldest_first:
        old = keep_days > 0 and now - left.modified > keep_days * 86_400
        much = keep_gb > 0 and total > keep_gb * (1 << 30)
        if old or much:
            shutil.rmtree(left.path, ignore_errors=True)
            total -= left.bytes
            removed.append(left.path)
    return tuple(removed)


def _folders(projects: Path) -> Iterator[Left]:
    for path in projects.glob("*/artifacts/*"):
        try:
            found = [file.lstat() for file in path.rglob("*")]
            size = sum(one.st_size for one in found if stat.S_ISREG(one.st_mode))
            yield Left(path.stat().st_mtime, size, path)
        except FileNotFoundError:
            continue  # somebody else was faster
