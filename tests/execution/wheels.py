"""Wheels made by hand, and an index that serves them on a loopback address."""

from __future__ import annotations

import asyncio
import hashlib
import io
import ssl
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.egress.places import egress, server

from belljar.egress.gate import Egress
from belljar.execution.packages import Supply

HOST = "index.test"
LOOPBACK = ("127.0.0.0/8",)


def wheel(
    name: str,
    version: str = "1.0",
    *,
    needs: Sequence[str] = (),
    files: Mapping[str, str | bytes] | None = None,
) -> tuple[str, bytes]:
    """The file's name and its content; without `files`, a module of that name that knows its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content: dict[str, str | bytes] = dict(files or {f"{module}.py": f"version = {version!r}\n"})
    content |= {
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return f"{module}-{version}-py3-none-any.whl", packed.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Index:
    files: dict[str, bytes]
    """By name. What is served may be another than what is listed: see `digests`."""
    digests: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Each request's first line."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    slow: asyncio.Event | None = None
    """Nobody is answered before it is set."""
    port: int = 0

    scheme: str = "http"

    @property
    def supply(self) -> Supply:
        return Supply(index_url=f"{self.scheme}://{HOST}:{self.port}/simple", allowed_ips=LOOPBACK)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n")[0].decode()
        self.asked.append(line)
        self.reached.set()
        if self.slow is not None:
            await self.slow.wait()
        status, kind, body = self._answer(line.split()[1].rpartition(HOST)[2].partition("/")[2])
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    def _answer(self, path: str) -> tuple[str, str, bytes]:
        place, _, name = path.strip("/").partition("/")
        if place == "files" and name in self.files:
            return "200 OK", "application/octet-stream", self.files[name]
        listed = [file for file in self.files if file.split("-")[0].replace("_", "-") == name]
        if place != "simple" or not listed:
            return "404 Not Found", "text/plain", b"no"
        links = "".join(
            f'<a href="/files/{file}#sha256={self.digests.get(file) or sha256(self.files[file])}">{file}</a>'
            for file in listed
        )
        return "200 OK", "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


@asynccontextmanager
async def index(*wheels: tuple[str, bytes], identity: ssl.SSLContext | None = None) -> AsyncIterator[Index]:
    served = Index(dict(wheels), scheme="https" if identity else "http")
    async with server(served.serve, identity=identity) as (port, _):
        served.port = port
        yield served


def way_out(trust: ssl.SSLContext | None = None) -> Egress:
    return egress({HOST: ["127.0.0.1"]}, trust=trust)
