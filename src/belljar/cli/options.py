"""What several commands ask in the same words: a program, what it is given, and how the answer is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from belljar.config import Config

File = Annotated[str | None, typer.Argument(help="A program; - reads it from standard input.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")]
Code = Annotated[str | None, typer.Option(help="The program itself.")]
Language = Annotated[
    str | None, typer.Option(help="python, bash, javascript or typescript; else from the file's name.")
]
Stdin = Annotated[
    str | None, typer.Option(metavar="PATH", help="What the program reads from standard input; - is ours.")
]
Timeout = Annotated[float | None, typer.Option(metavar="S", help="Seconds it may take.")]
MemoryMb = Annotated[int | None, typer.Option(metavar="N", help="Memory it may use.")]
Env = Annotated[list[str] | None, typer.Option(metavar="K=V", help="A variable of its environment.")]
Packages = Annotated[
    list[str] | None,
    typer.Option("--package", metavar="NAME", help="A package to install for it, such as `numpy>=2`."),
]
Start = Annotated[str, typer.Option(help="Python in a warm interpreter (fork) or a new one (exec).")]
ProjectId = Annotated[str | None, typer.Option(metavar="P", help="The project it is for.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where records, receipts and the token are.")
]
Engine = Annotated[
    str | None, typer.Option(metavar="E", help="What makes the jars: auto, jail, docker or gvisor.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def config_with(**given: str | None) -> Config:
    """The configuration of this place, with the settings that the command line has."""
    from belljar.config import load_here

    return load_here({f"sandbox.{name}": text for name, text in given.items() if text is not None})
