"""Who made a container or a volume, written on it: what a process that is gone has left can be told apart."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

from belljar.engines.docker.api import Api, Failed
from belljar.processes import is_alive

logger = logging.getLogger(__name__)

REMOVE_S = 20.0
EPOCH = "belljar.epoch"
ENGINE = "belljar.engine"
JAR = "belljar.jar"


async def left_behind(api: Api, *, engine: str = "", living: frozenset[str] = frozenset()) -> list[str]:
    """Remove what processes that are gone have left, and what is of `engine` but of no living jar.

    Returns what was removed.
    """
    removed = []
    wanted = json.dumps({"label": [EPOCH]})
    for container in await api.ask("GET", "containers/json", all=1, filters=wanted):
        if _is_left(container["Labels"], engine, living):
            what = f"container {container['Names'][0].lstrip('/')}"
            try:
                async with asyncio.timeout(REMOVE_S):
                    await remove(api, container["Id"])
            except TimeoutError:  # nobody shall wait for one that does not die; the next look finds it again
                logger.warning("%s cannot be removed; docker does not answer for it", what)
            else:
                removed.append(what)
    for volume in (await api.ask("GET", "volumes", filters=wanted))["Volumes"] or ():
        if _is_left(volume["Labels"], engine, living):
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
        await api.ask("POST", f"containers/{container}/wait", condition="removed")
    except Failed as error:
        if error.status != 404:
            raise


def _is_left(labels: dict[str, str], engine: str, living: frozenset[str]) -> bool:
    if labels.get(ENGINE) == engine:
        return labels.get(JAR) not in living
    return not is_alive(labels.get(EPOCH, ""))
