"""The commands as a person gives them, and a real service for them to talk to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

BELLJAR = [sys.executable, "-c", "from belljar.cli import main; main()"]
WITHOUT_CGROUPS_TOO = {"BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always"}


class Ran(NamedTuple):
    status: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Service(NamedTuple):
    url: str
    data_dir: Path
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to find it."""
        return {"BELLJAR_RUNNER_URL": self.url, "BELLJAR_DATA_DIR": str(self.data_dir)}


Belljar = Callable[..., Ran]


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    return {**ours, "BELLJAR_DATA_DIR": str(data_dir), **WITHOUT_CGROUPS_TOO, **more}


def start_service(data_dir: Path, *options: str, **settings: str) -> Service:
    process = subprocess.Popen(
        [*BELLJAR, "serve", "--port", "0", "--json", *options],
        env=environment(data_dir, **settings),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the service did not start"
    return Service(json.loads(line)["url"], data_dir, process)


def end(service: Service) -> int:
    with service.process as process:
        process.send_signal(signal.SIGTERM)
        return process.wait(60)
