"""Images: which one a grant means, by digest, and whether it is fit for a jar. Nothing is ever pulled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from belljar.engines.docker.api import Api, Failed
from belljar.engines.docker.container import PATH
from belljar.errors import EngineUnavailable, GrantNotEnforceable, ImageNotAllowed

DEFAULT = "belljar/python"
LANGUAGES = {"bash": "belljar/shell", "javascript": "belljar/node", "typescript": "belljar/node"}
"""Images of languages that the default image is not for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    name: str
    id: str
    """sha256 of its configuration, which names its layers by digest."""
    env: tuple[str, ...]
    volumes: tuple[str, ...]
    size: int

    @property
    def path(self) -> str:
        """The one variable of an image that counts: where its programs are."""
        path = dict(entry.partition("=")[::2] for entry in self.env).get("PATH", "")
        return path if path and all(part.startswith("/") for part in path.split(":")) else PATH

    @property
    def reference(self) -> str:
        return f"{self.name.partition('@')[0]}@{self.id}"


async def find(api: Api, name: str) -> Image:
    """The image of that name or digest, as the engine has it now."""
    if not _NAME.fullmatch(name) or ".." in name or "//" in name:
        raise ImageNotAllowed(f"{name!r} is not the name of an image", field="image")
    for reference in dict.fromkeys((name, name.rpartition("@")[2])):
        try:
            return _read(name, await api.ask("GET", f"images/{reference}/json"))
        except Failed as error:
            if error.status not in (400, 404):
                raise
    raise EngineUnavailable(
        f"the docker engine has no image {name}, and a request never pulls one; make it with "
        "`belljar image build`, or `docker pull` it",
        field="image",
    )


def check_fit(image: Image) -> None:
    if image.volumes:
        raise GrantNotEnforceable(
            f"image {image.name} declares VOLUME {', '.join(image.volumes)}, which would be writable and "
            "without a limit; build it without",
            field="image",
        )


def _read(name: str, found: Mapping[str, object]) -> Image:
    config = found.get("Config") or {}
    assert isinstance(config, dict)
    return Image(
        name=name,
        id=str(found["Id"]),
        env=tuple(config.get("Env") or ()),
        volumes=tuple(sorted(config.get("Volumes") or ())),
        size=int(str(found.get("Size", 0))),
    )
