"""The Python door: `AsyncClient` for a running service, and `Client`, the same one for code that blocks."""

from __future__ import annotations

from belljar.client.asynchronous import AsyncClient
from belljar.client.blocking import Client, Session
from belljar.client.retry import Retry
from belljar.client.sessions import AsyncSession
from belljar.client.wire import Event, ExecPage, FileInfo, ForeignError, Result, Unreachable

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Client",
    "Event",
    "ExecPage",
    "FileInfo",
    "ForeignError",
    "Result",
    "Retry",
    "Session",
    "Unreachable",
]
