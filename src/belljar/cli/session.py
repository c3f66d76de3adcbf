"""`belljar session`: a jar of the service that is kept for several runs, and what is in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.cli.options import (
    Arguments,
    AsJson,
    Code,
    Env,
    File,
    Language,
    MemoryMb,
    ProjectId,
    Stdin,
    Timeout,
)
from belljar.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from belljar.client import Event, Result

app = typer.Typer(
    help="A jar kept for several runs: files, processes and variables stay.", no_args_is_help=True
)
files_app = typer.Typer(help="The files of a session.", no_args_is_help=True)
app.add_typer(files_app, name="files")

SessionId = Annotated[str, typer.Argument(metavar="ID", help="A session, as `list` shows it.")]
Area = Annotated[str, typer.Option(metavar="A", help="work, artifacts or inputs.")]
JarPath = Annotated[str, typer.Argument(help="A path in the session.")]


@app.command()
def start(
    project_id: ProjectId = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable that its runs have.")
    ] = None,
    working_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where its runs start, below work.")
    ] = None,
    idle: Annotated[float | None, typer.Option(metavar="S", help="Ends when unused for so long.")] = None,
    max_age: Annotated[float | None, typer.Option(metavar="S", help="Ends after so long.")] = None,
    memory_mb: MemoryMb = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Begin with the files of a snapshot.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a session and print its id."""
    from belljar.cli.packing import environment
    from belljar.cli.remote import connected
    from belljar.client.sessions import SessionOptions

    asked = {
        "project_id": project_id,
        "env": environment(env or []),
        "working_dir": working_dir,
        "idle_s": idle,
        "max_age_s": max_age,
        "policy_overrides": None if memory_mb is None else {"limits.memory_mb": memory_mb},
        "snapshot": snapshot,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    with connected() as client:
        session = client.start_session(**SessionOptions(**options))  # type: ignore[typeddict-item]
        if as_json:
            _print_json(session.info())
        else:
            typer.echo(session.id)


@app.command()
def run(
    session_id: SessionId,
    file: File = None,
    arguments: Arguments = None,
    code: Code = None,
    language: Language = None,
    context: Annotated[
        str | None, typer.Option(metavar="C", help="The Python that keeps its variables.")
    ] = None,
    stdin: Stdin = None,
    timeout: Timeout = None,
    env: Env = None,
    as_json: AsJson = False,
) -> None:
    """Run a program in a session. The exit status is the program's."""
    from belljar.cli.outcome import exit_status, print_summary
    from belljar.cli.packing import pack
    from belljar.cli.remote import connected, followed
    from belljar.client.sessions import SessionRunOptions
    from belljar.flows.project import Landed
    from belljar.models import Limits

    request = pack(
        Path(),
        Limits(),
        file=file,
        code=code,
        language=language,
        arguments=arguments,
        inputs=None,
        env=env,
        stdin=stdin,
        start="fork",
    )
    options = SessionRunOptions(args=request.args, env=request.env, stdin=request.stdin)
    if context is not None:
        options["context"] = context
    if timeout is not None:
        options["timeout_s"] = timeout
    with connected() as client:
        session = client.get_session(session_id)
        events = session.stream(request.code, str(request.language), **options)
        ran = followed(client, events if as_json else _showing(events), live=not as_json)
    nothing = Landed("")
    if as_json:
        _print_json(ran.answer.answer)
    else:
        print_summary(ran.result, nothing)
    raise typer.Exit(exit_status(ran, nothing))


def _showing(events: Iterator[Event | Result]) -> Generator[Event | Result, None, None]:
    """Passes events on; what a context shows is printed as text on the way."""
    from belljar.cli.terminal import harmless
    from belljar.client import Event

    for event in events:
        if isinstance(event, Event) and event.kind == "shown":
            forms = event.data.get("forms", {})
            typer.echo(harmless(str(forms.get("text/plain", f"<{', '.join(forms)}>"))))
        yield event


@app.command()
def shell(
    session_id: SessionId,
    term: Annotated[str, typer.Option(metavar="T", envvar="TERM", help="Kind of this terminal.")] = "xterm",
) -> None:
    """Type at a shell in a session. The exit status is the shell's."""
    from belljar.cli.shell import shell as run_shell

    raise typer.Exit(run_shell(session_id, term))


@app.command("list")
def list_(
    project_id: Annotated[str | None, typer.Option(metavar="P", help="Of one project.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, the newest first."""
    from belljar.cli.remote import connected

    with connected() as client:
        found = client.sessions(project_id=project_id, ended=ended)
    if as_json:
        _print_json(found)
        return
    from belljar.cli.tables import print_table

    print_table(
        ("id", "project", "state", "created", "expires", "runs", "contexts", "reason"),
        [
            (
                one.get("session_id"),
                one.get("project_id"),
                one.get("state"),
                str(one.get("created_at", ""))[:19],
                str(one.get("expires_at", ""))[:19],
                one.get("runs"),
                ", ".join(one.get("contexts", ())),
                one.get("reason"),
            )
            for one in found
        ],
    )


@app.command()
def show(session_id: SessionId, as_json: AsJson = False) -> None:
    """Show a session, or how it ended."""
    from belljar.cli.remote import connected

    with connected() as client:
        _tell(client.get_session(session_id).info(), as_json)


@app.command()
def interrupt(session_id: SessionId, as_json: AsJson = False) -> None:
    """Interrupt what runs in a session, as Ctrl-C does."""
    from belljar.cli.remote import connected

    with connected() as client:
        ids = list(client.get_session(session_id).interrupt())
    if as_json:
        _print_json({"interrupted": ids})
    else:
        typer.echo("\n".join(ids), nl=bool(ids))


@app.command()
def pause(session_id: SessionId, as_json: AsJson = False) -> None:
    """Have every process of a session stand still."""
    from belljar.cli.remote import connected

    with connected() as client:
        facts = client.get_session(session_id).pause()
    if as_json:
        _print_json(facts)


@app.command()
def resume(session_id: SessionId, as_json: AsJson = False) -> None:
    """Let a paused session go on."""
    from belljar.cli.remote import connected

    with connected() as client:
        facts = client.get_session(session_id).resume()
    if as_json:
        _print_json(facts)


@app.command()
def extend(
    session_id: SessionId,
    seconds: Annotated[float, typer.Argument(help="From now.")],
    as_json: AsJson = False,
) -> None:
    """Let a session live at least so long."""
    from belljar.cli.remote import connected

    with connected() as client:
        facts = client.get_session(session_id).extend(seconds)
    if as_json:
        _print_json(facts)
    else:
        typer.echo(facts["ends_at"])


@app.command()
def snapshot(session_id: SessionId, as_json: AsJson = False) -> None:
    """Keep the files of a session and print the digest that names them."""
    from belljar.cli.remote import connected

    with connected() as client:
        taken = client.get_session(session_id).snapshot()
    if as_json:
        _print_json(taken)
    else:
        typer.echo(taken["digest"])


@app.command()
def fork(
    session_id: SessionId,
    count: Annotated[int, typer.Option(metavar="N", help="So many.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Begin sessions with the files of this one and print their ids."""
    from belljar.cli.remote import connected

    with connected() as client:
        made = client.get_session(session_id).fork(count)
        if as_json:
            _print_json([one.info() for one in made])
        else:
            for one in made:
                typer.echo(one.id)


@app.command()
def stop(session_id: SessionId, as_json: AsJson = False) -> None:
    """End a session and all that is in it."""
    from belljar.cli.remote import connected

    with connected() as client:
        session = client.get_session(session_id)
        session.close()
        if as_json:
            _print_json(session.info())


@files_app.command()
def ls(
    session_id: SessionId,
    path: Annotated[str, typer.Argument(help="A folder of the session.")] = "",
    depth: Annotated[int, typer.Option(metavar="N", help="So many folders deep.")] = 1,
    area: Area = "work",
    as_json: AsJson = False,
) -> None:
    """List a folder."""
    from belljar.cli.remote import connected

    with connected() as client:
        found = client.get_session(session_id).files.list(path, depth=depth, area=area)
    if as_json:
        _print_json(found)
        return
    from belljar.cli.tables import print_table

    print_table(
        ("path", "kind", "bytes"), [(one.get("path"), one.get("kind"), one.get("size")) for one in found]
    )


@files_app.command()
def cat(session_id: SessionId, path: JarPath, area: Area = "work") -> None:
    """Print a file."""
    from belljar.cli.remote import connected
    from belljar.cli.terminal import Screen

    with connected() as client:
        content = client.get_session(session_id).files.read(path, area=area)
    screen = Screen(sys.stdout)
    screen.write(content)
    screen.close()


@files_app.command()
def put(
    session_id: SessionId,
    source: Annotated[Path, typer.Argument(help="A file here; - is standard input.")],
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="In the jar; without it, the file's name.")
    ] = None,
    area: Area = "work",
    as_json: AsJson = False,
) -> None:
    """Write a file of the session."""
    from belljar.cli.remote import connected

    if path is None and source == Path("-"):
        raise BadRequest("say what standard input is to be called: put ID - PATH", field="path")
    path = path or source.name
    try:
        content = sys.stdin.buffer.read() if source == Path("-") else source.read_bytes()
    except OSError as error:
        raise BadRequest(f"{source} cannot be read: {error.strerror}", field="source") from error
    with connected() as client:
        client.get_session(session_id).files.write(path, content, area=area)
    if as_json:
        _print_json({"path": path, "size": len(content)})


@files_app.command()
def rm(session_id: SessionId, path: JarPath, area: Area = "work", as_json: AsJson = False) -> None:
    """Remove a file, or a folder with all that is in it."""
    from belljar.cli.remote import connected

    with connected() as client:
        client.get_session(session_id).files.remove(path, area=area)
    if as_json:
        _print_json({"path": path})


@files_app.command()
def mv(
    session_id: SessionId,
    path: JarPath,
    to: Annotated[str, typer.Argument(help="Its new path.")],
    area: Area = "work",
    as_json: AsJson = False,
) -> None:
    """Give a file or folder another name."""
    from belljar.cli.remote import connected

    with connected() as client:
        client.get_session(session_id).files.move(path, to, area=area)
    if as_json:
        _print_json({"path": to})


def _tell(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(facts)
        return
    from belljar.cli.tables import print_table

    rows = [(name, ", ".join(value) if isinstance(value, list) else value) for name, value in facts.items()]
    print_table(("field", "value"), [row for row in rows if row[1] not in ("", None)])


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
