"""The read-only tree that the launcher and every jar live in: compose it, then move into it.

Either the host's own `/usr` and Python, or any root directory. Nothing else of the host is in it:
no home, no `/sys`, no sockets, an `/etc` of our own with neutral names. Runs once, when the
launcher starts, in a mount namespace of its own.
"""

from __future__ import annotations

import os
from typing import Any

from belljar.engines.jail import mounts
from belljar.engines.jail import syscalls as sc

# Composed over a folder that every Linux has and that nothing is taken from; pivot_root ends that.
_STAGE = "/sys"
_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV

_TOP = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
"""What a program needs of a host's root; on most hosts all but `usr` are links into it."""
_ETC = (
    "alternatives",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""Configuration that says nothing about this host in particular."""
_NOT_FROM_ROOTFS = frozenset(
    ("dev", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var", "workspace", "lost+found", "boot")
)
_DEVICES = ("full", "null", "random", "urandom", "zero")
_ETC_TEXT = {
    "group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "hostname": "belljar\n",
    "hosts": "127.0.0.1 localhost belljar\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "passwd": (
        "root:x:0:0:root:/:/usr/sbin/nologin\n"
        "sandbox:x:1000:1000:sandbox:/tmp:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    ),
    "resolv.conf": "",
}


def enter(tree: dict[str, Any]) -> None:
    """Compose the tree and make it the root. `tree` is what `engine` decided: see its fields there."""
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", _STAGE, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "size=1m,mode=755")
    for name in ("etc", "dev", "proc", "run", "tmp", "opt", "old", "var", "workspace"):
        os.mkdir(f"{_STAGE}/{name}")
    for area in mounts.AREAS:
        os.mkdir(f"{_STAGE}/workspace/{area}")
    os.symlink("/tmp", f"{_STAGE}/var/tmp")
    if tree["rootfs"] is None:
        _take_from_host(tree["python_prefix"])
    else:
        _take_from_rootfs(tree["rootfs"])
    _make_dev()
    sc.mount("proc", f"{_STAGE}/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    sc.pivot_root(_STAGE, f"{_STAGE}/old")
    os.chdir("/")
    sc.umount("/old")
    os.rmdir("/old")
    sc.mount("", "/", None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV)


def _take_from_host(python_prefix: str | None) -> None:
    for name in _TOP:
        _take(f"/{name}", f"{_STAGE}/{name}")
    for name in _ETC:
        os.makedirs(os.path.dirname(f"{_STAGE}/etc/{name}"), exist_ok=True)
        _take(f"/etc/{name}", f"{_STAGE}/etc/{name}")
    for name, text in _ETC_TEXT.items():
        with open(f"{_STAGE}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    os.symlink("/usr/share/zoneinfo/UTC", f"{_STAGE}/etc/localtime")
    if python_prefix is not None:
        _take_unnamed(python_prefix, f"{_STAGE}/opt/python")


def _take_from_rootfs(rootfs: str) -> None:
    os.rmdir(f"{_STAGE}/etc")
    os.rmdir(f"{_STAGE}/opt")
    for name in sorted(os.listdir(rootfs)):
        if name not in _NOT_FROM_ROOTFS:
            _take(f"{rootfs}/{name}", f"{_STAGE}/{name}")


def _take(source: str, target: str) -> None:
    """The same thing at another place, read-only; what the host does not have is left out."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    elif os.path.isfile(source):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    else:
        return
    sc.mount(source, target, None, sc.MS_BIND | sc.MS_REC)
    sc.lock_mounts(target, _READ_ONLY)


def _take_unnamed(source: str, target: str) -> None:
    """A folder whose own name is nobody's business: /proc/self/mountinfo tells where a bind mount is from.

    An overlay tells only the names it was made with, so it is made of a bind mount that then goes away.
    An overlay without an upper folder is read-only and wants two lower ones; the second is empty.
    """
    lower, empty = f"{_STAGE}/lower", f"{_STAGE}/run"
    _take(source, lower)
    os.mkdir(target)
    sc.mount(
        "overlay", target, "overlay", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_RDONLY, f"lowerdir={lower}:{empty}"
    )
    sc.umount(lower)
    os.rmdir(lower)


def _make_dev() -> None:
    """Only devices that cannot hurt. Bound, not made: mknod is not for user namespaces."""
    for name in _DEVICES:
        target = f"{_STAGE}/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        sc.mount(f"/dev/{name}", target, None, sc.MS_BIND)
        # Read-only guards the node, its mode and times; reading and writing the device goes on.
        sc.lock_mounts(target, sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID)
    os.mkdir(f"{_STAGE}/dev/shm")
    os.mkdir(f"{_STAGE}/dev/pts")
    os.symlink("pts/ptmx", f"{_STAGE}/dev/ptmx")
    os.symlink("/proc/self/fd", f"{_STAGE}/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{_STAGE}/dev/{name}")
