"""Our own images: built from the Dockerfiles that belljar ships, on a base that is given or made here."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import tarfile
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

from belljar.engines.docker.api import Api, Failed
from belljar.errors import BadRequest, EngineUnavailable

NAMES = ("node", "python", "shell")
BASE = "belljar/base"
_SUITE = "bookworm"
_CHUNK = 1 << 18


def tag(name: str) -> str:
    return f"belljar/{name}"


def dockerfile(name: str) -> bytes:
    if name not in NAMES:
        raise BadRequest(f"there is no image {name!r} to build; there are {', '.join(NAMES)}", field="name")
    # Beside the package where it is installed, in the working tree where it is developed.
    for folder in (resources.files("belljar") / "images", Path(__file__).parents[4] / "images"):
        file = folder / name / "Dockerfile"
        if file.is_file():
            return file.read_bytes()
    raise EngineUnavailable("this installation of belljar comes without its Dockerfiles; install it anew")


async def build(api: Api, name: str, *, base: str | None, packages: str, network: str) -> AsyncIterator[str]:
    """Build one image; yields what the engine says on the way."""
    arguments = {"PACKAGES": packages, **({"BASE": base} if base else {})}
    lines = api.lines(
        "POST",
        "build",
        data=_context(dockerfile(name)),
        t=tag(name),
        buildargs=json.dumps(arguments),
        networkmode=network,
        forcerm=1,
    )
    async for line in lines:
        if "error" in line:
            raise EngineUnavailable(f"image {tag(name)} could not be built: {line['error']}", field="name")
        if text := str(line.get("stream", "")).strip():
            yield text


async def bootstrap(api: Api) -> None:
    """A Debian base from Debian's packages, for machines that reach no registry. What is there stays."""
    try:
        await api.ask("GET", f"images/{BASE}/json")
        return
    except Failed as error:
        if error.status != 404:
            raise
    if shutil.which("mmdebstrap") is None:
        raise EngineUnavailable("a base is made by mmdebstrap, which is not here; apt install mmdebstrap")
    process = await asyncio.create_subprocess_exec(
        *("mmdebstrap", "--quiet", "--variant=minbase", _SUITE, "-"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    try:
        async for line in api.lines(
            "POST", "images/create", data=_chunks(process.stdout), fromSrc="-", repo=BASE, tag="latest"
        ):
            if "error" in line:
                raise EngineUnavailable(f"the base could not be imported: {line['error']}")
    finally:
        if process.returncode is None and process.stdout.at_eof() is False:
            process.kill()
        status = await process.wait()
        words = (await said).decode("utf-8", "replace").strip().splitlines()
    if status:
        raise EngineUnavailable(f"mmdebstrap failed: {words[-1] if words else 'it said nothing'}")


async def _chunks(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while chunk := await stream.read(_CHUNK):
        yield chunk


def _context(dockerfile: bytes) -> bytes:
    """A build context of one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(dockerfile)
        archive.addfile(entry, io.BytesIO(dockerfile))
    return buffer.getvalue()
