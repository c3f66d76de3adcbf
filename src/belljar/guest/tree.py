"""Opens, reads, lists, writes and deletes beneath a directory that hostile code may have arranged.

The one place that joins an untrusted path to a directory, in the guest and on the host. A path is resolved
by descriptor, never as a string that is checked first and used later: by openat2 where the kernel has it,
else by a walk that opens one component at a time. Either way no symlink is followed, no mount is crossed,
and no open can wait (on a FIFO, a device, a lease).

Paths are bytes from end to end; a str is taken as UTF-8. What cannot be done is a `Refusal` whose reason is
one of `REASONS`. Standard library and Python 3.8 only: this file is sent into jars as text.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SYMLINK = "symlink"
NOT_REGULAR = "not_regular"
TOO_LARGE = "too_large"
TOO_MANY = "too_many"
TOO_DEEP = "too_deep"
UNREADABLE = "unreadable"
MISSING = "missing"
OUTSIDE = "outside"
REASONS = frozenset({SYMLINK, NOT_REGULAR, TOO_LARGE, TOO_MANY, TOO_DEEP, UNREADABLE, MISSING, OUTSIDE})

REGULAR = "regular"
DIRECTORY = "directory"

READ_STEP = 64 * 1024
_NEVER = float("inf")

_REASON_OF = {
    errno.ELOOP: SYMLINK,
    errno.ENOENT: MISSING,
    errno.ENOTDIR: MISSING,
    errno.ENAMETOOLONG: MISSING,
    errno.EXDEV: OUTSIDE,
    errno.EISDIR: NOT_REGULAR,
    errno.ENXIO: NOT_REGULAR,  # a socket
    errno.ENODEV: NOT_REGULAR,
    errno.ENOSPC: TOO_LARGE,
    errno.EDQUOT: TOO_LARGE,
    errno.EFBIG: TOO_LARGE,
}

# openat2(2)
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
_syscall.restype = ctypes.c_long
_SYS_OPENAT2 = 437
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_TRIES = 8
# No such call, or a seccomp filter that does not know it; a path longer than one call takes; no luck in all
# tries; and ENOTDIR, which the walk tells apart from a link where a directory should be.
_WALK_INSTEAD = (errno.ENOSYS, errno.EPERM, errno.ENAMETOOLONG, errno.EAGAIN, errno.EINTR, errno.ENOTDIR)

_CAREFUL = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
_ENTER = os.O_RDONLY | os.O_DIRECTORY | _CAREFUL
# Like openat2, a step through a directory needs search permission on it, not read permission.
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_ESCAPES = {
    **{point: f"\\x{point:02x}" for point in (*range(0x20), ord("\\"), 0x7F)},
    **{
        point: f"\\u{point:04x}"
        for point in (*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    },
    # A byte that is not UTF-8, as surrogateescape spells it.
    **{0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)},
}


class Refusal(Exception):
    """This path was not opened, read or written; `reason` is one of `REASONS`."""

    def __init__(self, reason: str, path: bytes, detail: str = "") -> None:
        super().__init__(f"{display_name(path) or 'file'}: {detail or reason}")
        self.reason = reason


class Entry:
    """What a listing found."""

    __slots__ = ("inode", "kind", "mode", "mtime_ns", "path", "size")

    def __init__(self, path: bytes, kind: str, found: os.stat_result) -> None:
        self.path = path
        self.kind = kind
        """REGULAR or DIRECTORY."""
        self.size = found.st_size
        self.mode = stat.S_IMODE(found.st_mode)
        """Permission bits."""
        self.mtime_ns = found.st_mtime_ns
        self.inode = found.st_ino


class Skip:
    """What a listing left out."""

    __slots__ = ("path", "reason")

    def __init__(self, path: bytes, reason: str) -> None:
        self.path = path
        self.reason = reason


def display_name(name: bytes) -> str:
    """A name as text that is valid JSON, cannot disturb a terminal, and is different for different names.

    Clean UTF-8 is shown as it is; in the rest `\\xNN` stands for a byte and `\\uNNNN` for a character.
    """
    return text_of(name).translate(_ESCAPES)


def text_of(path: bytes) -> str:
    """A path as `encoded` takes it back, whatever the locale."""
    return path.decode("utf-8", "surrogateescape")


def open_beneath(dirfd: int, path: str | bytes, flags: int = os.O_RDONLY) -> int:
    """A new descriptor of what `path` names beneath `dirfd`. Creates nothing; see `write_file` for that."""
    names = _names(path)
    with _refusing(path):
        try:
            return _open_by_openat2(dirfd, names, flags)
        except OSError as error:
            if error.errno not in _WALK_INSTEAD:
                raise
        return _open_by_walk(dirfd, names, flags)


def open_regular(dirfd: int, path: str | bytes, cap: int) -> tuple[int, int]:
    """A regular file of at most `cap` bytes: its descriptor and size.

    Judged on what was opened, so no swap can come between.
    """
    fd = open_beneath(dirfd, path)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refusal(NOT_REGULAR, encoded(path))
        if found.st_size > cap:
            raise Refusal(TOO_LARGE, encoded(path), f"{found.st_size} bytes, {cap} are allowed")
    except BaseException:
        os.close(fd)
        raise
    return fd, found.st_size


def read_chunks(fd: int, cap: int) -> Iterator[bytes]:
    """The content of `fd`, at most `cap` bytes of it, whatever its size was said to be.

    A file that shrinks ends early; one that has grown past `cap` ends in a Refusal (TOO_LARGE).
    """
    left = cap
    while True:
        with _refusing(b""):
            chunk = os.read(fd, min(READ_STEP, left + 1))
        if not chunk:
            return
        if len(chunk) > left:
            raise Refusal(TOO_LARGE, b"", f"it has grown past {cap} bytes")
        left -= len(chunk)
        yield chunk


def read_file(dirfd: int, path: str | bytes, cap: int) -> bytes:
    fd, _ = open_regular(dirfd, path, cap)
    try:
        return b"".join(read_chunks(fd, cap))
    finally:
        os.close(fd)


def listing(
    dirfd: int,
    *,
    max_entries: int,
    max_depth: int = 64,
    max_name_bytes: int = 16 * 1024 * 1024,
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    directories: bool = False,
) -> Iterator[Entry | Skip]:
    """Every regular file beneath `dirfd`, shallow ones first, and what was left out.

    Every name met counts towards `max_entries`, and its whole path towards `max_name_bytes`; when one of
    them or the time (`deadline`, on `clock`) runs out, the listing ends with a Skip of TOO_MANY. A
    directory `max_depth` components deep is skipped as TOO_DEEP. However deep the tree, one directory is
    open at a time, because each is opened anew from `dirfd`. Directories are named only if asked for.
    """
    pending = [b""]
    for folder in pending:
        try:
            fd = open_beneath(dirfd, folder, os.O_DIRECTORY) if folder else _reopened(dirfd)
        except Refusal as refusal:
            yield Skip(folder, refusal.reason)
            continue
        try:
            with os.scandir(fd) as found:
                for item in found:
                    path = os.path.join(folder, os.fsencode(item.name))
                    max_entries -= 1
                    max_name_bytes -= len(path)
                    late = deadline is not None and clock() > deadline
                    if max_entries < 0 or max_name_bytes < 0 or late:
                        yield Skip(path, TOO_MANY)
                        return
                    entry = _entry(path, item)
                    if isinstance(entry, Skip) or entry.kind == REGULAR:
                        yield entry
                        continue
                    if directories:
                        yield entry
                    if path.count(b"/") + 1 < max_depth:
                        pending.append(path)
                    else:
                        yield Skip(path, TOO_DEEP)
        except OSError as error:
            yield Skip(folder, _reason(error))
        finally:
            os.close(fd)


class Upload:
    """A file being written beneath a directory, in place of whatever non-directory had its name.

    Missing directories are made. What was there is unlinked and the file created anew, so a link left under
    its name or as its parent leads nowhere. `abandon` takes a half-written file away again.
    """

    def __init__(self, dirfd: int, path: str | bytes, mode: int = 0o644) -> None:
        names = _names(path)
        self.dirfd = dirfd
        self.path = b"/".join(names)
        self._name = names[-1]
        with _refusing(path):
            self._parent = _descend(dirfd, names[:-1], make=True)
            try:
                self._fd = _create(self._parent, self._name, mode)
            except BaseException:
                os.close(self._parent)
                raise

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with _refusing(self.path):
            while view:
                view = view[os.write(self._fd, view) :]

    def close(self, mtime_ns: int | None = None) -> os.stat_result:
        """What the file is now that all of it is written; dated `mtime_ns` where that is given."""
        with _refusing(self.path):
            if mtime_ns is not None:
                os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            written = os.fstat(self._fd)
        self._release()
        return written

    def abandon(self) -> None:
        try:
            os.unlink(self._name, dir_fd=self._parent)
        except OSError:
            pass
        self._release()

    def _release(self) -> None:
        os.close(self._fd)
        os.close(self._parent)


def write_file(dirfd: int, path: str | bytes, content: bytes | Iterable[bytes], mode: int = 0o644) -> None:
    """Write all of `content`, or leave no file."""
    upload = Upload(dirfd, path, mode)
    try:
        for chunk in (content,) if isinstance(content, bytes) else content:
            upload.write(chunk)
    except BaseException:
        upload.abandon()
        raise
    upload.close()


def remove_tree(dirfd: int, path: str | bytes, deadline: float = _NEVER) -> None:
    """Delete what `path` names, a whole directory or anything else; nothing there is fine too.

    Goes down and up again with one or two descriptors, however deep the tree. Directories that their
    owner closed are opened up first. What cannot be deleted ends this with a Refusal; so does the deadline
    (on `time.monotonic`), because a program that keeps adding to the tree is never finished with.
    """
    names = _names(path)
    with _refusing(path):
        parent = _descend(dirfd, names[:-1])
        try:
            _remove(parent, names[-1], deadline)
        finally:
            os.close(parent)


def move(dirfd: int, path: str | bytes, to: str | bytes) -> None:
    """Give what `path` names another name; directories to it are made, a file that had it is replaced."""
    old, new = _names(path), _names(to)
    with _refusing(path):
        source = _descend(dirfd, old[:-1])
        try:
            target = _descend(dirfd, new[:-1], make=True)
            try:
                os.rename(old[-1], new[-1], src_dir_fd=source, dst_dir_fd=target)
            finally:
                os.close(target)
        finally:
            os.close(source)


def make_directory(dirfd: int, path: str | bytes) -> None:
    """With all above it; one that is there already is fine."""
    with _refusing(path):
        os.close(_descend(dirfd, _names(path), make=True))


def _open_by_openat2(dirfd: int, names: list[bytes], flags: int) -> int:
    how = struct.pack("QQQ", flags | _CAREFUL, 0, _RESOLVE)
    for _ in range(_TRIES):
        fd = int(_syscall(_SYS_OPENAT2, dirfd, b"/".join(names), how, len(how)))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number))


def _open_by_walk(dirfd: int, names: list[bytes], flags: int) -> int:
    parent = _descend(dirfd, names[:-1])
    try:
        return _open_at(parent, names[-1], flags | _CAREFUL)
    finally:
        os.close(parent)


def _descend(dirfd: int, names: list[bytes], make: bool = False) -> int:
    """A descriptor of the directory `names`, reached one component at a time."""
    here = os.dup(dirfd)
    try:
        for name in names:
            if make:
                _make_directory(here, name)
            above, here = here, _open_at(here, name, _STEP)
            os.close(above)
    except BaseException:
        os.close(here)
        raise
    return here


def _open_at(dirfd: int, name: bytes, flags: int) -> int:
    try:
        fd = os.open(name, flags, dir_fd=dirfd)
    except NotADirectoryError:
        # What O_DIRECTORY says of a symlink too. Only the reason hangs on this second look.
        if stat.S_ISLNK(os.lstat(name, dir_fd=dirfd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    found = os.fstat(fd)
    # Directories only: on overlayfs a file's device may differ from its directory's without any mount.
    if stat.S_ISDIR(found.st_mode) and found.st_dev != os.fstat(dirfd).st_dev:
        os.close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return fd


def _reopened(dirfd: int) -> int:
    """With an offset of its own, so that two listings of one directory do not disturb each other."""
    with _refusing(b""):
        return os.open(b".", _ENTER, dir_fd=dirfd)


def _entry(path: bytes, item: os.DirEntry[str]) -> Entry | Skip:
    try:
        found = item.stat(follow_symlinks=False)
    except OSError as error:
        return Skip(path, _reason(error))
    if stat.S_ISLNK(found.st_mode):
        return Skip(path, SYMLINK)
    if stat.S_ISREG(found.st_mode):
        kind = REGULAR
    elif stat.S_ISDIR(found.st_mode):
        kind = DIRECTORY
    else:
        return Skip(path, NOT_REGULAR)
    return Entry(path, kind, found)


def _make_directory(dirfd: int, name: bytes) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=dirfd)
    except FileExistsError:
        return
    fd = _open_at(dirfd, name, _ENTER)
    try:
        os.fchmod(fd, 0o755)
    finally:
        os.close(fd)


def _create(dirfd: int, name: bytes, mode: int) -> int:
    try:
        os.unlink(name, dir_fd=dirfd)
    except FileNotFoundError:
        pass
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, 0o600, dir_fd=dirfd)
    try:
        os.fchmod(fd, mode & 0o777)  # exact, whatever the umask; never setuid
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove(parent: int, name: bytes, deadline: float) -> None:
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    fd = _enter(parent, name)
    # The directories on the way down to `fd`: the name of each, and the identity of the one that holds it.
    above: list[tuple[bytes, tuple[int, int]]] = []
    try:
        while True:
            child = _clear(fd, deadline)
            if child is not None:
                above.append((child, _identity(fd)))
                fd = _moved(fd, _enter(fd, child))
            elif above:
                child, holder = above.pop()
                fd = _moved(fd, os.open(b"..", _ENTER, dir_fd=fd))
                if _identity(fd) != holder:  # somebody moved it; `..` may lead anywhere
                    raise Refusal(OUTSIDE, child)
                os.rmdir(child, dir_fd=fd)
            else:
                break
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _clear(fd: int, deadline: float) -> bytes | None:
    """Unlink what is not a directory; the first directory met, or None once nothing is left."""
    empty = False
    while not empty:  # a directory may hide entries from a scan that deletes as it goes
        empty = True
        with os.scandir(fd) as found:
            for item in found:
                if time.monotonic() > deadline:
                    raise Refusal(TOO_MANY, os.fsencode(item.name))
                if item.is_dir(follow_symlinks=False):
                    return os.fsencode(item.name)
                os.unlink(item.name, dir_fd=fd)
                empty = False
    return None


def _enter(dirfd: int, name: bytes) -> int:
    """Open a directory in order to empty it, giving its owner the permissions that takes."""
    try:
        fd = _open_at(dirfd, name, _ENTER)
    except PermissionError:
        handle = _open_at(dirfd, name, _STEP)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # fchmod takes no O_PATH descriptor
        finally:
            os.close(handle)
        fd = _open_at(dirfd, name, _ENTER)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def _moved(old: int, new: int) -> int:
    os.close(old)
    return new


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _names(path: str | bytes) -> list[bytes]:
    raw = encoded(path)
    names = raw.split(b"/")
    if b"\0" in raw or any(name in (b"", b".", b"..") for name in names):
        raise Refusal(OUTSIDE, raw, "not a plain relative path")
    return names


def encoded(path: str | bytes) -> bytes:
    if isinstance(path, bytes):
        return path
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refusal(OUTSIDE, path.encode("utf-8", "replace"), "not a name that UTF-8 can write") from None


class _refusing:
    """What the system says no to, as a Refusal."""

    def __init__(self, path: str | bytes) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise Refusal(_reason(error), encoded(self._path), error.strerror or "") from error


def _reason(error: OSError) -> str:
    return _REASON_OF.get(error.errno or 0, UNREADABLE)
