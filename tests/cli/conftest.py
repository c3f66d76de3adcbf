from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Belljar, Ran, Service, end, start_service

from belljar.cli import main


@pytest.fixture(scope="session")
def service(jail: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = start_service(tmp_path_factory.mktemp("service"))
    yield running
    assert end(running) == 0


@pytest.fixture
def belljar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Belljar:
    """A command as a person gives it in an empty folder, with settings of their own."""
    for name in [name for name in os.environ if name.startswith("BELLJAR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BELLJAR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def run(*arguments: str, **settings: str) -> Ran:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["belljar", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return Ran(caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def caller(belljar: Belljar, service: Service) -> Belljar:
    """The same, with the settings that lead to the service."""

    def run(*arguments: str, **settings: str) -> Ran:
        return belljar(*arguments, **service.environment, **settings)

    return run
