"""What `file_read`, `file_write`, `file_edit` and `search` do, inside a jar.

Sent there as text, so it needs the standard library only.

    stdin    {"tool": …, "arguments": {…}, "rules": [{"allow": [expression, …] or null, "deny": […]}, …]}
    stdout   {"ok": true, …} or {"ok": false, "code": …, "message": …}

It starts in the project's `work`. Its rules are policy's, one row for each layer.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator

MAX_CHARS = 32_000
MAX_LINE_CHARS = 2_000
MAX_LINES = 2_000
MAX_MATCHES = 200

Rules = list[dict[str, list[str] | None]]


class Fault(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def is_allowed(path: str, rules: Rules) -> bool:
    """A file is known to policies by two names, because some speak of `work` as all of `/workspace`."""
    names = (f"/workspace/{path}", f"/workspace/work/{path}")

    def matches(expressions: list[str]) -> bool:
        return any(re.fullmatch(one, name, re.DOTALL) for one in expressions for name in names)

    return all(
        not matches(rule["deny"] or []) and (rule["allow"] is None or matches(rule["allow"]))
        for rule in rules
    )


def check(path: str, rules: Rules) -> str:
    if not is_allowed(path, rules):
        raise Fault("PATH_NOT_ALLOWED", f"policy does not let this tool touch {path}")
    return path


def text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise Fault("NOT_FOUND", f"there is no file {path}; `search` lists the files there are") from None
    except (IsADirectoryError, NotADirectoryError):
        raise Fault("BAD_REQUEST", f"{path} is a folder, or below a file") from None
    if b"\0" in content:
        raise Fault("BAD_REQUEST", f"{path} is not text; it has {len(content)} bytes")
    return content.decode("utf-8", "replace")


def file_read(rules: Rules, path: str, offset: int = 1, limit: int = MAX_LINES) -> dict[str, object]:
    lines = text_of(check(path, rules)).splitlines(keepends=True)
    taken: list[str] = []
    room = MAX_CHARS
    for line in lines[offset - 1 : offset - 1 + limit]:
        if len(line) > room and taken:
            break
        taken.append(line[:room])
        room -= len(line)
        if room <= 0:
            break
    after = offset + len(taken)
    rest = after if after <= len(lines) else None
    return {
        "path": path,
        "text": "".join(taken),
        "first_line": offset,
        "total_lines": len(lines),
        "truncated": rest is not None,
        "next_offset": rest,
    }


def file_write(rules: Rules, path: str, content: str, overwrite: bool = False) -> dict[str, object]:
    existed = os.path.lexists(check(path, rules))
    if existed and not overwrite:
        raise Fault("CONFLICT", f"{path} exists; say `overwrite`, or change it by file_edit")
    return {"path": path, "bytes": _written(path, content), "created": not existed}


def file_edit(rules: Rules, path: str, old: str, new: str, all: bool = False) -> dict[str, object]:
    text = text_of(check(path, rules))
    found = text.count(old)
    if found == 0:
        raise Fault("NOT_FOUND", f"the text to replace is not in {path}")
    if found > 1 and not all:
        raise Fault(
            "CONFLICT", f"the text to replace is in {path} {found} times; give more of it, or say `all`"
        )
    return {"path": path, "bytes": _written(path, text.replace(old, new)), "replaced": found}


def _written(path: str, content: str) -> int:
    data = content.encode()
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        raise Fault("BAD_REQUEST", f"{path} is a folder, or below a file") from None
    return len(data)


def search(
    rules: Rules, query: str = "", regex: bool = False, under: str = "", limit: int = MAX_MATCHES
) -> dict[str, object]:
    """Lines that have the query; without one, the files there are."""
    try:
        expression = re.compile(query if regex else re.escape(query))
    except re.error as error:
        raise Fault("BAD_REQUEST", f"the query is not a regular expression: {error}") from None
    matches: list[dict[str, object]] = []
    for path in sorted(_files(under)):
        if not is_allowed(path, rules):
            continue
        found = _lines(path, expression) if query else iter([{"path": path, "size": os.path.getsize(path)}])
        for one in found:
            if len(matches) == limit:
                return {"matches": matches, "truncated": True}
            matches.append(one)
    return {"matches": matches, "truncated": False}


def _files(under: str) -> Iterator[str]:
    for folder, _, names in os.walk(under or "."):
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def _lines(path: str, expression: re.Pattern[str]) -> Iterator[dict[str, object]]:
    try:
        text = text_of(path)
    except Fault:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if expression.search(line):
            yield {"path": path, "line": number, "text": line[:MAX_LINE_CHARS]}


TOOLS: dict[str, Callable[..., dict[str, object]]] = {
    "file_read": file_read,
    "file_write": file_write,
    "file_edit": file_edit,
    "search": search,
}


def main() -> None:
    asked = json.load(sys.stdin)
    try:
        answer = {"ok": True, **TOOLS[asked["tool"]](asked["rules"], **asked["arguments"])}
    except Fault as fault:
        answer = {"ok": False, "code": fault.code, "message": str(fault)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
