"""Opening, listing, writing and deleting in a tree that a hostile program has arranged.

`way` runs a test twice: with openat2, and as on a kernel without it. The race at the end has a positive
control: two usual ways of checking a path before opening it, which do leak in the same harness.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import fcntl
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.guest import tree
from belljar.models import SkipReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = b"the host's secret"
PUBLIC = b"the program's own"


def no_openat2(dirfd: int, names: list[bytes], flags: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "walk":
        monkeypatch.setattr(tree, "_open_by_openat2", no_openat2)
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that the program could write to; a secret lies beside it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(SECRET)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def dirfd(root: Path) -> Iterator[int]:
    with opened(root) as fd:
        yield fd


@pytest.fixture
def deep(root: Path) -> Iterator[Path]:
    """A directory 3,000 levels deep with a file at its end; too long for any path string."""
    with opened(root) as fd:
        here = os.dup(fd)
        for _ in range(3000):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
    yield root
    # Not shutil.rmtree, which recurses; pytest would use it later on what is left.
    subprocess.run(["rm", "-rf", str(root)], check=True)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert set(os.listdir("/proc/self/fd")) <= set(before)


@contextlib.contextmanager
def unsupported(*numbers: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise
        pytest.skip(f"this kernel or file system cannot do it: {error.strerror}")


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(tree.Refusal) as caught:
        act()
    return caught.value.reason


def listed(
    dirfd: int, max_entries: int = 1000, max_depth: int = 64, max_name_bytes: int = 1 << 20
) -> dict[bytes, str]:
    """Each path with `regular`, or with the reason it was skipped."""
    found = tree.listing(dirfd, max_entries=max_entries, max_depth=max_depth, max_name_bytes=max_name_bytes)
    return {item.path: item.reason if isinstance(item, tree.Skip) else item.kind for item in found}


# The module itself


def test_reasons_are_those_of_the_domain() -> None:
    assert set(SkipReason) - {SkipReason.NOT_KEPT, SkipReason.SAME_NAME} <= tree.REASONS
    assert tree.REASONS - set(SkipReason) <= {tree.OUTSIDE}


def test_source_runs_on_old_pythons_with_the_standard_library_alone() -> None:
    source = ast.parse(Path(tree.__file__).read_text(), feature_version=(3, 8))
    imported = {
        alias.name for node in ast.walk(source) if isinstance(node, ast.Import) for alias in node.names
    } | {node.module or "" for node in ast.walk(source) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


def test_this_kernel_answers_openat2(root: Path, dirfd: int) -> None:
    (root / "file").write_bytes(PUBLIC)
    with unsupported(errno.ENOSYS, errno.EPERM):
        os.close(tree._open_by_openat2(dirfd, [b"file"], os.O_RDONLY))


# Opening and reading


def test_file_is_read(way: str, root: Path, dirfd: int) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(PUBLIC * 100_000)
    assert tree.read_file(dirfd, "a/b/file", cap=10_000_000) == PUBLIC * 100_000


def test_descriptor_is_not_inherited(way: str, root: Path, dirfd: int) -> None:
    (root / "file").touch()
    fd = tree.open_beneath(dirfd, "file")
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"/etc/passwd", id="absolute"),
        pytest.param(b"..", id="parent"),
        pytest.param(b"a/../../secret/file", id="inner-parent"),
        pytest.param(b".", id="dot"),
        pytest.param(b"a/./file", id="inner-dot"),
        pytest.param(b"a//file", id="empty-component"),
        pytest.param(b"a/", id="trailing-slash"),
        pytest.param(b"a\0b", id="nul"),
        pytest.param("\ud800", id="lone-surrogate"),
    ],
)
def test_path_that_is_not_plain_is_outside_for_every_operation(
    way: str, root: Path, dirfd: int, path: str | bytes
) -> None:
    (root / "a").mkdir()
    (root / "a" / "file").touch()
    assert refused(lambda: tree.open_beneath(dirfd, path)) == tree.OUTSIDE
    assert refused(lambda: tree.write_file(dirfd, path, b"")) == tree.OUTSIDE
    assert refused(lambda: tree.remove_tree(dirfd, path)) == tree.OUTSIDE
    assert (root / "a" / "file").exists()


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, opened(path.parent) as fd:
        listener.bind(f"/proc/self/fd/{fd}/{path.name}")  # sun_path holds 108 bytes only


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("arrange", "path", "reason"),
    [
        pytest.param(lambda x: x.symlink_to("../secret/file"), "x", tree.SYMLINK, id="symlink"),
        pytest.param(lambda x: x.symlink_to("own"), "x", tree.SYMLINK, id="symlink-to-own-file"),
        pytest.param(lambda x: x.symlink_to("../secret"), "x/file", tree.SYMLINK, id="symlink-as-parent"),
        pytest.param(lambda x: x.symlink_to("nowhere"), "x", tree.SYMLINK, id="symlink-to-nowhere"),
        pytest.param(lambda x: x.symlink_to("x"), "x", tree.SYMLINK, id="symlink-to-itself"),
        pytest.param(lambda x: x.symlink_to("/proc/self/fd/0"), "x", tree.SYMLINK, id="magic-link"),
        pytest.param(
            lambda x: x.symlink_to("/proc/self/root"), "x/etc/passwd", tree.SYMLINK, id="magic-root"
        ),
        pytest.param(os.mkfifo, "x", tree.NOT_REGULAR, id="fifo"),
        pytest.param(os.mkfifo, "x/y", tree.MISSING, id="fifo-as-parent"),
        pytest.param(bind_socket, "x", tree.NOT_REGULAR, id="socket"),
        pytest.param(os.mkdir, "x", tree.NOT_REGULAR, id="directory"),
        pytest.param(make_sparse, "x", tree.TOO_LARGE, id="sparse-terabyte"),
        pytest.param(Path.touch, "x/y", tree.MISSING, id="file-as-parent"),
        pytest.param(lambda x: None, "x", tree.MISSING, id="nothing"),
        pytest.param(lambda x: None, "x" * 256, tree.MISSING, id="name-no-file-can-have"),
    ],
)
@pytest.mark.timeout(30)  # a FIFO must not make us wait
def test_what_is_no_plain_file_is_refused(
    way: str, root: Path, dirfd: int, arrange: Callable[[Path], None], path: str, reason: str
) -> None:
    (root / "own").write_bytes(PUBLIC)
    arrange(root / "x")
    assert refused(lambda: tree.read_file(dirfd, path, cap=1 << 20)) == reason


def test_symlink_is_refused_as_directory_too(way: str, root: Path, dirfd: int) -> None:
    (root / "x").symlink_to(root.parent / "secret")
    assert refused(lambda: tree.open_beneath(dirfd, "x", os.O_DIRECTORY)) == tree.SYMLINK


@pytest.mark.timeout(30)
def test_device_is_not_read(way: str) -> None:
    with opened(Path("/dev")) as fd:
        assert refused(lambda: tree.read_file(fd, "zero", cap=100)) == tree.NOT_REGULAR


def test_magic_link_of_proc_is_refused(way: str, root: Path, dirfd: int) -> None:
    with opened(Path("/proc/self")) as fd:
        assert refused(lambda: tree.open_beneath(fd, f"fd/{dirfd}")) == tree.SYMLINK
        assert refused(lambda: tree.open_beneath(fd, "root/etc/passwd")) == tree.SYMLINK


def test_other_mount_is_outside(way: str) -> None:
    with opened(Path("/")) as fd:
        assert refused(lambda: tree.open_beneath(fd, "proc/version")) == tree.OUTSIDE
        assert refused(lambda: tree.open_beneath(fd, "proc", os.O_DIRECTORY)) == tree.OUTSIDE
        assert refused(lambda: tree.write_file(fd, "proc/belljar", b"")) == tree.OUTSIDE


def test_path_longer_than_one_system_call_takes_is_opened(way: str, root: Path, dirfd: int) -> None:
    path = b"/".join([b"n" * 255] * 30)
    tree.write_file(dirfd, path, PUBLIC)
    assert tree.read_file(dirfd, path, cap=100) == PUBLIC
    tree.remove_tree(dirfd, b"n" * 255)


def test_file_of_exactly_the_cap_is_read(root: Path, dirfd: int) -> None:
    (root / "file").write_bytes(b"x" * 70_000)
    assert len(tree.read_file(dirfd, "file", cap=70_000)) == 70_000
    assert refused(lambda: tree.read_file(dirfd, "file", cap=69_999)) == tree.TOO_LARGE


def test_growth_after_opening_ends_at_the_cap(root: Path, dirfd: int) -> None:
    (root / "file").write_bytes(b"x" * 10)
    fd, size = tree.open_regular(dirfd, "file", cap=100_000)
    (root / "file").write_bytes(b"x" * 10_000_000)
    got: list[bytes] = []
    assert size == 10
    assert refused(lambda: got.extend(tree.read_chunks(fd, 100_000))) == tree.TOO_LARGE
    assert len(b"".join(got)) <= 100_000
    os.close(fd)


def test_shrinking_while_read_ends_early(root: Path, dirfd: int) -> None:
    (root / "file").write_bytes(b"x" * 200_000)
    fd, size = tree.open_regular(dirfd, "file", cap=200_000)
    chunks = tree.read_chunks(fd, 200_000)
    first = next(chunks)
    os.truncate(root / "file", len(first) + 5)
    assert first + b"".join(chunks) == b"x" * (tree.READ_STEP + 5)
    assert size == 200_000
    os.close(fd)


def test_size_is_judged_before_anything_is_read(root: Path, dirfd: int) -> None:
    make_sparse(root / "file")
    assert refused(lambda: tree.open_regular(dirfd, "file", cap=1 << 20)) == tree.TOO_LARGE


def test_nothing_at_all_is_read_past_a_cap_of_zero(root: Path, dirfd: int) -> None:
    (root / "empty").touch()
    assert tree.read_file(dirfd, "empty", cap=0) == b""


def test_lease_does_not_make_us_wait(way: str, root: Path, dirfd: int) -> None:
    (root / "file").write_bytes(PUBLIC)
    holder = os.open(root / "file", os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for a lease back; it kills
    try:
        with unsupported(errno.EINVAL, errno.EAGAIN):
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert refused(lambda: tree.read_file(dirfd, "file", cap=100)) == tree.UNREADABLE
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)
    assert tree.read_file(dirfd, "file", cap=100) == PUBLIC


# Listing


def test_listing_names_every_file_and_every_thing_left_out(way: str, root: Path, dirfd: int) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(PUBLIC)
    (root / "empty").mkdir()
    (root / "link").symlink_to("../secret/file")
    (root / "links").symlink_to("../secret")
    os.mkfifo(root / "fifo")
    bind_socket(root / "socket")
    assert listed(dirfd) == {
        b"a/b/file": tree.REGULAR,
        b"link": tree.SYMLINK,
        b"links": tree.SYMLINK,
        b"fifo": tree.NOT_REGULAR,
        b"socket": tree.NOT_REGULAR,
    }


def test_listing_tells_what_the_file_is(root: Path, dirfd: int) -> None:
    (root / "run.sh").write_bytes(PUBLIC)
    (root / "run.sh").chmod(0o755)
    is_now = (root / "run.sh").stat()
    (entry,) = tree.listing(dirfd, max_entries=10)
    assert isinstance(entry, tree.Entry)
    assert (entry.path, entry.kind, entry.size, entry.mode) == (b"run.sh", tree.REGULAR, len(PUBLIC), 0o755)
    assert (entry.mtime_ns, entry.inode) == (is_now.st_mtime_ns, is_now.st_ino)


def test_listing_names_directories_when_asked(root: Path, dirfd: int) -> None:
    (root / "empty").mkdir()
    (entry,) = tree.listing(dirfd, max_entries=10, directories=True)
    assert isinstance(entry, tree.Entry)
    assert (entry.path, entry.kind) == (b"empty", tree.DIRECTORY)


def test_listing_starts_anew_each_time(root: Path, dirfd: int) -> None:
    (root / "one").touch()
    (root / "two").touch()
    unfinished = tree.listing(dirfd, max_entries=10)
    next(unfinished)
    assert set(listed(dirfd)) == set(listed(dirfd)) == {b"one", b"two"}
    assert len(list(unfinished)) == 1


def test_every_name_a_file_can_have_is_listed_and_can_be_read(way: str, root: Path, dirfd: int) -> None:
    names = {
        *(b"new\nline", b"\x1b[2J", "\u202egpj.exe".encode(), b"-rf", b"\xff" * 255, b"trailing "),
        *(b"..\\x", b"C:\\x", b"con", b"\xff\xfe.txt", b"...", b"%2e%2e", "．．".encode()),
    }
    for name in names:
        (root / os.fsdecode(name)).write_bytes(name)
    assert listed(dirfd) == dict.fromkeys(names, tree.REGULAR)
    assert {tree.read_file(dirfd, name, cap=255) for name in names} == names


def test_listing_stops_at_the_entry_cap(root: Path, dirfd: int) -> None:
    for number in range(5000):
        (root / str(number)).touch()
    found = Counter(listed(dirfd, max_entries=1000).values())
    assert found == {tree.REGULAR: 1000, tree.TOO_MANY: 1}


def test_links_and_directories_count_towards_the_entry_cap(root: Path, dirfd: int) -> None:
    for number in range(50):
        (root / f"link{number}").symlink_to("nowhere")
        (root / f"directory{number}").mkdir()
    assert sum(1 for _ in tree.listing(dirfd, max_entries=20, directories=True)) == 21


def test_listing_stops_when_paths_get_too_long_together(root: Path, dirfd: int) -> None:
    for number in range(10):
        (root / ("n" * 200 + str(number))).touch()
    found = Counter(listed(dirfd, max_name_bytes=4 * 201).values())
    assert found == {tree.REGULAR: 4, tree.TOO_MANY: 1}


def test_listing_stops_at_the_deadline(root: Path, dirfd: int) -> None:
    for number in range(10):
        (root / str(number)).touch()
    ticks = iter(range(100))
    found = list(tree.listing(dirfd, max_entries=100, deadline=3.5, clock=lambda: next(ticks)))
    assert [isinstance(item, tree.Skip) for item in found] == [False] * 4 + [True]


def test_shallow_files_come_first(root: Path, dirfd: int) -> None:
    for path in ("a/x/deep", "b/x/deep", "a/middle", "b/middle", "shallow"):
        tree.write_file(dirfd, path, b"")
    names = [path.rpartition(b"/")[2] for path in listed(dirfd)]
    assert names == [b"shallow", b"middle", b"middle", b"deep", b"deep"]


def test_deep_tree_is_listed_with_few_descriptors(deep: Path, dirfd: int) -> None:
    with descriptors_left(5):
        assert listed(dirfd, max_depth=64) == {b"/".join([b"d"] * 64): tree.TOO_DEEP}


def test_other_mount_is_not_entered(way: str) -> None:
    mounts = [name for name in os.listdir("/dev") if os.path.ismount(f"/dev/{name}")]
    assert mounts, "no mount below /dev to test with"
    with opened(Path("/dev")) as fd:
        found = listed(fd, max_depth=2)
    assert {found[name.encode()] for name in mounts} == {tree.OUTSIDE}


AS_ORDINARY_USER = """
import json, os, sys
from belljar.guest import tree

root = int(sys.argv[1])
if sys.argv[2] == "walk":
    tree._open_by_openat2 = tree._open_by_walk
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.umask(0)
os.mkdir("closed", dir_fd=root)
os.mkdir("closed/below", dir_fd=root)
os.close(os.open("closed/below/file", os.O_CREAT, 0, dir_fd=root))
os.close(os.open("file", os.O_CREAT, 0, dir_fd=root))
os.mkdir("searchable", dir_fd=root)
os.close(os.open("searchable/file", os.O_CREAT, 0o644, dir_fd=root))
os.chmod("closed/below", 0o000, dir_fd=root)
os.chmod("closed", 0o000, dir_fd=root)
os.chmod("searchable", 0o111, dir_fd=root)


def reason(path):
    try:
        tree.read_file(root, path, 100)
    except tree.Refusal as refusal:
        return refusal.reason
    return "read"


answer = {
    "listed": {item.path.decode(): getattr(item, "reason", None) or item.kind for item in tree.listing(root, max_entries=100)},
    "file": reason("file"),
    "closed/below/file": reason("closed/below/file"),
    "searchable/file": reason("searchable/file"),
}
os.chmod("searchable", 0o444, dir_fd=root)
for name in ("closed", "file", "searchable"):
    tree.remove_tree(root, name)
print(json.dumps(answer))
"""


def test_what_its_owner_closed_is_unreadable_but_can_be_removed(way: str, root: Path, dirfd: int) -> None:
    if os.getuid() == 0:
        os.chown(dirfd, 65534, 65534)
    command = [sys.executable, "-c", AS_ORDINARY_USER, str(dirfd), way]
    done = subprocess.run(command, pass_fds=[dirfd], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "listed": {"closed": tree.UNREADABLE, "searchable": tree.UNREADABLE, "file": tree.REGULAR},
        "file": tree.UNREADABLE,
        "closed/below/file": tree.UNREADABLE,
        "searchable/file": "read",
    }
    assert os.listdir(root) == []


# Writing


def test_written_file_can_be_read(root: Path, dirfd: int) -> None:
    tree.write_file(dirfd, "a/b/file", [b"one ", b"", b"two"])
    assert (root / "a" / "b" / "file").read_bytes() == b"one two"


def test_modes_are_exact_whatever_the_umask(root: Path, dirfd: int) -> None:
    before = os.umask(0o077)
    try:
        tree.write_file(dirfd, "a/run.sh", b"", mode=0o4755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "a" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "arrange",
    [
        pytest.param(lambda x: x.symlink_to("../secret/file"), id="symlink"),
        pytest.param(lambda x: x.symlink_to("nowhere"), id="dangling-symlink"),
        pytest.param(lambda x: os.link(x.parent.parent / "secret" / "file", x), id="hard-link"),
        pytest.param(lambda x: x.write_bytes(b"older and longer than what comes"), id="file"),
        pytest.param(os.mkfifo, id="fifo"),
    ],
)
@pytest.mark.timeout(30)
def test_planted_thing_is_replaced_and_not_followed(
    root: Path, dirfd: int, arrange: Callable[[Path], None]
) -> None:
    arrange(root / "main.py")
    tree.write_file(dirfd, "main.py", PUBLIC)
    assert (root / "main.py").read_bytes() == PUBLIC
    assert not (root / "main.py").is_symlink()
    assert (root.parent / "secret" / "file").read_bytes() == SECRET
    assert sorted(os.listdir(root)) == ["main.py"]


def test_link_planted_at_the_last_moment_is_not_followed(
    root: Path, dirfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def unlink_and_plant(name: bytes, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        os.symlink("../secret/file", name, dir_fd=dir_fd)

    (root / "main.py").touch()
    monkeypatch.setattr(os, "unlink", unlink_and_plant)
    assert refused(lambda: tree.write_file(dirfd, "main.py", PUBLIC)) == tree.UNREADABLE
    assert (root.parent / "secret" / "file").read_bytes() == SECRET


def test_planted_parent_is_refused_and_not_followed(root: Path, dirfd: int) -> None:
    (root / "a").symlink_to("../secret")
    assert refused(lambda: tree.write_file(dirfd, "a/file", PUBLIC)) == tree.SYMLINK
    assert refused(lambda: tree.write_file(dirfd, "a/b/c", PUBLIC)) == tree.SYMLINK
    assert refused(lambda: tree.remove_tree(dirfd, "a/file")) == tree.SYMLINK
    assert os.listdir(root.parent / "secret") == ["file"]
    assert (root.parent / "secret" / "file").read_bytes() == SECRET


def test_directory_is_not_replaced_by_a_file(root: Path, dirfd: int) -> None:
    (root / "a").mkdir()
    assert refused(lambda: tree.write_file(dirfd, "a", PUBLIC)) == tree.NOT_REGULAR


def test_failed_write_leaves_no_file(root: Path, dirfd: int) -> None:
    def content() -> Iterator[bytes]:
        yield PUBLIC
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        tree.write_file(dirfd, "file", content())
    assert os.listdir(root) == []


def test_write_past_the_file_size_limit_is_too_large(root: Path, dirfd: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        reason = refused(lambda: tree.write_file(dirfd, "file", b"x" * 2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert reason == tree.TOO_LARGE
    assert os.listdir(root) == []


def test_upload_grows_piece_by_piece_and_tells_what_it_became(root: Path, dirfd: int) -> None:
    upload = tree.Upload(dirfd, "file", 0o600)
    upload.write(b"one ")
    upload.write(b"two")
    written = upload.close()
    assert (written.st_size, written.st_ino) == (7, (root / "file").stat().st_ino)


def test_upload_is_dated_as_asked(root: Path, dirfd: int) -> None:
    upload = tree.Upload(dirfd, "file")
    upload.write(PUBLIC)
    assert upload.close(mtime_ns=10**18).st_mtime_ns == (root / "file").stat().st_mtime_ns == 10**18


def test_abandoned_upload_leaves_no_file(root: Path, dirfd: int) -> None:
    upload = tree.Upload(dirfd, "file")
    upload.write(PUBLIC)
    upload.abandon()
    assert os.listdir(root) == []


# Removing


def test_tree_is_removed_and_nothing_beyond_it(root: Path, dirfd: int) -> None:
    for number in range(3):
        (root / "a" / f"b{number}" / "c").mkdir(parents=True)
        (root / "a" / f"b{number}" / "c" / "file").touch()
    (root / "a" / "link").symlink_to("../../secret/file")
    (root / "a" / "links").symlink_to("../../secret")
    (root / "kept").touch()
    os.mkfifo(root / "a" / "fifo")
    tree.remove_tree(dirfd, "a")
    assert os.listdir(root) == ["kept"]
    assert (root.parent / "secret" / "file").read_bytes() == SECRET


def test_deep_tree_is_removed_with_few_descriptors(deep: Path, dirfd: int) -> None:
    with descriptors_left(5):
        tree.remove_tree(dirfd, "d")
    assert os.listdir(deep) == []


def test_directory_of_thousands_is_emptied(root: Path, dirfd: int) -> None:
    (root / "a").mkdir()
    for number in range(3000):
        (root / "a" / str(number)).touch()
    tree.remove_tree(dirfd, "a")
    assert os.listdir(root) == []


def test_link_is_removed_and_not_what_it_points_to(root: Path, dirfd: int) -> None:
    (root / "link").symlink_to("../secret")
    tree.remove_tree(dirfd, "link")
    assert os.listdir(root) == []
    assert (root.parent / "secret" / "file").exists()


def test_single_file_far_below_is_removed(root: Path, dirfd: int) -> None:
    tree.write_file(dirfd, "a/one", b"")
    tree.write_file(dirfd, "a/two", b"")
    tree.remove_tree(dirfd, "a/one")
    assert os.listdir(root / "a") == ["two"]


def test_directory_moved_away_during_removal_does_not_lead_outside(
    root: Path, dirfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root.parent / "secret" / "b").mkdir()
    clear = tree._clear

    def clear_and_move(fd: int, deadline: float) -> bytes | None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(root / "a" / "b"):
            os.rename(root / "a" / "b", root.parent / "secret" / "b")
        return clear(fd, deadline)

    monkeypatch.setattr(tree, "_clear", clear_and_move)
    assert refused(lambda: tree.remove_tree(dirfd, "a")) == tree.OUTSIDE
    assert sorted(os.listdir(root.parent / "secret")) == ["b", "file"]


def test_nothing_to_remove_is_fine(dirfd: int) -> None:
    tree.remove_tree(dirfd, "nothing")


# Names as text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(b"plain.txt", "plain.txt", id="plain"),
        pytest.param("資料 é.csv".encode(), "資料 é.csv", id="unicode"),
        pytest.param(b"\xff\xfe.txt", "\\xff\\xfe.txt", id="not-utf8"),
        pytest.param(b"a\nb\x1b[2J", "a\\x0ab\\x1b[2J", id="control"),
        pytest.param("\u202egpj".encode(), "\\u202egpj", id="text-direction"),
        pytest.param("\x85".encode(), "\\u0085", id="c1-character"),
        pytest.param(b"\x85", "\\x85", id="c1-byte"),
        pytest.param(b"\\xff", "\\x5cxff", id="backslash"),
        pytest.param(b"\xed\xa0\x80", "\\xed\\xa0\\x80", id="encoded-surrogate"),
    ],
)
def test_name_is_shown_as_text(name: bytes, text: str) -> None:
    assert tree.display_name(name) == text


@given(st.binary(max_size=40))
def test_shown_name_is_clean_and_tells_the_name(name: bytes) -> None:
    shown = tree.display_name(name)
    json.dumps(shown, ensure_ascii=False).encode()
    assert not any(ord(sign) < 0x20 or 0x7F <= ord(sign) < 0xA0 for sign in shown)
    assert unescaped(shown) == name


def unescaped(shown: str) -> bytes:
    """The inverse of display_name; that there is one means no two names look the same."""
    parts = re.split(r"(\\x..|\\u....)", shown)
    return b"".join(
        bytes([int(part[2:], 16)])
        if part.startswith("\\x")
        else (chr(int(part[2:], 16)) if part.startswith("\\u") else part).encode()
        for part in parts
    )


# The race

READS = 20_000

SWAP = """
import ctypes, os, sys

AT_FDCWD, RENAME_EXCHANGE = -100, 2
swap = ctypes.CDLL(None).renameat2
os.chdir(sys.argv[1])
parent = os.getppid()
print("swapping", flush=True)
while os.getppid() == parent and swap(AT_FDCWD, b"x", AT_FDCWD, b"link", RENAME_EXCHANGE) == 0:
    pass
"""


@pytest.fixture(params=["directory", "file"])
def contested(request: pytest.FixtureRequest, root: Path) -> Iterator[str]:
    """A path whose first component another process keeps swapping for a link to the secret."""
    if request.param == "directory":
        (root / "x").mkdir()
        (root / "x" / "file").write_bytes(PUBLIC)
        (root / "link").symlink_to("../secret")
    else:
        (root / "x").write_bytes(PUBLIC)
        (root / "link").symlink_to("../secret/file")
    command = [sys.executable, "-c", SWAP, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "swapping\n"
        yield "x/file" if request.param == "directory" else "x"
        assert attacker.poll() is None
        attacker.kill()


def is_enough(seen: Counter[bytes | str], tries: int, success: bytes | str) -> bool:
    """So many tries, and more where the attacker did not get to run meanwhile."""
    return seen.total() >= (tries if {success, tree.SYMLINK} <= set(seen) else 50 * tries)


def test_swapping_attacker_gets_no_secret_out(way: str, dirfd: int, contested: str) -> None:
    seen: Counter[bytes | str] = Counter()
    while not is_enough(seen, READS, PUBLIC):
        try:
            seen[tree.read_file(dirfd, contested, cap=100)] += 1
        except tree.Refusal as refusal:
            seen[refusal.reason] += 1
    assert seen[SECRET] == 0
    assert {PUBLIC, tree.SYMLINK} <= set(seen), "met only one of the two: this was no race"


@pytest.mark.parametrize("contested", ["directory"], indirect=True)
def test_swapping_attacker_gets_nothing_written_outside(root: Path, dirfd: int, contested: str) -> None:
    seen: Counter[bytes | str] = Counter()
    while not is_enough(seen, READS // 4, "written"):
        try:
            tree.write_file(dirfd, contested, b"overwritten")
            seen["written"] += 1
        except tree.Refusal as refusal:
            seen[refusal.reason] += 1
    assert os.listdir(root.parent / "secret") == ["file"]
    assert (root.parent / "secret" / "file").read_bytes() == SECRET
    assert {"written", tree.SYMLINK} <= set(seen), "met only one of the two: this was no race"


def checked_then_opened(path: Path, root: Path) -> bytes:
    if not Path(os.path.realpath(path)).is_relative_to(root) or path.is_symlink():
        return b""
    return path.read_bytes()


def opened_without_following_the_last_link(path: Path, root: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("contested", "naive"),
    [
        pytest.param("directory", checked_then_opened, id="directory-realpath"),
        pytest.param("file", checked_then_opened, id="file-realpath"),
        pytest.param("directory", opened_without_following_the_last_link, id="directory-nofollow"),
    ],
    indirect=["contested"],
)
def test_usual_checks_lose_the_same_race(
    root: Path, contested: str, naive: Callable[[Path, Path], bytes]
) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if naive(root / contested, root) == SECRET:
                return
    pytest.fail("the attacker is too weak to prove anything")
