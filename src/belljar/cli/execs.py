"""`belljar execs`: the runs of a service, those that go on and those that are over."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from belljar.client import Client

app = typer.Typer(help="What was run, and what it left.", no_args_is_help=True)

ExecId = Annotated[str, typer.Argument(metavar="ID", help="A run, as `list` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_PAGE = 200


@app.command("list")
def list_(
    project_id: Annotated[str | None, typer.Option(metavar="P", help="Of one project.")] = None,
    task_id: Annotated[str | None, typer.Option(metavar="T", help="Of one task.")] = None,
    skill_id: Annotated[str | None, typer.Option(metavar="S", help="Of one skill.")] = None,
    status: Annotated[str | None, typer.Option(help="queued, running, finished or refused.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From 2026-01-31T12:00:00Z on.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    from belljar.cli.remote import connected

    filters = {"project_id": project_id, "task_id": task_id, "skill_id": skill_id, "status": status}
    with connected() as client:
        records = list(_pages(client, limit, since=_moment(since), **filters))
    if as_json:
        _print_json(records)
        return
    from belljar.cli.tables import print_table

    print_table(
        ("id", "project", "accepted", "ms", "status", "ended", "program"),
        [
            (
                record.get("exec_id"),
                record.get("project_id"),
                str(record.get("accepted_at"))[:19],
                record.get("duration_ms"),
                record.get("status"),
                _ended(record),
                _program(record),
            )
            for record in records
        ],
    )


@app.command("show")
def show(exec_id: ExecId, as_json: AsJson = False) -> None:
    """Show the whole record of a run, with what was granted and which layer set it."""
    from belljar.cli.remote import connected

    with connected() as client:
        record = client.get(exec_id)
    if as_json:
        _print_json(record)
        return
    from belljar.cli.tables import print_table

    facts = {name: value for name, value in record.items() if name != "policy_snapshot"}
    empty: tuple[object, ...] = (None, "", [], {})
    print_table(
        ("field", "value"), [(name, _shown(value)) for name, value in facts.items() if value not in empty]
    )
    granted = record.get("policy_snapshot") or {}
    if granted:
        print_table(
            ("granted", "value", "layer"),
            [(name, _shown(row["value"]), row["layer"]) for name, row in granted.items()],
        )


@app.command("code")
def code(exec_id: ExecId) -> None:
    """Print what ran."""
    from belljar.cli.remote import connected
    from belljar.cli.terminal import Screen

    with connected() as client:
        screen = Screen(sys.stdout)
        screen.write(client.code(exec_id).encode("utf-8", "surrogatepass"))
        screen.close()


@app.command("logs")
def logs(exec_id: ExecId, as_json: AsJson = False) -> None:
    """Print what a run wrote; of one that goes on, until it is over. With --json, each of its events."""
    from belljar.cli.remote import connected
    from belljar.cli.terminal import Screen

    screens = {"stdout": Screen(sys.stdout), "stderr": Screen(sys.stderr)}
    with connected() as client:
        try:
            for event in client.events(exec_id):
                if as_json:
                    _print_line(event._asdict())
                elif event.kind in screens:
                    screens[event.kind].write(event.output)
        finally:
            for screen in screens.values():
                screen.close()


@app.command("artifacts")
def artifacts(
    exec_id: ExecId,
    path: Annotated[str | None, typer.Argument(help="One file, to standard output.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where all of them, or the one, are written.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="They may replace files.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what a run left, print one file of it, or fetch it. Exit status 1 if a file was not written."""
    from belljar.cli.packing import unpack
    from belljar.cli.remote import connected
    from belljar.cli.tables import one_line, print_table
    from belljar.cli.terminal import Screen

    with connected() as client:
        if out_dir is not None:
            names = [path] if path is not None else [file.path for file in client.artifacts(exec_id)]
            files = ((name, client.artifact(exec_id, name)) for name in names)
            landed = unpack(out_dir, files, overwrite=overwrite)
            if as_json:
                refused = [{"path": name, "reason": reason} for name, reason in landed.refused]
                _print_json({"written_files": landed.written, "refused_files": refused})
            else:
                typer.echo(f"belljar: {len(landed.written)} files written below {out_dir}", err=True)
                for name, reason in landed.refused:
                    typer.echo(f"belljar: not taken: {one_line(name)} ({reason})", err=True)
            raise typer.Exit(1 if landed.refused else 0)
        if path is not None:
            screen = Screen(sys.stdout)
            for chunk in client.artifact_chunks(exec_id, path):
                screen.write(chunk)
            screen.close()
            return
        found = client.artifacts(exec_id)
    if as_json:
        from dataclasses import asdict

        _print_json([asdict(file) for file in found])
    else:
        print_table(("path", "bytes", "type", "sha256"), [(f.path, f.size, f.mime, f.sha256) for f in found])


@app.command("cancel")
def cancel(exec_id: ExecId, as_json: AsJson = False) -> None:
    """End a run. One that is over stays as it is."""
    from belljar.cli.remote import connected

    with connected() as client:
        record = client.cancel(exec_id)
    if as_json:
        _print_json(record)


@app.command("network")
def network(exec_id: ExecId, as_json: AsJson = False) -> None:
    """List what a run that is over asked for on its way out, and what was decided."""
    from belljar.cli.remote import connected
    from belljar.cli.tables import print_table

    with connected() as client:
        found = client.network(exec_id)
    if as_json:
        _print_json(found)
        return
    columns = ("number", "at", "host", "port", "address", "allowed", "rule", "secret", "sent", "received")
    print_table(columns, [[one[name] for name in columns] for one in found["decisions"]])
    if unlisted := found["total"] - len(found["decisions"]):
        typer.echo(f"belljar: and {unlisted} more, of {found['refused']} refused in all", err=True)


@app.command("receipt")
def receipt(exec_id: ExecId) -> None:
    """Print a run's receipt as JSON, in the form that `belljar verify FILE` checks."""
    from belljar.cli.remote import connected

    with connected() as client:
        _print_json(client.receipt(exec_id))


def _pages(client: Client, limit: int, **filters: Any) -> Iterator[Mapping[str, Any]]:
    cursor = None
    while limit > 0:
        page = client.execs(limit=min(limit, _PAGE), cursor=cursor, **filters)
        yield from page.records
        limit -= len(page.records)
        cursor = page.cursor
        if cursor is None:
            return


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest("--since is a time such as 2026-01-31T12:00:00Z", field="since") from error


def _ended(record: Mapping[str, Any]) -> str:
    if record.get("error_code"):
        return str(record.get("error_code"))
    how = str(record.get("verdict") or "")
    return f"{how} {record.get('exit_code')}" if how == "exited" else how


def _program(record: Mapping[str, Any]) -> str:
    """Short enough for one line of a table."""
    words = " ".join([record.get("cmd") or "", *record.get("args", ())])
    return words if len(words) <= 40 else words[:39] + "…"


def _shown(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _print_line(value: object) -> None:
    import json

    typer.echo(json.dumps(value))
    sys.stdout.flush()
