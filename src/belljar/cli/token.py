"""`belljar token`: who else may call the service of this data directory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.errors import BadConfig, BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from belljar.tokens import Token, Tokens

app = typer.Typer(help="Who may call the service: tokens with a role.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("create")
def create(
    role: Annotated[str, typer.Option(help="operator, agent, approver or viewer.")],
    project: Annotated[
        list[str] | None, typer.Option(metavar="P", help="A project it is for; without any, it is for all.")
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for; shown in the list.")] = "",
    agent_role: Annotated[
        str | None, typer.Option(metavar="R", help="The policy's role that all its runs have.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is shown once: only its hash is kept."""
    from belljar.execution.workspace import check_project_id
    from belljar.tokens import Role

    if role not in set(Role):
        raise BadRequest(f"--role is one of {', '.join(Role)}, not {role!r}", field="role")
    projects = tuple(map(check_project_id, project)) if project else None
    with _tokens() as tokens:
        made, text = tokens.create(Role(role), projects, note, agent_role)
    if as_json:
        _print_json({**_row(made), "token": text})
    else:
        typer.echo(text)
        typer.echo(f"belljar: {made.id}, {made.role}; keep it now, it is not shown again", err=True)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show the tokens that were made; the operator's own, which every service has, is not among them."""
    with _tokens() as tokens:
        known = tokens.all()
    if as_json:
        _print_json([_row(token) for token in known])
        return
    from belljar.cli.tables import print_table

    print_table(
        ("id", "role", "agent role", "projects", "created", "note"),
        [(t.id, t.role, t.agent_role, _projects(t), t.created_at, t.note) for t in known],
    )


@app.command("revoke")
def revoke(token_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")]) -> None:
    """Take a token back. A running service knows at once."""
    with _tokens() as tokens:
        tokens.revoke(token_id)


@contextmanager
def _tokens() -> Iterator[Tokens]:
    from belljar.config import load_here
    from belljar.tokens import Tokens

    config = load_here()
    try:
        yield Tokens(config.data_dir, config.token)
    except OSError as error:
        raise BadConfig(
            f"the tokens in {config.data_dir} cannot be read or written: {error.strerror}", field="data_dir"
        ) from error


def _row(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "role": token.role,
        "projects": token.projects,
        "created_at": token.created_at,
        "note": token.note,
        "agent_role": token.agent_role,
    }


def _projects(token: Token) -> str:
    if token.projects is None:
        return "all"
    return ", ".join(token.projects) or "none"


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
