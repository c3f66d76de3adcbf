"""The terminal's door: verbs, tables and exit statuses.

Nothing but typer is imported at first; each verb imports what it needs when it is called, so that
`belljar --version` stays quick. Exit status 2 is bad input or a refusal, 125 a failure of ours; the
status of `run` is otherwise the program's.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from belljar import __version__
from belljar.cli.approvals import app as approvals_app
from belljar.cli.bench import bench
from belljar.cli.doctor import doctor
from belljar.cli.exec import exec_
from belljar.cli.execs import app as execs_app
from belljar.cli.graph import app as graph_app
from belljar.cli.image import app as image_app
from belljar.cli.mcp import mcp
from belljar.cli.policy import app as policy_app
from belljar.cli.run import run
from belljar.cli.serve import serve
from belljar.cli.session import app as session_app
from belljar.cli.skills import app as skills_app
from belljar.cli.test import judge
from belljar.cli.token import app as token_app
from belljar.cli.tools import app as tools_app
from belljar.cli.top import top
from belljar.cli.trail import trail
from belljar.cli.verify import verify
from belljar.errors import (
    BadRequest,
    BelljarError,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    Unauthorized,
)

__all__ = ["app", "main"]

_THE_CALLERS = (BadRequest, Refused, NotFound, Conflict, Unauthorized, Forbidden)
"""Faults of whoever asked; every other is ours."""

app = typer.Typer(
    name="belljar",
    help="Run an agent's code under glass: sealed, limited, watched, and with a receipt.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command("exec")(exec_)
app.add_typer(execs_app, name="execs")
app.add_typer(approvals_app, name="approvals")
app.add_typer(session_app, name="session")
app.command()(top)
app.command()(serve)
app.add_typer(token_app, name="token")
app.command()(verify)
app.command()(trail)
app.add_typer(graph_app, name="graph")
app.command("test")(judge)
app.add_typer(policy_app, name="policy")
app.add_typer(skills_app, name="skills")
app.add_typer(tools_app, name="tools")
app.command()(mcp)
app.add_typer(image_app, name="image")
app.command()(doctor)
app.command()(bench)


def main() -> None:
    """The `belljar` command. Every failure of ours is one line on stderr; no traceback."""
    # What the shell closed leads nowhere; otherwise the next file that is opened would take its number.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    # What a program or a file gave us may hold characters that this terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a reader that went away shows here, not while the interpreter ends
    except BelljarError as error:
        print(_told(error), file=sys.stderr)  # noqa: T201
        sys.exit(2 if isinstance(error, _THE_CALLERS) else 125)
    except OSError as error:
        from belljar.cli.terminal import silence

        silence(sys.stdout)
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        what = error.filename or "the output"
        print(f"belljar: {what} cannot be used: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(125)
    except KeyboardInterrupt:
        sys.exit(130)


def _told(error: BelljarError) -> str:
    """One line. For a program that asked for JSON it is that, in the words of the HTTP door."""
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if "--json" in ours:
        import json

        field = {} if error.field is None else {"field": error.field}
        said = {"code": error.code, "message": error.message, **field}
        return json.dumps({"status": "error", "error": said})
    from belljar.cli.tables import one_line

    return f"belljar: {error.code}: {one_line(error.message)}"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"belljar {__version__}")
        raise typer.Exit


@app.callback()
def belljar(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None: ...
