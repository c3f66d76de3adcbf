"""The system calls that Python lacks, by ctypes; each raises OSError as `os` would.

Runs in the launcher and in jars, so it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os

# PyDLL keeps the GIL: fork-like calls must not let another thread's state in between.
_libc = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
_libc.unshare.argtypes = (ctypes.c_int,)

# <sys/mount.h>, mount(2), umount2(2)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

# <sched.h>, clone(2)
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
CLONE_INTO_CGROUP = 0x200000000

# <linux/prctl.h>, prctl(2)
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2

# Newer calls have the same number on every architecture; older ones do not.
_CLONE3, _MOUNT_SETATTR = 435, 442
_PIVOT_ROOT, _CAPSET = {"x86_64": (155, 126), "aarch64": (41, 91)}.get(os.uname().machine, (-1, -1))


class _SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _syscall(number: int, *arguments: object) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def mount(source: str, target: str, fstype: str | None, flags: int, options: str = "") -> None:
    kind = fstype.encode() if fstype else None
    result = _libc.mount(source.encode(), os.fsencode(target), kind, flags, options.encode() or None)
    _check(result, target)


def umount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def lock_mounts(target: str, attributes: int) -> None:
    """Set attributes on a mount and all below it, mount_setattr(2)."""
    attr = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    result = _syscall(
        _MOUNT_SETATTR,
        ctypes.c_int(AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(AT_RECURSIVE),
        ctypes.byref(attr),
        ctypes.c_size_t(32),
    )
    _check(result, target)


def pivot_root(new_root: str, put_old: str) -> None:
    _check(_syscall(_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old)), new_root)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def prctl(option: int, argument: int = 0, pointer: int = 0) -> None:
    _check(_libc.prctl(option, argument, pointer, 0, 0), f"prctl {option}")


def drop_bounding_set() -> None:
    """No capability can be gained any more; those that are held stay. capabilities(7)"""
    capability = 0
    while _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1  # until the kernel knows no more of them


def drop_capabilities() -> None:
    """Those that are held: permitted, effective, inheritable and ambient."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_syscall(_CAPSET, ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "capset")


def install_seccomp(program: bytes) -> None:
    """Install a compiled filter, seccomp(2). Needs no_new_privs."""
    fprog = _SockFprog(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(fprog))


def release_free_memory() -> None:
    """What importing and compiling left in the heap goes back to the kernel, malloc_trim(3). glibc only."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def fork_into(namespaces: int, cgroup_fd: int | None) -> int:
    """Fork this interpreter into new namespaces and, where given, a version 2 cgroup: clone3(2).

    os.fork() cannot take flags, and unshare() of a pid namespace would need a second fork. The
    caller must be single-threaded: glibc's own fork handlers are not run.
    """
    flags = namespaces | (CLONE_INTO_CGROUP if cgroup_fd is not None else 0)
    sigchld = 17
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
    # set_tid, set_tid_size, cgroup
    args = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, sigchld, 0, 0, 0, 0, 0, cgroup_fd or 0)
    _python.PyOS_BeforeFork()
    pid = _syscall(_CLONE3, ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    return _check(pid, "clone3")
