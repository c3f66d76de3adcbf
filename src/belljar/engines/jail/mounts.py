"""Mount namespace of a jar: what is fresh and writable in it, over the launcher's read-only tree.

The launcher already lives in the tree (`rootfs`), so a jar's copy of its mount namespace has
nothing else in it, and because the jar's user namespace is a lesser one, the kernel locks what was
copied: neither the read-only flags nor what lies underneath can be got at. mount_namespaces(7)
"""

from __future__ import annotations

import os

from belljar.engines.jail import syscalls as sc
from belljar.engines.kernelfs import HIDDEN_IN_PROC, TERMINALS

WORKSPACE = "/workspace"
AREAS = ("inputs", "work", "artifacts")

_GUARDED = sc.MS_NOSUID | sc.MS_NODEV
_NO_PROGRAMS = _GUARDED | sc.MS_NOEXEC


def masks() -> list[tuple[str, str]]:
    """What is hidden and what with, of what this kernel has: found once, mounted in every jar.

    Files get /dev/null over them, folders /run.
    """
    paths = [f"/proc/{name}" for name in HIDDEN_IN_PROC]
    return [("/run" if os.path.isdir(path) else "/dev/null", path) for path in paths if os.path.exists(path)]


def mount_proc(masks: list[tuple[str, str]]) -> int:
    """A /proc of the jar's own, read-only and masked; returns a descriptor of it that can be written by.

    The descriptor is the guest's alone: through it the guest makes a program the kernel's first
    choice when memory runs out. A program cannot do the reverse, because its /proc is read-only.
    """
    sc.mount("proc", "/proc", "proc", _NO_PROGRAMS, "hidepid=2")
    writable = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    sc.mount("/proc", "/proc", None, sc.MS_BIND)
    sc.mount("", "/proc", None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | _NO_PROGRAMS)
    for mask, path in masks:
        sc.mount(mask, path, None, sc.MS_BIND)
    return writable


def mount_terminals() -> None:
    """Terminals of the jar's own, pts(4). The tree has /dev/ptmx as a link to the one that makes them."""
    sc.mount("devpts", "/dev/pts", "devpts", sc.MS_NOSUID | sc.MS_NOEXEC, TERMINALS)


def mount_workspace(workspace_mb: int, workspace_files: int, tmp_mb: int) -> dict[str, int]:
    """The capped tmpfs of a jar; returns a writable directory descriptor per area.

    One tmpfs holds all three areas, so that one size bounds them. It is mounted where /tmp will
    be, its folders are bound into /workspace, and the real /tmp covers it. `inputs` is bound
    read-only: only the descriptor, opened through the covered mount, can write there.
    """
    _tmpfs("/tmp", _GUARDED, workspace_mb, workspace_files, mode="755")
    descriptors = {}
    for area in AREAS:
        os.mkdir(f"/tmp/{area}", 0o755)
        descriptors[area] = os.open(f"/tmp/{area}", os.O_RDONLY | os.O_DIRECTORY)
        sc.mount(f"/tmp/{area}", f"{WORKSPACE}/{area}", None, sc.MS_BIND)
    read_only = sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | _GUARDED
    sc.mount("", f"{WORKSPACE}/inputs", None, read_only)
    _tmpfs("/tmp", _NO_PROGRAMS, tmp_mb, 16384)
    _tmpfs("/dev/shm", _NO_PROGRAMS, tmp_mb, 16384)
    return descriptors


def _tmpfs(target: str, flags: int, size_mb: int, files: int, mode: str = "1777") -> None:
    sc.mount("tmpfs", target, "tmpfs", flags, f"size={size_mb}m,nr_inodes={files},mode={mode}")
