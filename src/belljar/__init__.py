"""Run an agent's code under glass: sealed, limited, watched, and with a receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.client import AsyncClient as AsyncClient
    from belljar.client import Client as Client
    from belljar.inprocess import alocal as alocal
    from belljar.inprocess import arun as arun
    from belljar.inprocess import local as local
    from belljar.inprocess import run as run

__all__ = ["AsyncClient", "Client", "__version__", "alocal", "arun", "local", "run"]

__version__ = "0.1.0"


_HOMES = {
    "AsyncClient": "belljar.client",
    "Client": "belljar.client",
    "alocal": "belljar.inprocess",
    "arun": "belljar.inprocess",
    "local": "belljar.inprocess",
    "run": "belljar.inprocess",
}


if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> object:
        """The public names, imported when first used: `belljar --version` needs none of them."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
