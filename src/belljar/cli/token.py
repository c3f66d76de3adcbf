"""`belljar token`: who else may call the service of this data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import AsJson, DataDir, config_with
from belljar.errors import BadConfig, BadRequest

if TYPE_CHECKING:
    from collections.abc import Collection

    from belljar.tokens import Token, Tokens

app = typer.Typer(help="Who may call the service: tokens with a role.", no_args_is_help=True)


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
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is shown once: only its hash is kept."""
    from belljar.execution.workspace import check_project_id
    from belljar.tokens import Role

    if role not in set(Role):
        raise BadRequest(f"--role is one of {', '.join(Role)}, not {role!r}", field="role")
    projects = tuple(map(check_project_id, project)) if project else None
    made, text = _tokens(data_dir).create(Role(role), projects, note, agent_role)
    if as_json:
        _print_json({**_row(made), "token": text})
    else:
        typer.echo(text)
        typer.echo(f"belljar: {made.id}, {made.role}; keep it now, it is not shown again", err=True)
    if agent_role is not None and agent_role not in _known_roles(data_dir):
        typer.echo(
            f"belljar: the policy that is configured here has no role {agent_role}; a service without it "
            "refuses every run of this token",
            err=True,
        )


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the tokens that were made; the operator's own, which every service has, is not among them."""
    known = _tokens(data_dir).all()
    if as_json:
        _print_json([_row(token) for token in known])
        return
    from belljar.cli.tables import print_table

    print_table(
        ("id", "role", "agent role", "projects", "created", "note"),
        [(t.id, t.role, t.agent_role, _projects(t), t.created_at, t.note) for t in known],
    )


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take a token back. A running service knows at once."""
    _tokens(data_dir).revoke(token_id)
    if as_json:
        _print_json({"id": token_id, "revoked": True})


def _known_roles(data_dir: str | None) -> Collection[str]:
    """A service may have another policy, so this is said, not held against anybody."""
    from belljar.wiring import policies_of

    return policies_of(config_with(data_dir=data_dir)).roles


def _tokens(data_dir: str | None) -> Tokens:
    from belljar.tokens import Tokens

    config = config_with(data_dir=data_dir)
    if config.data_dir.exists() and not config.data_dir.is_dir():
        raise BadConfig(f"{config.data_dir} is no folder; set sandbox.data_dir to another", field="data_dir")
    return Tokens(config.data_dir, config.token)


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
