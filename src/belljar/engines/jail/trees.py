"""Which tree a jar sees as its root, and which Python is in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import EngineUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What a jar sees as its root; `rootfs.enter` builds it."""

    rootfs: str | None
    python_prefix: str | None
    """The host's Python where it is not below /usr; seen as /opt/python."""
    python: str
    """The interpreter, as named inside."""
    env: Mapping[str, str]
    """The launcher's environment, and what every program has at least."""

    def has(self, program: str) -> bool:
        root = Path(self.rootfs or "/")
        return any(
            _resolved(root, f"{folder}/{program}").is_file()
            for folder in ("/usr/local/bin", "/usr/bin", "/bin")
        )


def host_tree() -> Tree:
    """The host's /usr and the Python that runs us."""
    prefix = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    plain = os.path.join(os.path.dirname(executable), "python3")
    if os.path.realpath(plain) == executable:  # the name that people give it
        executable = plain
    path = "/usr/local/bin:/usr/bin:/bin"
    if prefix == "/usr" or prefix.startswith("/usr/"):
        return Tree(rootfs=None, python_prefix=None, python=executable, env={"PATH": path})
    inside = "/opt/python/" + os.path.relpath(executable, prefix)
    env = {"PATH": f"{os.path.dirname(inside)}:{path}"}
    if list(Path(prefix, "lib").glob("libpython*.so*")):
        env["LD_LIBRARY_PATH"] = "/opt/python/lib"  # its own idea of the place is the host's
    return Tree(rootfs=None, python_prefix=prefix, python=inside, env=env)


def rootfs_tree(rootfs: str) -> Tree:
    """Any root directory with a python3 in it, but the host's own: that one has everything of the host."""
    if os.path.realpath(rootfs) == "/":
        raise EngineUnavailable(
            "sandbox.jail.rootfs: the host's own root is no tree for a jar; leave it unset"
        )
    for inside in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if _resolved(Path(rootfs), inside).is_file():
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
            return Tree(rootfs=os.path.realpath(rootfs), python_prefix=None, python=inside, env=env)
    raise EngineUnavailable(f"sandbox.jail.rootfs: there is no python3 in {rootfs}")


def _resolved(root: Path, inside: str, links: int = 8) -> Path:
    """Where a path of the tree leads within the tree: an absolute link starts at its root, not at ours."""
    path = root / inside.lstrip("/")
    if links and path.is_symlink():
        return _resolved(
            root, os.path.normpath(os.path.join(os.path.dirname(inside), os.readlink(path))), links - 1
        )
    return path
