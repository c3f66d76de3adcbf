"""What a jar of the docker and gvisor engines costs beside docker itself, as ratios taken in one run.

python bench/bench_docker.py [--json] [--engine docker|gvisor] [--rounds N]

Beside a warm run stands `docker run --rm` with the flags that are forced on a jar. Beside a jar that is made,
used and destroyed stands the bare Engine API with the same container, with the same program in it and with
nothing that is waited for, and `docker run --rm` again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from belljar import engines
from belljar.engines import seccomp
from belljar.engines.base import WORK, Area, Command, Engine, Jar
from belljar.engines.docker import labels
from belljar.engines.docker.api import Api
from belljar.engines.docker.container import INPUTS, WORKSPACE, Volume, forced
from belljar.engines.docker.images import DEFAULT, Image, find
from belljar.errors import BelljarError
from belljar.models import Ended, Grant, InputFile, Language
from measuring import Job, Report, at_least, at_most, commit, in_turn, machine, quantile, rate, shown

GRANT = Grant()
PROGRAM = b"print(6 * 7)\n"
RUNTIMES = {"docker": "runc", "gvisor": "runsc"}
RUN = "docker run --rm"
NOTHING = "bare create, start, remove"
BESIDE = {"docker": NOTHING, "gvisor": RUN}
"""What an engine's jars per second are promised against."""


async def use(jar: Jar) -> None:
    """What happens between a jar's making and its end."""
    await jar.put(Area.WORK, [InputFile("main.py", PROGRAM)])
    async for event in jar.exec(Command(argv=(f"{WORK}/main.py",), warm=True)):
        if isinstance(event, Ended) and event.exit_code != 0:
            raise RuntimeError(f"a run ended with {event}")
    await jar.collect(None)


def docker_run(runtime: str, profile: Path) -> list[str]:
    limits = GRANT.limits
    workspace = f"size={limits.workspace_mb}m,nr_inodes={limits.workspace_files}"
    flags = {
        "runtime": runtime,
        "network": "none",
        "cap-drop": "ALL",
        "user": "1000:1000",
        "pids-limit": limits.pids,
        "memory": f"{limits.memory_mb}m",
        "memory-swap": f"{limits.memory_mb}m",
        "cpus": limits.cpu_cores,
        "ulimit": f"nofile={limits.nofile}",
        "ipc": "private",
        "cgroupns": "private",
        "log-driver": "none",
        "pull": "never",
        "workdir": "/",
        "entrypoint": "python3",
    }
    return [
        *("docker", "run", "--rm", "--read-only", "--no-healthcheck"),
        *(f"--{name}={value}" for name, value in flags.items()),
        *("--security-opt=no-new-privileges", f"--security-opt=seccomp={profile}"),
        f"--tmpfs=/tmp:noexec,nosuid,size={limits.tmp_mb}m,nr_inodes=16384",
        f"--tmpfs=/workspace:exec,nosuid,{workspace}",
        *(DEFAULT, "-c", PROGRAM.decode()),
    ]


@asynccontextmanager
async def docker_runs(runtime: str) -> AsyncIterator[Job]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as profile:
        json.dump(seccomp.load_profile(), profile)
        profile.flush()
        argv = docker_run(runtime, Path(profile.name))

        async def run() -> None:
            process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
            said, _ = await process.communicate()
            if said != b"42\n":
                raise RuntimeError(f"docker run said {said!r}")

        yield run


async def warm(engine: Engine, grant: Grant, docker: Job, rounds: int) -> dict[str, list[float]]:
    """Jars are made ahead, as a pool does: what is measured is from the request to the result."""
    waiting = [await engine.create(grant) for _ in range(rounds + 1)]
    used: list[Jar] = []

    async def run_warm() -> None:
        used.append(waiting.pop())
        await use(used[-1])

    try:
        return await in_turn({"warm jar": run_warm, RUN: docker}, rounds)
    finally:
        await asyncio.gather(*(jar.destroy() for jar in (*waiting, *used)))


class Bare:
    """What a careful person would write with the Engine API alone, with all that is forced on a jar."""

    def __init__(self, api: Api, image: Image, runtime: str) -> None:
        self._api = api
        self._image = image
        self._runtime = runtime

    async def make(self) -> None:
        """Create, start, remove: the program may get to its first line, or not."""
        async with self._created("import time; time.sleep(60)") as name:
            await self._api.ask("POST", f"containers/{name}/start")

    async def run(self) -> None:
        """The same with a program that is waited for and whose output is read."""
        async with self._created(PROGRAM.decode()) as name:
            output = Output()
            attached = await self._api.attach(name, output, lambda data: None)
            await self._api.ask("POST", f"containers/{name}/start")
            await output.ended.wait()
            attached.abort()
        if output.text != b"42\n":
            raise RuntimeError(f"a run said {output.text!r}")

    @asynccontextmanager
    async def _created(self, program: str) -> AsyncIterator[str]:
        name = f"bench-{secrets.token_hex(8)}"
        gvisor = self._runtime == RUNTIMES["gvisor"]
        volumes = [Volume(name=f"{name}-inputs", target=INPUTS, read_only=True)]
        if gvisor:
            volumes.insert(0, Volume(name=f"{name}-workspace", target=WORKSPACE, read_only=False))
        config = forced(
            image=self._image.id,
            image_env=self._image.env,
            argv=("python3", "-c", program),
            env={"PATH": self._image.path},
            cwd="/",
            limits=GRANT.limits,
            runtime=self._runtime,
            labels={},
            volumes=volumes,
            terminals=not gvisor,
        )
        await self._api.ask("POST", "containers/create", body=config, name=name)
        yield name
        await labels.remove(self._api, name)
        await asyncio.gather(*(labels.remove_volume(self._api, volume.name) for volume in volumes))


class Output(asyncio.Protocol):
    def __init__(self) -> None:
        self.text = b""
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.text += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


async def sustained(
    engine: Engine, grant: Grant, bare: Bare, docker: Job, rounds: int, at_once: int
) -> dict[str, float]:
    """Containers per second, from nothing to nothing."""

    async def jar_and_run() -> None:
        jar = await engine.create(grant)
        await use(jar)
        await jar.destroy()

    async def some(job: Job) -> None:
        await rate(job, 2 * at_once, at_once)

    jobs = {
        "jar with a run": jar_and_run,
        "bare with a run": bare.run,
        NOTHING: bare.make,
        RUN: docker,
    }
    times = await in_turn({name: partial(some, job) for name, job in jobs.items()}, rounds)
    return {name: 2 * at_once / quantile(samples, 0.5) for name, samples in times.items()}


async def measure(name: str, rounds: int) -> Report:
    engine, runtime = await engines.choose(name), RUNTIMES[name]
    api = await Api.open()
    try:
        grant = await engine.fit(GRANT, Language.PYTHON)  # as the service does, once for many jars
        bare = Bare(api, await find(api, DEFAULT), runtime)
        async with docker_runs(runtime) as docker:
            times = await warm(engine, grant, docker, rounds)
            rates = await sustained(engine, grant, bare, docker, rounds, at_once=2)
    finally:
        await api.close()
        await engine.close()
    p50 = {case: quantile(samples, 0.5) for case, samples in times.items()}
    return Report(
        tables={
            "one run": [
                {"case": case, "p50_ms": 1000 * p50[case], "p95_ms": 1000 * quantile(samples, 0.95)}
                for case, samples in times.items()
            ],
            "containers per second, two at a time": [
                {"case": case, "rate": rate, "jars_to_it": rates["jar with a run"] / rate}
                for case, rate in rates.items()
            ],
        },
        promises=[
            at_most(f"warm run p50 / {RUN} p50", p50["warm jar"] / p50[RUN], 1 / 25),
            at_least(
                f"jars with a run / {BESIDE[name]}, per second",
                rates["jar with a run"] / rates[BESIDE[name]],
                0.9,
            ),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare belljar's containers with docker's own.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", choices=sorted(RUNTIMES), action="append")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    try:
        chosen = options.engine or sorted(RUNTIMES)
        reports = {name: asyncio.run(measure(name, options.rounds)) for name in chosen}
    except BelljarError as error:
        sys.exit(f"{error.code}: {error.message}")
    if options.json:
        found = {name: asdict(report) for name, report in reports.items()}
        print(json.dumps({"machine": machine(), "commit": commit(), "benchmarks": found}, indent=2))  # noqa: T201
    else:
        for name, report in reports.items():
            sys.stdout.write(shown(name, report))


if __name__ == "__main__":
    main()
