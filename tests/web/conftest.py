"""A real service with its jail, and Chromium before it. Every test ends with a look at the canaries.

In a process of their own: Playwright keeps an event loop running in this one.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.commands import BELLJAR, Service, end, environment, start_service
from tests.web.consoles import HOSTILE, REBOUND, TOKEN, Api, Console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
)
POLICY = """
policies:
  agent_roles:
    watched:
      approve_code_at: low
"""
"""The operator's own runs do not wait; those of an agent in this role do."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="Where the pictures of the documentation are put.")


@pytest.fixture(scope="session")
def service(jail: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "policy.yaml").write_text(POLICY)
    _hostile_skill(folder / "skills")
    running = start_service(
        folder / "data",
        "--engine",
        "jail",
        BELLJAR_TOKEN=TOKEN,
        BELLJAR_POLICY=str(folder / "policy.yaml"),
        BELLJAR_SKILLS_DIR=str(folder / "skills"),
    )
    yield running
    assert end(running) == 0


def _hostile_skill(folder: Path) -> None:
    manifest: dict[str, Any] = {
        "schema_version": "1",
        "id": "hostile.words",
        "name": HOSTILE[:100],
        "description": HOSTILE,
        "interface": {
            "inputs": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": HOSTILE}},
                "required": ["word"],
                "additionalProperties": False,
            },
            "outputs": {"type": "object", "properties": {"stdout": {"type": "string"}}},
        },
        "runtime": {
            "kind": "docker",
            "entrypoint": ["python3", "-c", "import sys; print(sys.argv[1])", "{word}"],
        },
        "permissions": {
            "fs": {"read": ["inputs/**"], "write": ["artifacts/**"]},
            "net": {"mode": "none"},
        },
    }
    (folder / "hostile.words").mkdir(parents=True)
    (folder / "hostile.words/manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="session")
def api(service: Service) -> Iterator[Api]:
    api = Api(service.url)
    with api.http:
        yield api


@pytest.fixture(scope="session")
def agent(service: Service) -> Iterator[Api]:
    """Whose every run waits for a person."""
    made = subprocess.run(
        [*BELLJAR, "token", "create", "--role", "agent", "--agent-role", "watched", "--json"],
        env=environment(service.data_dir),
        capture_output=True,
        check=True,
        text=True,
    )
    api = Api(service.url, json.loads(made.stdout)["token"])
    with api.http:
        yield api


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    if not CHROMIUM.exists():
        pytest.skip("no Chromium to look with; on Debian and Ubuntu: apt install chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        yield browser
        browser.close()


@pytest.fixture
def outside(browser: Browser, service: Service) -> Iterator[Console]:
    """Before the door."""
    with browser.new_context() as context:
        console = Console(context, service)
        yield console
        console.check_untouched()


@pytest.fixture(scope="session")
def window(browser: Browser, service: Service) -> Iterator[Console]:
    with browser.new_context() as context:
        console = Console(context, service)
        console.enter()
        yield console


@pytest.fixture
def console(window: Console) -> Iterator[Console]:
    """In a window that stays open all day, as it does for a person."""
    window.start_again()
    yield window
    window.check_untouched()
