"""What runs left, as MCP resources: `belljar://execs/<exec_id>/artifacts/<path>`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types

from belljar.client import AsyncClient
from belljar.errors import LimitExceeded, NotFound

__all__ = ["TEMPLATE", "link", "listing", "read", "uri_of"]

MAX_BYTES = 8 << 20
"""A larger file is fetched over HTTP or by `belljar execs artifacts`."""
NEWEST_RUNS = 20

_ROOT = "belljar://execs/"
_BETWEEN = "/artifacts/"
_TEXT = ("text/", "application/json")

TEMPLATE = types.ResourceTemplate(
    name="artifact",
    title="A file that a run left",
    uri_template=f"{_ROOT}{{exec_id}}{_BETWEEN}{{+path}}",
)


def uri_of(exec_id: str, path: str) -> str:
    return f"{_ROOT}{exec_id}{_BETWEEN}{quote(path)}"


def link(file: Mapping[str, Any]) -> types.ResourceLink:
    return types.ResourceLink(
        type="resource_link", uri=file["uri"], name=file["path"], mime_type=file["mime"], size=file["size"]
    )


async def listing(client: AsyncClient) -> types.ListResourcesResult:
    """Of the newest runs; others can be read by their address."""
    page = await client.execs(limit=NEWEST_RUNS)
    return types.ListResourcesResult(
        resources=[
            types.Resource(
                uri=uri_of(record["exec_id"], file["path"]),
                name=file["path"],
                mime_type=file["mime"],
                size=file["size"],
            )
            for record in page.records
            for file in record["artifacts"]
        ]
    )


async def read(client: AsyncClient, uri: str) -> types.ReadResourceResult:
    exec_id, between, quoted = uri.removeprefix(_ROOT).partition(_BETWEEN)
    path = unquote(quoted)
    if not uri.startswith(_ROOT) or not between:
        raise NotFound(f"{uri[:200]!r} is no resource; one is {_ROOT}<exec_id>{_BETWEEN}<path>", field="uri")
    found = {file.path: file for file in await client.artifacts(exec_id)}
    if path not in found:
        raise NotFound("this run left no such file", field="uri")
    file = found[path]
    if file.size > MAX_BYTES:
        raise LimitExceeded(
            f"{file.size} bytes; a resource has at most {MAX_BYTES}, HTTP gives all", field="uri"
        )
    content = await client.artifact(exec_id, path)
    return types.ReadResourceResult(contents=[_contents(uri, file.mime, content)])


def _contents(uri: str, mime: str, content: bytes) -> types.TextResourceContents | types.BlobResourceContents:
    if mime.startswith(_TEXT):
        try:
            return types.TextResourceContents(uri=uri, mime_type=mime, text=content.decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(uri=uri, mime_type=mime, blob=base64.b64encode(content).decode("ascii"))
