"""Filesystem and runtime escape: there is nothing of the host to find, change or leave by."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.hostile.attacks import Attack, Control, answers, small

from belljar.models import Language, Start

if TYPE_CHECKING:
    from tests.hostile.glass import Glass


HOST_FILE = {
    Language.PYTHON: """
        from tactics import *
        attempt("host", show, os.environ["HOST_FILE"])
        attempt("through_pid1", show, "/proc/1/root" + os.environ["HOST_FILE"])
        attempt("dots", show, "/workspace/work/" + "../" * 64 + os.environ["HOST_FILE"])
        """,
    Language.BASH: """
        for way in "" /proc/1/root ../../../../../../../.. /dev/fd/../..; do
            cat "$way$HOST_FILE" 2>/dev/null || echo "$way$HOST_FILE" ENOENT
        done
        """,
    Language.JAVASCRIPT: """
        const fs = require("fs");
        for (const way of ["", "/proc/1/root", "../".repeat(64), "/proc/self/cwd/../../.."]) {
            const path = way + process.env.HOST_FILE;
            try {
                console.log(fs.readFileSync(path, "utf8"));
            } catch (error) {
                console.log(path, error.code);
            }
        }
        """,
}


@pytest.mark.every_engine
@pytest.mark.parametrize("language", HOST_FILE)
def test_host_file_is_not_there(glass: Glass, language: Language) -> None:
    if language not in glass.engine.interpreters():
        pytest.skip(f"this host has no interpreter for {language}")
    result = glass.contains(
        Attack(control=Control.BARE, language=language, code=HOST_FILE[language], limits=small(memory_mb=256))
    )
    assert set(answers(result.stdout).values()) <= {"ENOENT", "EACCES"}


@pytest.mark.jail_only("an image has such files of its own")
def test_shadow_file_is_not_there(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            for path in ("/etc/shadow", "/proc/1/root/etc/shadow", "/etc/sudoers", "/root", "/home", "/boot"):
                attempt(path, os.stat, path)
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"ENOENT"}


@pytest.mark.every_engine
def test_walking_through_proc_stays_in_the_jar(glass: Glass) -> None:
    """Every process that can be seen or guessed, and every way that leads out of its entry."""
    glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            from tactics import *
            pids = [name for name in os.listdir("/proc") if name.isdigit()] + ["self", "thread-self", "1"]
            pids += [str(pid) for pid in range(1, 300)] + [os.environ["HOST_PID"], os.environ["SERVICE_PID"]]
            for pid in pids:
                if pid == str(os.getpid()):
                    continue
                ways = [f"root{os.environ['HOST_FILE']}", f"cwd/../../..{os.environ['HOST_FILE']}", "environ"]
                try:
                    ways += [f"fd/{fd}{os.environ['HOST_FILE']}" for fd in os.listdir(f"/proc/{pid}/fd")]
                except OSError:
                    pass
                for way in ways:
                    try:
                        show(f"/proc/{pid}/{way}")
                    except OSError:
                        pass
            """,
        )
    )


def test_chroot_break_ends_at_chroot(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOT,
            code="""
            from tactics import *
            host_file = os.environ["HOST_FILE"]
            os.mkdir("cell")
            attempt("chroot", os.chroot, "cell")
            for _ in range(64):
                os.chdir("..")
            try:
                os.chroot(".")
                show(host_file)
            except OSError as error:
                say("break", errno.errorcode[error.errno])
            """,
        )
    )
    assert answers(result.stdout) == {"chroot": "EPERM", "break": "EPERM"}


@pytest.mark.every_engine
def test_tree_cannot_be_written(glass: Glass) -> None:
    """The host's shared folder is where the control succeeds; the jar does not even have it."""
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            from tactics import *
            places = ("/", "/usr", "/usr/bin", "/usr/lib", "/bin", "/lib", "/etc", "/dev", "/proc", "/run",
                      "/var", "/opt", "/workspace", "/workspace/inputs", "/proc/sys/kernel")
            for place in (*places, os.environ["HOST_DROP"]):
                attempt(place, os.open, f"{place}/{os.environ['MARK']}", os.O_CREAT | os.O_WRONLY)
            """,
        )
    )
    said = answers(result.stdout)
    drop = said.pop(glass.canaries.whereabouts["HOST_DROP"])
    assert drop == "ENOENT"
    assert said.pop("/proc") in ("ENOENT", "EROFS", "EACCES")  # procfs answers before the mount does
    assert said.pop("/proc/sys/kernel") in ("ENOENT", "EROFS", "EACCES")
    assert set(said.values()) <= {"EROFS", "EACCES"}


def test_tree_cannot_be_changed_in_place(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            attempt("remove", os.unlink, "/usr/bin/env")
            attempt("rename", os.rename, "/usr/bin/env", "/usr/bin/vne")
            attempt("mode", os.chmod, "/usr/bin/env", 0o777)
            attempt("owner", os.chown, "/usr/bin/env", 1000, 1000)
            attempt("time", os.utime, "/usr/bin/env")
            attempt("truncate", os.truncate, "/usr/bin/env", 0)
            attempt("append", os.open, "/usr/bin/env", os.O_WRONLY | os.O_APPEND)
            attempt("device", os.chmod, "/dev/null", 0)
            attempt("link_over", os.rename, "tactics.py", "/dev/null")
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EROFS", "EXDEV", "EACCES", "EPERM"}


@pytest.mark.jail_only("a container has /dev/tty and /dev/ptmx")
def test_devices_cannot_be_made_or_found(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            attempt("disk", os.mknod, "sda", 0o60600, os.makedev(8, 0))
            attempt("memory", os.mknod, "mem", 0o20600, os.makedev(1, 1))
            for name in ("mem", "kmem", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "tty", "vsock",
                         "loop-control", "net/tun", "userfaultfd", "snapshot", "cpu/0/msr"):
                attempt(name.replace("/", "_") + "_there", os.stat, "/dev/" + name)
            """,
        )
    )
    said = answers(result.stdout)
    assert (said.pop("disk"), said.pop("memory")) == ("EPERM", "EPERM")
    assert set(said.values()) == {"ENOENT"}


OPEN_DESCRIPTORS = {
    Language.PYTHON: """
        from tactics import *
        for fd in range(4096):
            try:
                os.fstat(fd)
            except OSError:
                continue
            os.write(1, b"%d\\n" % fd)
            for way in ("..", "../../..", "../../.." + os.environ["HOST_FILE"]):
                try:
                    os.open(way, os.O_RDONLY, dir_fd=fd)
                except OSError:
                    continue
                say("escape", "REACHED")
        """,
    # The shell itself has the script open, on 255; what it becomes does not inherit that.
    Language.BASH: """
        exec python3 -c 'import os; print(*(n for n in range(4096) if os.path.lexists(f"/dev/fd/{n}")))'
        """,
}


@pytest.mark.parametrize(
    ("language", "start"),
    [
        pytest.param(Language.PYTHON, Start.FORK, id="python-fork"),
        pytest.param(Language.PYTHON, Start.EXEC, id="python-exec"),
        pytest.param(Language.BASH, Start.EXEC, id="bash"),
    ],
)
def test_only_the_three_standard_descriptors_are_open(glass: Glass, language: Language, start: Start) -> None:
    """A descriptor of the launcher or guest would lead out, whatever it was (CVE-2024-21626's shape)."""
    result = glass.contains(
        Attack(control=Control.PROBE, language=language, start=start, code=OPEN_DESCRIPTORS[language])
    )
    assert result.stdout.split() == [b"0", b"1", b"2"]


def test_file_handles_are_refused(glass: Glass) -> None:
    """Shocker: a handle of inode 2 opens the host's root from anywhere."""
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            handle = ctypes.create_string_buffer(136)
            ctypes.c_uint32.from_buffer(handle).value = 128
            mount_id = ctypes.c_int()
            attempt("name_to", call, 303, -100, b"/usr", handle, ctypes.byref(mount_id), 0)
            inode_two = (ctypes.c_uint32 * 4)(8, 1, 2, 0)  # length, kind, inode, generation
            root = os.open("/usr", os.O_RDONLY)
            attempt("open_by", call, 304, root, inode_two, os.O_RDONLY)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EPERM", "ENOTSUP"}  # gVisor has none


def test_running_executables_cannot_be_overwritten(glass: Glass) -> None:
    """CVE-2019-5736's shape: the runtime's own binary, by way of /proc/N/exe."""
    binaries = [Path(sys.executable).resolve(), Path("/usr/bin/env").resolve()]
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in binaries]
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            for pid in ["self", "1", *(name for name in os.listdir("/proc") if name.isdigit())]:
                attempt(pid, os.open, f"/proc/{pid}/exe", os.O_WRONLY)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EROFS", "ETXTBSY", "EACCES", "ENOENT"}
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in binaries] == before


def test_host_paths_in_the_mount_table_lead_nowhere(glass: Glass) -> None:
    glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            known = ("/usr", "/etc/", "/bin", "/sbin", "/lib")
            for line in open("/proc/self/mountinfo"):
                fields = line.split()
                root, kind = fields[3], fields[fields.index("-") + 1]
                if root != "/" and kind not in ("tmpfs", "devtmpfs", "proc") and not root.startswith(known):
                    attempt(root, os.listdir, root)
                    attempt("above", os.listdir, f"{fields[4]}/../../../..{root}")
            for line in open("/proc/self/mounts"):
                for option in line.split()[3].split(","):
                    name, _, value = option.partition("=")
                    if name in ("upperdir", "lowerdir", "workdir"):
                        attempt(name, os.listdir, value.split(":")[0])
            """,
        )
    )


@pytest.mark.every_engine
def test_control_sockets_are_not_there(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import socket, stat
            from tactics import *
            known = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
                     "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private")
            for path in (*known, os.environ["HOST_SOCKET"]):
                attempt(path, socket.socket(socket.AF_UNIX).connect, path)
            """,
        )
    )
    assert set(answers(result.stdout).values()) == {"ENOENT"}


def test_no_socket_lies_in_the_tree(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            language=Language.BASH,
            code="find / -xdev -type s; find /dev /run /var /tmp /etc -type s; echo searched",
        )
    )
    assert result.stdout == b"searched\n"


@pytest.mark.parametrize("pid", ["1", "HOST_PID", "SERVICE_PID"])
def test_memory_of_another_process_is_out_of_reach(glass: Glass, pid: str) -> None:
    """The control reads the decoy's environment out of its stack."""
    result = glass.contains(
        Attack(
            control=Control.BARE if pid == "HOST_PID" else Control.PROBE,
            code=f"""
            from tactics import *
            pid = os.environ.get({pid!r}, {pid!r})
            def search():
                start, end = next(
                    [int(number, 16) for number in line.split()[0].split("-")]
                    for line in open(f"/proc/{{pid}}/maps") if "[stack]" in line
                )
                with open(f"/proc/{{pid}}/mem", "rb", 0) as memory:
                    memory.seek(start)
                    os.write(1, memory.read(end - start))
            attempt("read", search)
            attempt("write", os.open, f"/proc/{{pid}}/mem", os.O_RDWR)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"ENOENT", "EACCES"}


@pytest.mark.jail_only("a container may write to its own /proc/self/mem, which hurts nobody")
def test_own_text_cannot_be_rewritten_through_proc(glass: Glass) -> None:
    """It would hurt nobody, since the page is copied; but a read-only /proc already says no."""
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            from tactics import *
            attempt("self", os.open, "/proc/self/mem", os.O_RDWR)
            """,
        )
    )
    assert answers(result.stdout) == {"self": "EROFS"}


def test_release_agent_is_out_of_reach(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            for name in ("/memory/release_agent", "/release_agent", "/notify_on_release"):
                attempt("there" + name, os.stat, "/sys/fs/cgroup" + name)
            for kind in (b"cgroup", b"cgroup2", b"sysfs"):
                os.makedirs("there", exist_ok=True)
                attempt("mount_" + kind.decode(), checked, libc.mount(b"none", b"there", kind, 0, b"memory"))
            """,
        )
    )
    said = answers(result.stdout)
    assert {said.pop("mount_cgroup"), said.pop("mount_cgroup2"), said.pop("mount_sysfs")} == {"EPERM"}
    assert set(said.values()) == {"ENOENT"}


def test_nothing_can_be_mounted_or_unmounted(glass: Glass) -> None:
    result = glass.contains(
        Attack(
            control=Control.ROOT,
            code="""
            from tactics import *
            os.mkdir("there")
            attempt("tmpfs", lambda: checked(libc.mount(b"none", b"there", b"tmpfs", 0, None)))
            attempt("bind", lambda: checked(libc.mount(b"/", b"there", None, 4096, None)))
            attempt("remount", lambda: checked(libc.mount(b"", b"/", None, 32 | 4096, None)))
            attempt("umount", lambda: checked(libc.umount2(b"/tmp", 2)))
            attempt("umount_proc", lambda: checked(libc.umount2(b"/proc", 2)))
            attempt("open_tree", call, 428, -100, b"/", 1)
            attempt("move_mount", call, 429, -100, b"/tmp", -100, b"there", 0)
            attempt("mount_setattr", call, 442, -100, b"/", 0x8000, bytes(32), 32)
            """,
        )
    )
    assert set(answers(result.stdout).values()) <= {"EPERM", "ENOSYS"}  # gVisor lacks the newer ones


def test_binary_formats_and_modules_of_the_host_are_left_alone(glass: Glass) -> None:
    before = _modules()
    result = glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            import socket
            from tactics import *
            for path in ("/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/modprobe"):
                attempt(path, os.open, path, os.O_WRONLY)
            with open("magic", "wb") as file:
                file.write(b"\\xff\\xff\\xff\\xff\\0\\0\\0\\0")
            os.chmod("magic", 0o755)
            attempt("exec", os.execv, "magic", ["magic"])
            for family in (4, 5, 9, 12, 21, 23, 29, 30, 31, 33, 36, 39, 43):
                attempt(f"family_{family}", socket.socket, family, socket.SOCK_DGRAM)
            """,
        )
    )
    said = answers(result.stdout)
    assert said.pop("exec") == "ENOEXEC"
    assert said.pop("/proc/sys/fs/binfmt_misc/register") in ("ENOENT", "EROFS", "EACCES")
    assert said.pop("/proc/sys/kernel/modprobe") in ("ENOENT", "EROFS", "EACCES")
    assert set(said.values()) <= {"EPERM", "EAFNOSUPPORT"}  # gVisor has few families
    assert _modules() == before


def test_setuid_programs_give_no_privilege(glass: Glass) -> None:
    """`su` waits for a password: time to see as whom it runs."""
    result = glass.contains(
        Attack(
            control=Control.BARE,
            code="""
            import subprocess, time
            from tactics import *
            su = subprocess.Popen(["su", "root"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(0.2)
            status = open(f"/proc/{su.pid}/status").read()
            effective = [line.split()[2] for line in status.splitlines() if line.startswith("Uid:")]
            say("euid", "REACHED" if effective == ["0"] else effective)
            """,
        )
    )
    assert b"REACHED" not in result.stdout


def test_page_cache_of_the_tree_is_not_written_through_a_pipe(glass: Glass) -> None:
    """Dirty Pipe's shape (CVE-2022-0847)."""
    shared = Path("/usr/bin/env")
    before = shared.read_bytes()
    glass.contains(
        Attack(
            control=Control.PROBE,
            code="""
            from tactics import *
            read_end, write_end = os.pipe()
            os.write(write_end, bytes(65536))
            os.read(read_end, 65536)
            target = os.open("/usr/bin/env", os.O_RDONLY)
            os.splice(target, write_end, 1, offset_src=4)
            os.write(write_end, b"overwritten")
            """,
        )
    )
    assert shared.read_bytes() == before


def _modules() -> set[str]:
    """By name: how often each is used changes with what others do."""
    path = Path("/proc/modules")
    return {line.split()[0] for line in path.read_text().splitlines()} if path.exists() else set()
