"""User namespace of a jar: one uid and one gid, neither of them root. user_namespaces(7).

The jar maps 1000 to one id of the host and nothing else: there is no uid 0 in it to become. A
process that clone3 puts into a new user namespace has all capabilities over it, and keeps them
through setresuid because no root is mapped; `privileges` takes them away at the end.
"""

from __future__ import annotations

import os
from contextlib import suppress

INSIDE = 1000
"""Uid and gid that a program sees itself as."""
_AT_MOST = {"max_inotify_instances": "16", "max_inotify_watches": "8192"}
"""The kernel counts these for whoever made the jar as well: without, one jar could use up all of a user's."""


def map_ids(pid: int, outside: int) -> None:
    """From the parent: let `outside` of our own namespace be INSIDE in that of `pid`."""
    # An unprivileged writer must give up setgroups before the gid map; nobody else needs it either.
    for file, text in (
        ("setgroups", "deny"),
        ("gid_map", f"{INSIDE} {outside} 1"),
        ("uid_map", f"{INSIDE} {outside} 1"),
    ):
        fd = os.open(f"/proc/{pid}/{file}", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def become_inside() -> None:
    """From the child, once its ids are mapped."""
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)


def hold_back(proc_fd: int) -> None:
    """While the child is all-powerful over its namespace: what all in it may have together."""
    for name, most in _AT_MOST.items():
        with suppress(FileNotFoundError):  # a kernel without it has nothing to use up
            fd = os.open(f"sys/user/{name}", os.O_WRONLY, dir_fd=proc_fd)
            try:
                os.write(fd, most.encode())
            finally:
                os.close(fd)
