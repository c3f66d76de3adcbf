"""Files and words of a person packed into a request, and what a run left unpacked again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from belljar.errors import BadRequest, LimitExceeded, UnsupportedLanguage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from belljar.flows.project import Landed
    from belljar.models import Language, Limits, RunRequest


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
    packages: list[str] | None = None,
) -> RunRequest:
    """
    Raises:
        BadRequest: and what is under it, for whatever a person can get wrong.
    """
    from belljar.flows.project import Project
    from belljar.models import RunRequest, Start

    if start not in set(Start):
        raise BadRequest(f"--start is fork or exec, not {start!r}", field="start")
    with Project(root) as project:
        files = project.pack([in_project(root, name) for name in inputs or ()], limits)
    return RunRequest(
        language=language_of(language, file),
        code=_code(file, code),
        start=Start(start),
        args=tuple(arguments or ()),
        files=files,
        env=environment(env or []),
        packages=tuple(packages or ()),
        stdin=_stdin(stdin, limits),
    )


def in_project(root: Path, name: str) -> str:
    """A name as a shell completes it, `./data.csv` or from `/` on, in the project's own words. What leads out
    stays as it is, to be refused."""
    path = Path(name)
    if path.is_absolute():
        for folder in (root.absolute(), root.resolve()):
            if path.is_relative_to(folder):
                path = path.relative_to(folder)
                break
    return str(path)


def unpack(folder: Path | None, files: Iterable[tuple[str, bytes]], *, overwrite: bool) -> Landed:
    """Write a run's files below a folder. Their names come from a hostile program: each is checked by the
    path rules and opened by descriptor, and one that breaks them is left out with the reason."""
    from belljar import paths
    from belljar.errors import PathNotAllowed
    from belljar.flows.project import Change, Landed, Refused
    from belljar.guest import tree

    if folder is None:
        return Landed("")
    written: list[Change] = []
    refused: list[Refused] = []
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
                refused.append(Refused(path, error.reason))
            else:
                written.append(Change.of(path, content))
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


def language_of(name: str | None, file: str | None) -> Language:
    from belljar.models import Language

    if name is None:
        found = Language.of_file(file or "")
        if found is None and file is not None and Path(file).suffix:
            message = f"{file} does not say by its name what language it is in; say so with --language"
            raise UnsupportedLanguage(message, field="language")
        return found or Language.PYTHON
    if name not in {*Language, "shell"}:
        raise UnsupportedLanguage(
            f"unknown language {name!r}; there are {', '.join(Language)}", field="language"
        )
    return Language.BASH if name == "shell" else Language(name)


def _code(file: str | None, code: str | None) -> str:
    from belljar.flows.project import MAX_CODE_BYTES

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


def environment(pairs: list[str]) -> dict[str, str]:
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
