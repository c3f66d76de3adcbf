"""What this host's kernel lets a process do, found by doing it.

A program of its own that `probe` starts: each experiment is a fork, and the host, which has threads, never
forks itself. It writes one JSON object: of each experiment what went wrong, or null. Standard library and our
own modules from the bundle only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from belljar.engines.jail import syscalls as sc

ATTEMPT_S = 5.0

_ALLOW = b"\x06\x00\x00\x00\x00\x00\xff\x7f"
"""BPF: return SECCOMP_RET_ALLOW"""


def main(settings: dict[str, Any]) -> None:
    found = {
        "user_namespaces": in_child(_make_namespaces),
        "proc": in_child(_mount_proc),
        "seccomp": in_child(_install_filter),
    }
    sys.stdout.write(json.dumps(found))


def in_child(attempt: Callable[[], None]) -> str | None:
    """Try it where it cannot change us; what went wrong, or None. Only a child that says so has succeeded."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _end_in_time()
            attempt()
            os.write(write, b"ok")
        except BaseException as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        text = os.read(read, 1000).decode()
    finally:
        os.close(read)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        return f"the attempt did not end within {ATTEMPT_S:.0f} s"
    return None if text == "ok" else text or "the attempt was killed"


def _end_in_time() -> None:
    """In every fork anew: none inherits it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, ATTEMPT_S)


def _make_namespaces() -> None:
    sc.unshare(
        sc.CLONE_NEWUSER
        | sc.CLONE_NEWNS
        | sc.CLONE_NEWPID
        | sc.CLONE_NEWNET
        | sc.CLONE_NEWIPC
        | sc.CLONE_NEWUTS
    )


def _mount_proc() -> None:
    sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        try:
            _end_in_time()
            sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def _install_filter() -> None:
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    sc.install_seccomp(_ALLOW)
