"""From the words of a command line to a request: code, language, files, environment, standard input."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from belljar.errors import BadRequest, LimitExceeded, UnsupportedLanguage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from belljar.models import InputFile, Language, Limits

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


def language(name: str | None, file: str | None) -> Language:
    from belljar.models import Language

    if name is None:
        suffix = Path(file).suffix if file else ""
        return Language(_SUFFIXES.get(suffix, "python"))
    if name not in {*Language, "shell"}:
        raise UnsupportedLanguage(
            f"unknown language {name!r}; there are {', '.join(Language)}", field="language"
        )
    return Language.BASH if name == "shell" else Language(name)


def code(file: str | None, code: str | None) -> str:
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


def inputs(root: Path, names: list[str], grant: Grant) -> tuple[InputFile, ...]:
    """Files and folders of the project, by descriptor: a link in a cloned project leads nowhere."""
    from belljar import paths
    from belljar.guest import tree
    from belljar.models import InputFile

    cap = grant.limits.input_mb << 20
    found = []
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            path = paths.validate(name.rstrip("/"), field="input")
            try:
                for one in _files_of(folder, path, grant.limits.input_files):
                    content = tree.read_file(folder, one, cap)
                    cap -= len(content)
                    found.append(InputFile(paths.validate(one, field="input"), content))
            except tree.Refusal as refusal:
                if refusal.reason in (tree.TOO_LARGE, tree.TOO_MANY):
                    limits = f"{grant.limits.input_mb} MB and {grant.limits.input_files} files"
                    raise LimitExceeded(f"{name}: more than {limits} of input", field="input") from refusal
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


def environment(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadRequest(f"--env needs a name and a value, like K=V, not {pair!r}", field="env")
        env[name] = value
    return env


def stdin(source: str | None, grant: Grant) -> bytes:
    if source is None:
        return b""
    return _read("stdin", sys.stdin.buffer if source == "-" else Path(source), grant.limits.input_mb << 20)
