"""`belljar skills`: which there are, are they sound, pin them, and call one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.options import AsJson, ProjectId
from belljar.errors import BadRequest, BelljarError

if TYPE_CHECKING:
    from collections.abc import Iterable

app = typer.Typer(help="Bundles of code with a manifest.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A skill, or a folder of skills.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the skills of the service."""
    from belljar.cli.remote import connected

    with connected() as client:
        skills = client.skills()
    if as_json:
        _print_json(skills)
        return
    from belljar.cli.tables import print_table

    rows = [(one["id"], one["name"], one["digest"][:12]) for one in skills]
    print_table(("id", "name", "digest"), rows)


@app.command("validate")
def validate(folder: Folder, as_json: AsJson = False) -> None:
    """Say whether skills can be used under this place's policy; if not, what is wrong. Status 2 then."""
    from belljar.config import load_here
    from belljar.flows.skills import MANIFEST, PINS, load_skill
    from belljar.policy.decisions import decide
    from belljar.wiring import policies_of

    if (folder / MANIFEST).is_file():
        found = [folder]
    else:
        found = sorted(one for one in folder.glob("*") if one.name[0] not in "_." and one.name != PINS)
    if not found:
        raise BadRequest(f"there is no skill in {folder}", field="dir")
    policies = policies_of(load_here())
    rows: list[dict[str, Any]] = []
    for one in found:
        try:
            skill = load_skill(one)
            decide(policies, skill=skill.layer)
            rows.append({"id": one.name, "ok": True, "digest": skill.digest})
        except BelljarError as error:
            rows.append(
                {
                    "id": one.name,
                    "ok": False,
                    "code": error.code,
                    "field": error.field,
                    "message": error.message,
                }
            )
    if as_json:
        _print_json(rows)
    else:
        from belljar.cli.tables import one_line

        for row in rows:
            what = f"ok, {row['digest']}" if row["ok"] else f"{row['code']}: {row['message']}"
            typer.echo(one_line(f"{row['id']}: {what}"))
    raise typer.Exit(0 if all(row["ok"] for row in rows) else 2)


@app.command("pin")
def pin(folder: Folder, as_json: AsJson = False) -> None:
    """Write down the digests of a folder's skills; from then on a service uses no others of that folder."""
    from belljar.flows.skills import PINS
    from belljar.flows.skills import pin as pin_all

    pins = pin_all(folder)
    if as_json:
        _print_json(dict(pins))
    else:
        typer.echo(f"belljar: {len(pins)} skills pinned in {folder / PINS}")


@app.command("invoke")
def invoke(
    skill_id: Annotated[str, typer.Argument(metavar="ID", help="A skill, as `list` shows it.")],
    inputs: Annotated[str, typer.Option(metavar="JSON", help="Its inputs, an object.")] = "{}",
    file: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="A file for it, by its relative path.")
    ] = None,
    digest: Annotated[str | None, typer.Option(help="The version that is meant.")] = None,
    project_id: ProjectId = None,
) -> None:
    """Call a skill of the service and print its answer as JSON. Status 1 if it failed."""
    from belljar.cli.remote import connected
    from belljar.client.wire import InvokeOptions

    options = InvokeOptions(inputs=json_object(inputs, "inputs"), files=dict(_contents(file or ())))
    if digest is not None:
        options["digest"] = digest
    if project_id is not None:
        options["project_id"] = project_id
    with connected() as client:
        answer = client.invoke(skill_id, **options)
    _print_json(answer)
    raise typer.Exit(0 if answer.get("status") == "ok" else 1)


def json_object(text: str, field: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"--{field} is not JSON: {error}", field=field) from error
    if not isinstance(value, dict):
        raise BadRequest(f'--{field} must be an object, like `{{"file": "t.csv"}}`', field=field)
    return value


def _contents(files: Iterable[Path]) -> Iterable[tuple[str, bytes]]:
    for path in files:
        try:
            yield path.as_posix(), path.read_bytes()
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}", field="file") from error


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
