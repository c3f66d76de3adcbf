"""The image of the service, built by the real builder, run by the real engine with what the compose files say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from tests.deploy import compose

from belljar.engines.docker.engine import DockerEngine

ROOT = Path(__file__).parents[2]
IMAGE = "belljar-test/service"
BASE = "belljar/python"
"""Made here without a registry, by `make images`."""

pytestmark = pytest.mark.timeout(300)


class Container(NamedTuple):
    name: str
    url: str
    token: str

    def run(self, code: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.post(f"{self.url}/run", json={"code": code}, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def docker(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="session")
def wheels(pytestconfig: pytest.Config) -> Path:
    """All that the image installs, so that no builder has to reach a package index. Kept until they change."""
    lock, project_file = ROOT / "requirements.lock", ROOT / "pyproject.toml"
    digest = hashlib.sha256(lock.read_bytes() + project_file.read_bytes()).hexdigest()
    kept = pytestconfig.cache.mkdir(f"wheels-{digest[:16]}")
    if not (kept / "complete").exists():
        project = tomllib.loads(project_file.read_text())
        extras = project["project"]["optional-dependencies"]
        wanted = [
            *project["build-system"]["requires"],
            *project["project"]["dependencies"],
            *(one for name in ("docker", "mcp", "postgres") for one in extras[name]),
        ]
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--wheel-dir", kept, "--constraint", lock, *wanted], check=True)
        (kept / "complete").touch()
    return kept


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    probe = asyncio.run(DockerEngine().probe())
    if probe.missing or shutil.which("docker") is None:
        pytest.skip("no docker engine with our images here; `scripts/docker-up` and `make images` make them")
    context = tmp_path_factory.mktemp("context")
    # What .dockerignore lets through, and nothing else.
    for name in re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE):
        source = request.getfixturevalue("wheels") if name == "wheels" else ROOT / name
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, context)
    file = str(ROOT / "deploy/Dockerfile")
    options = ["--quiet", "--network=host", "--file", file, f"--build-arg=BASE={BASE}", "--tag", IMAGE]
    docker("build", *options, str(context))
    yield IMAGE
    docker("image", "rm", "--force", IMAGE)


@contextmanager
def up(image: str, service: dict[str, Any]) -> Iterator[Container]:
    name = f"belljar-test-{secrets.token_hex(4)}"
    options = compose.run_options(service, name)
    docker("run", "--detach", "--name", name, *options, image)
    try:
        address = docker("port", name, "8088/tcp").splitlines()[0]
        url = f"http://{address}"
        for _ in range(600):
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        else:
            pytest.fail(docker("logs", name))
        yield Container(name, url, docker("exec", name, "cat", "/var/lib/belljar/token"))
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
        docker("volume", "rm", f"{name}-data")


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[Container]:
    service = compose.load("docker-compose.yml")["services"]["belljar"]
    with up(image, service) as running:
        yield running


def test_the_safe_container_runs_a_program(container: Container) -> None:
    assert httpx.get(f"{container.url}/health", timeout=60).json()["status"] == "ok"
    answer = container.run("print(6 * 7)")
    assert (answer["stdout"], answer["verdict"], answer["exit_code"]) == ("42\n", "exited", 0)
    assert re.fullmatch(r"[0-9a-f]{64}", answer["receipt"])


def test_the_console_comes_with_the_image(container: Container) -> None:
    answer = httpx.get(container.url, timeout=60)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/html")


def test_the_safe_container_says_that_its_limits_are_the_weaker_ones(container: Container) -> None:
    held_by = container.run("pass")["usage"]["held_by"]
    assert held_by == {"cpu": "affinity", "memory": "rlimit and watchdog", "pids": "rlimit"}


def test_a_program_in_the_safe_container_sees_nothing_of_the_service(container: Container) -> None:
    code = """
import os, socket
print(os.path.exists("/var/lib/belljar"), os.path.exists("/var/run/docker.sock"), os.getuid())
print([pid for pid in os.listdir("/proc") if pid.isdigit() and open(f"/proc/{pid}/cmdline").read().count("serve")])
try:
    socket.create_connection(("127.0.0.1", 8088), timeout=2)
except OSError as error:
    print(type(error).__name__)
"""
    assert container.run(code)["stdout"] == "False False 1000\n[]\nConnectionRefusedError\n"


def test_the_safe_container_has_no_privilege(container: Container) -> None:
    pid = docker("inspect", "--format", "{{.State.Pid}}", container.name)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: text.split() for name, _, text in (line.partition(":") for line in lines)}
    for caps in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[caps][0], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    assert set(status["Uid"]) == {"10001"}
    config = json.loads(docker("inspect", container.name))[0]["HostConfig"]
    assert (config["Privileged"], config["ReadonlyRootfs"], config["CapAdd"]) == (False, True, None)


@pytest.mark.parametrize("option", ["seccomp=seccomp.json", "systempaths=unconfined"])
def test_with_less_than_that_no_jar_can_be_made(image: str, option: str) -> None:
    service = compose.load("docker-compose.yml")["services"]["belljar"]
    service["security_opt"].remove(option)
    del service["volumes"], service["ports"]
    command = [
        "docker",
        "run",
        "--rm",
        *compose.run_options(service, ""),
        image,
        "belljar",
        "doctor",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    [jail] = [probe for probe in json.loads(done.stdout)["engines"] if probe["engine"] == "jail"]
    assert (done.returncode, jail["usable"]) == (1, False)


def test_the_safe_container_ends_well_when_it_is_told_to(image: str) -> None:
    with up(image, compose.load("docker-compose.yml")["services"]["belljar"]) as running:
        docker("stop", "--time", "30", running.name)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", running.name) == "0"


def test_with_the_socket_a_program_runs_in_a_container_of_its_own(image: str) -> None:
    group = str(os.stat("/var/run/docker.sock").st_gid)
    found = compose.load("docker-compose.with-docker-sock.yml", {"DOCKER_GID": group})
    with up(image, found["services"]["belljar"]) as running:
        answer = running.run("import os; print(6 * 7, os.path.exists('/var/run/docker.sock'))")
        home = docker("inspect", "--format", "{{.Config.Hostname}}", running.name)
        docker("stop", "--time", "60", running.name)
        for things in (["ps", "--all"], ["volume", "ls"]):
            assert docker(*things, "--quiet", "--filter", f"label=belljar.home={home}") == ""
    assert (answer["stdout"], answer["verdict"]) == ("42 False\n", "exited")
    assert answer["usage"]["held_by"]["memory"].startswith("cgroup")
