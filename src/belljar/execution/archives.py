"""Many files as one stream: a plain tar, as POSIX pax and GNU tar write it, without compression.

Reading is our own because the standard library's reader does far more than files and folders (links,
devices, sparse files) and has been led astray by each of them. Here a header is a folder, a file or a longer
name for what follows; anything else is refused, and nothing is written before all of it was read.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from belljar import paths
from belljar.errors import BadRequest, LimitExceeded

__all__ = ["END", "Entry", "header", "padding", "unpacked"]

BLOCK = 512
END = bytes(2 * BLOCK)
MAX_NAME_BYTES = 64 << 10
"""Of a pax header or a GNU long name."""

_FILE, _FOLDER = (b"0", b"\0", b"7"), b"5"
_PAX, _PAX_FOR_ALL, _LONG_NAME = b"x", b"g", b"L"
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a FIFO"}
_RECORD = re.compile(rb"([0-9]{1,6}) ([^=\n]+)=")
_FIELD = "archive"


class Entry(NamedTuple):
    path: str
    content: bytes | None
    """None: a folder."""


def unpacked(archive: bytes | bytearray, *, max_files: int) -> list[Entry]:
    """All that is in it; files and folders only, each path by the rules and once.

    Raises:
        BadRequest: it is no such archive.
        PathNotAllowed: a path in it breaks the rules.
        LimitExceeded: it holds too many entries.
    """
    found: dict[str, Entry] = {}
    for entry in _entries(memoryview(archive)):
        known = found.get(entry.path)
        if known is not None and not (known.content is None and entry.content is None):
            raise BadRequest(f"{entry.path} is in the archive twice", field=_FIELD)
        found[entry.path] = entry
        if len(found) > max_files:
            raise LimitExceeded(f"more than {max_files} files and folders in the archive", field=_FIELD)
    for path in found:
        above = path
        while above := above.rpartition("/")[0]:
            if above in found and found[above].content is not None:
                raise BadRequest(f"{above} cannot be a file and the folder of {path}", field=_FIELD)
    return list(found.values())


def header(path: str, size: int, *, mode: int, mtime_s: int, folder: bool = False) -> bytes:
    """What stands before a file's content, in a stream that ends with `END`."""
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = size, mode & 0o777, mtime_s
    info.type = tarfile.DIRTYPE if folder else tarfile.REGTYPE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8")


def padding(size: int) -> bytes:
    """What stands after content of that size."""
    return bytes(-size % BLOCK)


def _entries(archive: memoryview) -> Iterator[Entry]:
    at = 0
    name: bytes | None = None
    size: int | None = None
    while True:
        block = bytes(archive[at : at + BLOCK])
        if len(block) < BLOCK:
            raise _fault("it ends in the midst of a file; is it complete?")
        if not any(block):
            return
        kind, own_size, own_name = _header(block)
        at += BLOCK
        length = own_size if size is None or kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME) else size
        body = archive[at : at + length]
        if len(body) < length:
            raise _fault("it ends in the midst of a file; is it complete?")
        at += length + -length % BLOCK
        if kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME):
            if length > MAX_NAME_BYTES:
                raise _fault("a name in it is too long")
            if kind == _LONG_NAME:
                name = bytes(body).rstrip(b"\0")
            elif kind == _PAX:
                records = _pax(bytes(body))
                name, size = records.get(b"path", name), _number_of(records, size)
            continue
        path = _path(own_name if name is None else name, folder=kind == _FOLDER)
        name = size = None
        if path is None:
            continue
        if kind == _FOLDER:
            yield Entry(path, None)
        elif kind in _FILE:
            yield Entry(path, bytes(body))
        else:
            what = _KINDS.get(kind, "neither a file nor a folder")
            raise _fault(f"{path} is {what}; only files and folders are taken")


def _header(block: bytes) -> tuple[bytes, int, bytes]:
    """Kind, size and name; POSIX.1-1988 and what came after it agree on these."""
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if _octal(block[148:156]) != total:
        raise _fault("this is no plain tar; compressed ones are not taken")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return block[156:157], _octal(block[124:136]), name


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise _fault("a number in it makes no sense")
    return int(digits or b"0", 8)


def _pax(body: bytes) -> dict[bytes, bytes]:
    """`length key=value` lines; the length counts all of the line."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body) and body[at] != 0:
        match = _RECORD.match(body, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() <= end - 1 < len(body) or body[end - 1 : end] != b"\n":
            raise _fault("a pax header in it makes no sense")
        if match[2].startswith(b"GNU.sparse"):
            raise _fault("a sparse file is in it; only files and folders are taken")
        records[match[2]] = body[match.end() : end - 1]
        at = end
    return records


def _number_of(records: dict[bytes, bytes], otherwise: int | None) -> int | None:
    if b"size" not in records:
        return otherwise
    if not re.fullmatch(rb"[0-9]{1,15}", records[b"size"]):
        raise _fault("a number in it makes no sense")
    return int(records[b"size"])


def _path(name: bytes, *, folder: bool) -> str | None:
    """As it was given but for the `./` that tar puts before it and the `/` after a folder; None for `.`."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        raise _fault("a name in it is not UTF-8") from None
    if folder:
        path = path.removesuffix("/")
    if path == ".":
        return None
    return paths.validate(path.removeprefix("./"), field=_FIELD)


def _fault(what: str) -> BadRequest:
    return BadRequest(f"the archive cannot be taken: {what}", field=_FIELD)
