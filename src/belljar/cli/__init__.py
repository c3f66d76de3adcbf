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
from belljar.cli.doctor import doctor
from belljar.cli.policy import app as policy_app
from belljar.cli.run import run
from belljar.errors import BelljarError, EngineUnavailable

__all__ = ["app", "main"]

app = typer.Typer(
    name="belljar",
    help="Run an agent's code under glass: sealed, limited, watched, and with a receipt.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(policy_app, name="policy")
app.command()(run)
app.command()(doctor)


def main() -> None:
    """The `belljar` command. Every failure of ours is one line on stderr; no traceback."""
    # What a program or a file gave us may hold characters that this terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the shell closed it
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a reader that went away shows here, not while the interpreter ends
    except BelljarError as error:
        print(f"belljar: {error.code}: {error.message}", file=sys.stderr)  # noqa: T201
        sys.exit(125 if isinstance(error, EngineUnavailable) else 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


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
