"""`belljar approvals`: what waits for a person, and a person's word on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(help="What waits for a person's yes.", no_args_is_help=True)

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ProjectId = Annotated[str | None, typer.Option(metavar="P", help="Of one project.")]
Reason = Annotated[str, typer.Option(help="Why; the record and the receipt say it.")]
Digest = Annotated[
    str | None, typer.Option(metavar="D", help="What was seen; if something else waits, it is refused.")
]

_HEAD = ("id", "tier", "state", "project", "asked by", "asked", "expires", "found")
_LOOK_AGAIN_S = 1.0


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option(help="waiting (the default), approved, denied, expired or void.")
    ] = None,
    project_id: ProjectId = None,
    as_json: AsJson = False,
) -> None:
    """List what waits, the newest first."""
    from belljar.cli.remote import connected

    with connected() as client:
        found = client.approvals.list(state=state, project_id=project_id)
    if as_json:
        _print_json(found)
    else:
        from belljar.cli.tables import print_table

        print_table(_HEAD, map(_row, found))


@app.command("show")
def show(approval_id: ApprovalId, as_json: AsJson = False) -> None:
    """Show who asks for what: the program with what was found in it, its inputs, and the grant."""
    from belljar.cli.remote import connected

    with connected() as client:
        shown = client.approvals.show(approval_id)
    if as_json:
        _print_json(shown)
    else:
        from belljar.cli.asking import print_approval

        print_approval(shown)


@app.command("approve")
def approve(
    approval_id: ApprovalId,
    reason: Reason = "",
    remember_days: Annotated[
        float, typer.Option(metavar="N", help="Let this very digest run for so many days without asking.")
    ] = 0,
    digest: Digest = None,
    as_json: AsJson = False,
) -> None:
    """Let it run, once."""
    from belljar.cli.remote import connected

    with connected() as client:
        decided = client.approvals.approve(
            approval_id, reason=reason, remember_days=remember_days, digest=digest
        )
    _print_decided(decided, as_json)


@app.command("deny")
def deny(
    approval_id: ApprovalId, reason: Reason = "", digest: Digest = None, as_json: AsJson = False
) -> None:
    """Refuse it; the caller is told the reason."""
    from belljar.cli.remote import connected

    with connected() as client:
        decided = client.approvals.deny(approval_id, reason=reason, digest=digest)
    _print_decided(decided, as_json)


@app.command("watch")
def watch(project_id: ProjectId = None, as_json: AsJson = False) -> None:
    """Show what comes to wait, as it comes, until Ctrl-C; at a terminal, ask what to do with it."""
    import time

    from belljar.cli.asking import decide, is_person
    from belljar.cli.remote import connected

    seen: set[str] = set()
    with connected() as client:
        while True:
            waiting = client.approvals.list(project_id=project_id)
            for one in reversed([one for one in waiting if one["id"] not in seen]):
                if as_json:
                    _print_line(one)
                elif is_person():
                    decide(client, one["id"])
                else:
                    _print_words(*_row(one))
            seen = {one["id"] for one in waiting}
            time.sleep(_LOOK_AGAIN_S)


def _row(approval: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        approval.get("id"),
        approval.get("tier"),
        approval.get("state"),
        approval.get("project_id"),
        approval.get("asked_by"),
        str(approval.get("asked_at"))[:19],
        str(approval.get("expires_at"))[:19],
        "; ".join(map(str, approval.get("reasons", ()))),
    )


def _print_decided(decided: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(decided)
    else:
        _print_words(decided.get("exec_id"), decided.get("state"))


def _print_words(*words: object) -> None:
    from belljar.cli.tables import one_line

    typer.echo(one_line("  ".join(map(str, words))))
    sys.stdout.flush()


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _print_line(value: object) -> None:
    import json

    typer.echo(json.dumps(value))
    sys.stdout.flush()
