"""Whether an image is fit for jars: a jar is made of it, and looked around in from inside."""

from __future__ import annotations

import json

from belljar.engines import ENGINES, Choice
from belljar.engines.base import Check, Command, Probe
from belljar.engines.docker.engine import DockerEngine
from belljar.engines.guestjar import GuestJar
from belljar.errors import BadRequest, BelljarError
from belljar.models import Grant, Output, Stream

_LARGE_MB = 2000
_LOOK = """\
import json, pwd, shutil, sys
try:
    user = pwd.getpwuid(1000).pw_name
except KeyError:
    user = ""
print(json.dumps({
    "python": sys.version.split()[0],
    "user": user,
    "programs": [name for name in ("bash", "git", "jq", "node", "esbuild") if shutil.which(name)],
}))
"""


async def examine(choice: Choice, engine: str, image: str) -> Probe:
    made = ENGINES[engine](choice) if engine in ENGINES else None
    if not isinstance(made, DockerEngine):
        raise BadRequest(f"engine {engine} has no images; docker and gvisor have", field="engine")
    try:
        return Probe(engine, tuple(await _examine(made, image)))
    except BelljarError as error:
        what, _, fix = error.message.partition("; ")
        return Probe(engine, (Check("image", False, what, fix or "choose another image"),))
    finally:
        await made.close()


async def _examine(engine: DockerEngine, name: str) -> list[Check]:
    image = await engine.image(name)
    size = image.size // 1_000_000
    checks = [
        Check("image", True, image.reference),
        Check("size", size <= _LARGE_MB, f"{size} MB", "leave out what programs do not need", required=False),
    ]
    jar = await engine.create(Grant(image=name))
    try:
        if not isinstance(jar, GuestJar):
            detail = "not there: commands run directly, none of them warm"
            return [*checks, Check("python3", False, detail, "install python3 in it", required=False)]
        said = b""
        async for event in jar.exec(Command(argv=("python3", "-c", _LOOK))):
            if isinstance(event, Output) and event.stream is Stream.STDOUT:
                said += event.data
    finally:
        await jar.destroy()
    try:
        found = json.loads(said)
    except ValueError:
        return [*checks, Check("python3", False, "it does not run a program", "mend its python3")]
    user, programs = found["user"], ", ".join(found["programs"])
    return [
        *checks,
        Check("python3", True, found["python"]),
        Check("user", bool(user), user or "uid 1000 has no name", "add a user of uid 1000", required=False),
        Check("programs", True, programs or "none of those that are looked for"),
    ]
