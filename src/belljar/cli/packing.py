"""Files and words of a person packed into a request, and what a run left unpacked again."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from belljar.errors import BadRequest, LimitExceeded, UnsupportedLanguage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from belljar.execution.landing import Landed
    from belljar.models import InputFile, Language, Limits, RunRequest

_SUFFIXES = {
    ".py": "python",
    ".sh": "bash",
    ".bash": "bash",
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "typescript",
    ".mts": "typescript",
}
MAX_CODE_BYTES = 16 << 20


def pack(
    root: Path,
    limits: Limits,
    *,
    file: str | None,
    code: str | None,
    language: str | None,
    arguments: list[str] | None,
    inputs: list[str] | None,
    env: list[str] | None,
    stdin: str | None,
    start: str,
) -> RunRequest:
    """
    Raises:
        BadRequest: and what is under it, for whatever a person can get wrong.
    """
    from belljar.models import RunRequest, Start

    if start not in set(Start):
        raise BadRequest(f"--start is fork or exec, not {start!r}", field="start")
    return RunRequest(
        language=_language(language, file),
        code=_code(file, code),
        start=Start(start),
        args=tuple(arguments or ()),
        files=_inputs(root, inputs or [], limits),
        env=_environment(env or []),
        stdin=_stdin(stdin, limits),
    )


def unpack(folder: Path | None, files: Iterable[tuple[str, bytes]], *, overwrite: bool) -> Landed:
    """Write a run's files below a folder. Their names come from a hostile program: each is checked by the
    path rules and opened by descriptor, and one that breaks them is left out with the reason."""
    from belljar import paths
    from belljar.errors import PathNotAllowed
    from belljar.execution.landing import Landed
    from belljar.guest import tree

    if folder is None:
        return Landed("", (), ())
    written: list[str] = []
    refused: list[tuple[str, str]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadRequest(f"{folder} cannot be written to: {error.strerror}", field="out_dir") from error
    try:
        for path, content in files:
            try:
                paths.validate(path)
                if not overwrite and _exists(fd, path):
                    raise PathNotAllowed(f"{path} exists already", reason="exists")
                tree.write_file(fd, path, content)
            except (PathNotAllowed, tree.Refusal) as error:
                refused.append((path, error.reason))
            else:
                written.append(path)
    finally:
        os.close(fd)
    return Landed(str(folder), tuple(written), tuple(refused))


def _exists(folder: int, path: str) -> bool:
    from belljar.guest import tree

    try:
        os.close(tree.open_beneath(folder, path))
    except tree.Refusal as refusal:
        return refusal.reason != tree.MISSING
    return True


def _language(name: str | None, file: str | None) -> Language:
    from belljar.models import Language

    if name is None:
        suffix = Path(file).suffix if file else ""
        return Language(_SUFFIXES.get(suffix, "python"))
    if name not in {*Language, "shell"}:
        raise UnsupportedLanguage(
            f"unknown language {name!r}; there are {', '.join(Language)}", field="language"
        )
    return Language.BASH if name == "shell" else Language(name)


def _code(file: str | None, code: str | None) -> str:
    if (file is None) == (code is None):
        raise BadRequest("give one program: a file, - for standard input, or --code", field="code")
    if file is None:
        return code or ""
    content = _read("file", sys.stdin.buffer if file == "-" else Path(file), MAX_CODE_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{file} is not UTF-8 text (byte {error.start})", field="file") from error


def _read(field: str, source: Path | BinaryIO, cap: int) -> bytes:
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                content = file.read(cap + 1)
        else:
            content = source.read(cap + 1)
    except OSError as error:
        raise BadRequest(f"{source} cannot be read: {error.strerror}", field=field) from error
    if len(content) > cap:
        raise LimitExceeded(f"{source} is larger than {cap} bytes", field=field)
    return content


def _inputs(root: Path, names: list[str], limits: Limits) -> tuple[InputFile, ...]:
    """Files and folders of the project, by descriptor: a link in a cloned project leads nowhere."""
    from belljar import paths
    from belljar.guest import tree
    from belljar.models import InputFile

    cap = limits.input_mb << 20
    found = []
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            path = paths.validate(name.rstrip("/"), field="input")
            try:
                for one in _files_of(folder, path, limits.input_files):
                    content = tree.read_file(folder, one, cap)
                    cap -= len(content)
                    found.append(InputFile(paths.validate(one, field="input"), content))
            except tree.Refusal as refusal:
                if refusal.reason in (tree.TOO_LARGE, tree.TOO_MANY):
                    most = f"{limits.input_mb} MB and {limits.input_files} files"
                    raise LimitExceeded(f"{name}: more than {most} of input", field="input") from refusal
                raise BadRequest(f"{name} cannot be read: {refusal.reason}", field="input") from refusal
    finally:
        os.close(folder)
    return tuple(found)


def _files_of(folder: int, path: str, most: int) -> Iterator[str]:
    from belljar.guest import tree

    fd = tree.open_beneath(folder, path)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            yield path
            return
        for entry in tree.listing(fd, max_entries=most):
            if isinstance(entry, tree.Skip):
                raise tree.Refusal(entry.reason, entry.path)
            yield f"{path}/{os.fsdecode(entry.path)}"
    finally:
        os.close(fd)


def _environment(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadRequest(f"--env needs a name and a value, like K=V, not {pair!r}", field="env")
        env[name] = value
    return env


def _stdin(source: str | None, limits: Limits) -> bytes:
    if source is None:
        return b""
    return _read("stdin", sys.stdin.buffer if source == "-" else Path(source), limits.input_mb << 20)
