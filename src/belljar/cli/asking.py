"""What waits for a person, shown to one at a terminal, and their answer.

All that is shown is hostile text. It goes to stderr where stdout is the program's.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from belljar.errors import ApprovalNeeded, Conflict, Forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from belljar.client import Client

__all__ = ["decide", "decide_or_leave", "is_person", "print_approval"]

_LINE_END = re.compile(r"\r\n|\n|\r")
"""As the readers count lines."""
_FACTS = (
    "id",
    "state",
    "tier",
    "project_id",
    "exec_id",
    "asked_by",
    "asked_at",
    "expires_at",
    "role",
    "tool",
    "skill_id",
    "language",
    "args",
    "working_dir",
    "env_keys",
    "packages",
    "files",
    "inputs",
    "session_id",
    "session_files",
    "code_hash",
    "digest",
    "answer",
)


def is_person() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def print_approval(shown: Mapping[str, Any], *, stderr: bool = False) -> None:
    """The whole of it: who asks for what, the program with what was found in it, and the grant."""
    import shlex

    from belljar.cli.tables import print_table

    empty: tuple[object, ...] = (None, "", [], {})
    facts = [(name, _said(shown.get(name))) for name in _FACTS if shown.get(name) not in empty]
    print_table(("field", "value"), facts, stderr=stderr)
    program = shlex.join(shown["command"]) if shown.get("command") else shown.get("code") or ""
    found = _with_findings(program, shown.get("findings", ()))
    print_table(("line", "program", "found"), found, stderr=stderr)
    if shown.get("stdin"):
        print_table(("line", "standard input"), enumerate(_lines(shown["stdin"]), 1), stderr=stderr)
    if shown.get("state") == "waiting" and not shown.get("complete"):
        _tell("belljar: this is NOT ALL of the program and its input: there is more than is shown")
    granted = [(row["field"], _said(row["value"]), row["layer"]) for row in shown["grant"]["fields"]]
    print_table(("granted", "value", "layer"), granted, stderr=stderr)


def _with_findings(program: str, findings: Iterable[Mapping[str, Any]]) -> Iterator[tuple[object, str, str]]:
    found: dict[int, list[str]] = {}
    for one in findings:
        found.setdefault(one["line"], []).append(f"{one['tier']}: {one['reason']}")
    for number, line in enumerate(_lines(program), 1):
        yield number, line, "; ".join(found.pop(number, ()))
    for number, reasons in sorted(found.items()):  # in what is not shown
        yield number, "", "; ".join(reasons)


def _lines(text: str) -> list[str]:
    return _LINE_END.split(text) if text else []


def decide(client: Client, approval_id: str) -> bool:
    """Show it and ask; whether it is decided now, by them or by somebody else."""
    shown = client.approvals.show(approval_id)
    if shown["state"] != "waiting":
        return True
    print_approval(shown, stderr=True)
    yes = _answer()
    if yes is None:
        return False
    say = client.approvals.approve if yes else client.approvals.deny
    try:
        say(approval_id, digest=shown["digest"])
    except Conflict as error:
        _tell(f"belljar: {error.message}")
    return True


def decide_or_leave(client: Client, exec_id: str, approval_id: str, *, ask: bool) -> None:
    """For somebody whose own run waits: they decide, if they are here and may.

    Raises:
        ApprovalNeeded: they are not, or not now. The run goes on waiting.
    """
    if ask and is_person():
        try:
            decided = decide(client, approval_id)
        except Forbidden:
            decided = False
    else:
        decided = client.approvals.show(approval_id)["state"] != "waiting"
    if decided:
        return
    raise ApprovalNeeded(
        f"{exec_id} waits for a person, who decides with `belljar approvals approve {approval_id}`, "
        f"where no service runs after `belljar serve`; its output is then in `belljar execs logs {exec_id}`",
        exec_id=exec_id,
        approval_id=approval_id,
    )


def _answer() -> bool | None:
    """Yes, no, or neither: nobody is made to decide now."""
    # What was typed before there was anything to see is no answer to it.
    with suppress(ImportError):  # not a Unix
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    _tell("Run it? [y]es, [n]o, or later: ", end="")
    word = sys.stdin.readline().strip().lower()
    return {"y": True, "yes": True, "n": False, "no": False}.get(word)


def _said(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tell(text: str, end: str = "\n") -> None:
    from belljar.cli.tables import one_line

    print(one_line(text), end=end, file=sys.stderr, flush=True)  # noqa: T201
