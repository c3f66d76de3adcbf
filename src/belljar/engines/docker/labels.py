"""Who made a container or a volume, written on it: what a process that is gone has left can be told apart."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import re
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from belljar.engines.docker.api import Api, Failed
from belljar.processes import epoch, is_alive

logger = logging.getLogger(__name__)

REMOVE_S = 20.0
EPOCH = "belljar.epoch"
ENGINE = "belljar.engine"
JAR = "belljar.jar"
HOME = "belljar.home"
"""The container that belljar itself runs in, by its short id: of that its docker engine can tell."""

_IN_CONTAINER = Path("/.dockerenv")


def for_jar(engine: str, jar: str) -> dict[str, str]:
    named = {EPOCH: epoch(), ENGINE: engine, JAR: jar}
    node = platform.node()
    is_home = _IN_CONTAINER.exists() and re.fullmatch("[0-9a-f]{12}", node)
    return {**named, HOME: node} if is_home else named


async def left_behind(api: Api, *, engine: str = "", living: Container[str] = ()) -> list[str]:
    """Remove what processes that are gone have left, and what is of `engine` but of no living jar.

    Returns what was removed. `living` is asked when all is listed: whatever is on a list and not of the
    living by then was there before, and has lost its jar. The same goes for homes.
    """
    removed = []
    wanted = json.dumps({"label": [EPOCH]})
    containers = await api.ask("GET", "containers/json", all=1, filters=wanted)
    volumes = (await api.ask("GET", "volumes", filters=wanted))["Volumes"] or ()
    homes = {container["Id"][:12] for container in await api.ask("GET", "containers/json")}

    def is_left(of: dict[str, str]) -> bool:
        if of.get(ENGINE) == engine:
            return of.get(JAR) not in living
        return of.get(HOME, "") not in {"", *homes} or not is_alive(of.get(EPOCH, ""))

    for container in containers:
        if is_left(container["Labels"]):
            what = f"container {container['Names'][0].lstrip('/')}"
            try:
                async with asyncio.timeout(REMOVE_S):
                    await remove(api, container["Id"])
            except TimeoutError:  # nobody shall wait for one that does not die; the next look finds it again
                logger.warning("%s cannot be removed; docker does not answer for it", what)
            else:
                removed.append(what)
    for volume in volumes:
        if is_left(volume["Labels"]):
            with suppress(Failed):  # that container may hold it
                await remove_volume(api, volume["Name"])
                removed.append(f"volume {volume['Name']}")
    return removed


async def remove(api: Api, container: str) -> None:
    """Kill it, and return when it is gone. The engine may be removing it already, because it ended."""
    try:
        await api.ask("DELETE", f"containers/{container}", force=1, v=1)
    except Failed as error:
        if error.status == 409:
            await until_gone(api, container)
        elif error.status != 404:
            raise


async def remove_volume(api: Api, name: str) -> None:
    try:
        await api.ask("DELETE", f"volumes/{name}", force=1)
    except Failed as error:
        if error.status != 404:
            raise


async def until_gone(api: Api, container: str) -> None:
    try:
        answer = await api.wait(container, "removed")
    except Failed as error:
        if error.status != 404:
            raise
    else:
        if failure := answer.get("Error"):  # it tried to remove it, and could not
            raise Failed(f"the docker engine says: {failure.get('Message')}")
