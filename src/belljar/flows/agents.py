"""Who does an `agent_task`: a Python function or an HTTP endpoint that the user names beside the graph.

A graph says only a name. What is imported or called for it is the user's word, given where the graph is run:
a graph from elsewhere cannot name code of this machine or an address of its network.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2

from belljar.errors import BadRequest, Unavailable

__all__ = ["Agent", "agent_from"]

Agent = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Gets `run_id`, `node`, `prompt` and `input`; returns what JSON can say."""

_ANSWER_BYTES = 4 << 20
_HTTP_S = 600.0


def agent_from(said: str, *, field: str = "agent") -> Agent:
    """`module:function`, or the address of an endpoint that takes JSON by POST and answers JSON.

    Raises:
        BadRequest: it is neither, or not there.
    """
    if said.startswith(("http://", "https://")):
        return _endpoint(said)
    module, colon, name = said.partition(":")
    if not (colon and module and name):
        raise BadRequest(f"{said!r} is neither module:function nor an address", field=field)
    try:
        found = importlib.import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    except (AttributeError, ImportError, ValueError) as error:
        raise BadRequest(f"{said}: {error}", field=field) from error
    if not callable(found):
        raise BadRequest(f"{said} cannot be called", field=field)
    return _function(found)


def _function(function: Callable[..., Any]) -> Agent:
    async def ask(task: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(task)
        return await asyncio.to_thread(function, task)

    return ask


def _endpoint(address: str) -> Agent:
    async def ask(task: Mapping[str, Any]) -> Any:
        try:
            async with (
                httpx2.AsyncClient(timeout=_HTTP_S, trust_env=False) as http,
                http.stream("POST", address, json=task) as answer,
            ):
                answer.raise_for_status()
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _ANSWER_BYTES:
                        raise Unavailable(f"{address} answers more than {_ANSWER_BYTES >> 20} MB")
            return json.loads(body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unavailable(f"{address}: {error or type(error).__name__}") from error
        except (RecursionError, ValueError) as error:
            raise Unavailable(f"{address} does not answer in JSON") from error

    return ask
