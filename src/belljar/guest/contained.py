"""The guest as the first process of a container: what an image's own python3 is told to run.

All that contains it is the container engine's doing and is there before it starts. It comes down
stdin, which then is the channel, and leaves no descriptor of that for a program.
Standard library and our own modules from the bundle only.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from belljar.guest import protocol
from belljar.guest.agent import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

WORKSPACE = "/workspace"
AREAS = ("inputs", "work", "artifacts")


def main(settings: dict[str, Any]) -> NoReturn:
    started = time.perf_counter()
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    try:
        sys.path.remove("")  # of `python3 -c`; a script's folder takes its place
        for module in settings["preload"]:
            __import__(module)
        areas = _areas()
        os.chdir(f"{WORKSPACE}/work")
        # What is here now is shared by every fork: keep the collector from touching, and so copying, it.
        gc.collect()
        gc.freeze()
        gc.disable()
        proc_fd = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        Agent(read_fd, write_fd, areas, proc_fd, {"guest": time.perf_counter() - started}).serve()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        os.write(write_fd, protocol.encode_json(protocol.NOTE, 0, failed=text[:1000]))
    finally:
        os._exit(0)


def _areas() -> dict[str, int]:
    """A descriptor of each. `inputs` is mounted already; the others share the workspace's own file system."""
    descriptors = {}
    for area in AREAS:
        place = f"{WORKSPACE}/{area}"
        os.makedirs(place, exist_ok=True)
        descriptors[area] = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    os.chmod(WORKSPACE, 0o555)
    return descriptors
