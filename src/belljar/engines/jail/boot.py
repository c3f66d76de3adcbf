"""From the host into the tree: what happens once, before the launcher's loop.

A new mount and pid namespace (and, for an ordinary user, a user namespace that owns them), the
tree as root, then the tree's own Python in place of the host's, with the same bundle of our
modules. The launcher is pid 1 of its namespace: when it ends for any reason, the kernel ends every
jar with it.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from belljar.engines.jail import rootfs
from belljar.engines.jail import syscalls as sc
from belljar.guest import bundle


def main(settings: dict[str, Any]) -> NoReturn:
    namespaces = sc.CLONE_NEWNS | sc.CLONE_NEWPID
    if os.getuid() == 0:
        os.setgroups([])
        sc.unshare(namespaces)
    else:
        uid, gid = os.getuid(), os.getgid()
        sc.unshare(namespaces | sc.CLONE_NEWUSER)
        for file, text in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
            with open(f"/proc/self/{file}", "w", encoding="utf-8") as map_file:
                map_file.write(text)
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for the host to handle
        # The child alone must hold the control socket, or the host could not see it end.
        os.closerange(3, 1 << 30)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    rootfs.enter(settings["tree"])
    os.setsid()
    _reset_signals()
    os.lseek(settings["bundle"], 0, os.SEEK_SET)
    tree = settings["tree"]
    argv = bundle.command("python3", settings["bundle"], "belljar.engines.jail.launcher")
    os.execve(tree["python"], argv, tree["env"])


def _reset_signals() -> None:
    """What whoever started us ignores or blocks (`nohup` does) is not the programs' affair."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
