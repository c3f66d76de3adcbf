"""`belljar image`, `belljar doctor` and `belljar run` with the engines that have images."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from belljar.engines.docker.engine import DockerEngine

if TYPE_CHECKING:
    from tests.cli.commands import Belljar


@pytest.fixture(scope="session")
def docker() -> None:
    probe = asyncio.run(DockerEngine().probe())
    if probe.missing:
        pytest.skip(f"no docker engine with our images here: {probe.missing[0].detail}")


def test_a_name_that_is_no_image_of_ours_is_refused(belljar: Belljar) -> None:
    ran = belljar("image", "build", "pyton")
    assert ran.status == 2
    assert "there is no image 'pyton' to build; there are node, python, shell" in ran.err


def test_a_base_is_given_or_made_not_both(belljar: Belljar) -> None:
    assert belljar("image", "build", "--base", "debian", "--bootstrap").status == 2


def test_without_an_engine_it_is_said_what_to_do(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("image", "list", BELLJAR_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert ran.status == 125
    assert ran.err.startswith("belljar: ENGINE_UNAVAILABLE: no docker engine answers at ")
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("docker")
def test_images_are_listed_with_what_they_are_for(belljar: Belljar) -> None:
    rows = belljar("image", "list", "--json", BELLJAR_IMAGES="belljar-test/none").json
    uses = {row["image"]: row["used_for"] for row in rows}
    assert uses == {
        "belljar/python": "default",
        "belljar/shell": "bash",
        "belljar/node": "javascript, typescript",
        "belljar-test/none": "requests",
    }
    assert [row["image"] for row in rows if row["id"] is None] == ["belljar-test/none"]


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize(
    ("image", "status", "failed"),
    [
        pytest.param("belljar/node", 0, [], id="ours"),
        pytest.param("belljar/base", 0, ["python3"], id="without-python"),
        pytest.param("belljar-test/none", 1, ["image"], id="missing"),
    ],
)
def test_an_image_is_checked(belljar: Belljar, image: str, status: int, failed: list[str]) -> None:
    ran = belljar("image", "check", image, "--json")
    assert ran.status == status
    assert ran.json["fit"] is (status == 0)
    assert [check["name"] for check in ran.json["checks"] if not check["ok"]] == failed


def test_the_jail_has_no_images(belljar: Belljar) -> None:
    ran = belljar("image", "check", "belljar/python", "--engine", "jail")
    assert ran.status == 2
    assert "engine jail has no images; docker and gvisor have" in ran.err


@pytest.mark.usefixtures("docker")
def test_doctor_shows_every_engine(belljar: Belljar) -> None:
    found = belljar("doctor", "--json").json["engines"]
    assert [probe["engine"] for probe in found] == ["jail", "docker", "gvisor"]


def test_doctor_without_a_docker_engine_has_nothing_to_clean(belljar: Belljar, tmp_path: Path) -> None:
    ran = belljar("doctor", "--clean", BELLJAR_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert "engine docker: cannot be used" in ran.out
    assert "nothing was left behind" in ran.out


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("hello.py", "print(40 + 2)", id="python"),
        pytest.param("hello.sh", "echo $((40 + 2))", id="bash"),
        pytest.param("hello.js", "console.log(40 + 2)", id="javascript"),
        pytest.param("hello.ts", "const two: number = 2; console.log(40 + two)", id="typescript"),
    ],
)
def test_a_program_runs_in_the_image_of_its_language(belljar: Belljar, name: str, code: str) -> None:
    Path(name).write_text(code)
    ran = belljar("run", "--engine", "docker", name)
    assert (ran.status, ran.out) == (0, "42\n")
