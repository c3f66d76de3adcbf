from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.execution.wheels import sha256, wheel

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

CODE = "import beta; print(beta.version)"
NAME, CONTENT = wheel("beta", "2.0")
ROW = {"name": "beta", "version": "2.0", "sha256": sha256(CONTENT)}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "policy.yaml").write_text("policies: {default: {allowed_packages: [beta]}}")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / NAME).write_bytes(CONTENT)
    return {
        "BELLJAR_POLICY": str(tmp_path / "policy.yaml"),
        "BELLJAR_PACKAGES_WHEELHOUSE": str(wheels),
        "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always",
    }


@pytest.mark.usefixtures("jail")
def test_a_run_here_has_its_packages(belljar: Belljar, settings: dict[str, str]) -> None:
    ran = belljar("run", "--local", "--json", "--code", CODE, "--package", "beta>1", **settings)
    assert ran.json["stdout"] == "2.0\n", ran
    assert ran.json["packages"] == [ROW]


@pytest.mark.parametrize(
    ("package", "said"),
    [
        pytest.param("numpy", "PACKAGE_NOT_ALLOWED: package numpy is not allowed", id="policy"),
        pytest.param("./beta", "BAD_REQUEST: `./beta` is not a package", id="path"),
    ],
)
@pytest.mark.usefixtures("jail")
def test_what_may_not_be_installed_is_a_sentence_and_status_2(
    belljar: Belljar, settings: dict[str, str], package: str, said: str
) -> None:
    ran = belljar("run", "--local", "--code", CODE, "--package", package, **settings)
    assert ran.status == 2
    assert said in ran.err


def test_a_service_is_asked_for_packages(caller: Belljar) -> None:
    ran = caller("exec", "--code", CODE, "--package", "beta", "--package", "numpy")
    assert ran.status == 2
    assert "PACKAGE_NOT_ALLOWED: package beta is not allowed (system: no layer lists" in ran.err
