"""`make crash-docker`: services with a docker engine die at random instants while they run programs.

python -m tests.crash.containers [RUNS] [ENGINE]

What is left is counted from outside: containers and volumes by their label, processes by their container.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from tests.crash.deaths import PATIENCE_S, Service

from belljar.engines.docker import labels
from belljar.processes import epoch

CALLERS = 3
LONGEST_LIFE_S = 4.0
SWEPT_S = 90.0
"""What docker was still making when its caller died comes late: then it goes with the engine's next look."""
PROGRAM = "import subprocess; subprocess.Popen(['sleep', '600']); print('alive')"
"""What it starts is not to outlive it."""


@dataclass
class Toll:
    runs: int = 0
    answered: int = 0
    deaths: int = 0
    left_at_once: int = 0
    """Containers that were there when a service was dead."""
    left: list[str] = field(default_factory=list)
    """What was still there when the next one had run something, or the last one had ended in peace."""


class Lives:
    def __init__(self, data_dir: Path, engine: str) -> None:
        self._data_dir = data_dir
        self._engine = engine
        self._epochs: list[str] = []
        self._containers: set[str] = set()
        self.toll = Toll()

    def live_and_die(self, most_runs: int, after_s: float) -> None:
        """A service that is killed so long after it said where it is, however many runs that were."""
        service = self._start()
        self._check(self._epochs[:-1], service)
        with ThreadPoolExecutor(CALLERS) as callers:
            for _ in range(CALLERS):
                callers.submit(self._ask, service, most_runs)
            time.sleep(after_s)
            service.end()
        self.toll.deaths += 1
        self.toll.left_at_once += len(self._seen(self._epochs))

    def end(self) -> Toll:
        """With a service that ends as it should."""
        service = self._start()
        self._check(self._epochs[:-1], service)
        self._seen(self._epochs)
        service.process.terminate()
        service.wait(PATIENCE_S)
        self.toll.left += self._still_there(self._epochs)
        return self.toll

    def _start(self) -> Service:
        service = Service(self._data_dir, engine=self._engine)
        self._epochs.append(epoch(service.pid))
        return service

    def _ask(self, service: Service, most_runs: int) -> None:
        with suppress(httpx2.HTTPError), service.http() as http:
            while self.toll.runs < most_runs:
                self.toll.runs += 1
                answer = http.post("/run", json={"code": PROGRAM})
                self.toll.answered += answer.status_code == 200

    def _check(self, dead: Sequence[str], service: Service) -> None:
        """The first jar has the engine sweep what the dead have left."""
        with service.http() as http:
            assert http.post("/run", json={"code": PROGRAM}).json()["stdout"] == "alive\n"
        self.toll.left += self._still_there(dead)

    def _seen(self, epochs: Sequence[str]) -> list[str]:
        found = _listed("container", epochs)
        self._containers.update(found)
        return found

    def _still_there(self, epochs: Sequence[str]) -> list[str]:
        deadline = time.monotonic() + SWEPT_S
        while (found := self._there(epochs)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _there(self, epochs: Sequence[str]) -> list[str]:
        found = [*_listed("container", epochs), *_listed("volume", epochs)]
        living = set(_listed("container", self._epochs))
        return [*found, *_processes(self._containers - living)]


def _listed(kind: str, epochs: Sequence[str]) -> list[str]:
    """Ids of containers or names of volumes that processes of these epochs have made."""
    every = ["--all", "--no-trunc"] if kind == "container" else []
    shown = f'{{{{.{"ID" if kind == "container" else "Name"}}}}} {{{{.Label "{labels.EPOCH}"}}}}'
    argv = ["docker", kind, "ls", *every, "--filter", f"label={labels.EPOCH}", "--format", shown]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name, _, made_by in (line.partition(" ") for line in lines) if made_by in epochs]


def _processes(containers: set[str]) -> list[str]:
    """That are in one of these containers, or look after it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            text = (folder / "cmdline").read_text() + (folder / "cgroup").read_text()
            found += [f"pid {folder.name} of {one}" for one in containers if one in text]
    return found


def kill_at_random(runs: int, engine: str, data_dir: Path) -> Toll:
    lives = Lives(data_dir, engine)
    while lives.toll.runs < runs:
        lives.live_and_die(runs, random.uniform(0, LONGEST_LIFE_S))
    return lives.end()


def main(runs: int, engine: str) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="belljar-crash-") as folder:
        toll = kill_at_random(runs, engine, Path(folder))
    sys.stdout.write(json.dumps({**vars(toll), "seconds": round(time.monotonic() - began)}, indent=2) + "\n")
    return 1 if toll.left else 0


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv[1:]))
    sys.exit(main(int(arguments.get(0, "1000")), arguments.get(1, "docker")))
