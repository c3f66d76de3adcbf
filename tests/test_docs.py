"""What the documentation lists is what there is: nothing missing, nothing stale. What it says runs, runs.

A block of `sh` or `python` after a line `<!-- runs -->` is run as it stands, in an empty folder; a block after
`<!-- prints -->` is what the one before it must print. Routes are compared with docs/api.md in tests/api.
"""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from belljar import errors
from belljar.cli import app
from belljar.metrics import Metrics
from belljar.settings import SETTINGS, Setting

if TYPE_CHECKING:
    import typer

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
SETTINGS_PAGE = (ROOT / "docs/settings.md").read_text()
ERRORS_PAGE = (ROOT / "docs/errors.md").read_text()
CLI_PAGE = (ROOT / "docs/cli.md").read_text()
OPERATIONS_PAGE = (ROOT / "docs/operations.md").read_text()
SECURITY_PAGE = (ROOT / "SECURITY.md").read_text()
PORT = "8088"


def row(setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else ""
    project = "yes" if setting.project else "no"
    return f"| `{setting.key}` | `{setting.env}` | {default} | {setting.doc} | {project} |"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_setting_is_documented_as_it_is(setting: Setting) -> None:
    assert row(setting) in SETTINGS_PAGE.splitlines()


def test_no_documented_setting_is_gone() -> None:
    documented = re.findall(r"^\| `(sandbox\.\S+)` \|", SETTINGS_PAGE, re.MULTILINE)
    assert documented == [setting.key for setting in SETTINGS]


def test_no_page_names_a_variable_that_is_gone() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bBELLJAR_[A-Z_]+\b", page.read_text())}
    assert named <= {setting.env for setting in SETTINGS}


def test_no_page_names_a_setting_that_is_gone() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"`(sandbox\.[a-z_.]+[a-z])[`: ]", page.read_text())
    }
    keys = {setting.key for setting in SETTINGS}
    assert {name for name in named if not any(key.startswith(name) for key in keys)} <= NOT_SETTINGS


NOT_SETTINGS = {"sandbox.run", "sandbox.health"}
"""Names of MCP tools, in the words of the first design."""


def test_the_documented_error_codes_are_those_of_the_tree() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \| `(\w+)` \| `(\w+)` \| \S.*\. \|$", ERRORS_PAGE, re.MULTILINE)
    classes = [getattr(errors, name) for name in errors.__all__ if name != "BelljarError"]
    assert sorted(documented) == sorted((cls.code, cls.__name__, cls.__base__.__name__) for cls in classes)


def test_the_documented_metrics_are_those_of_the_service() -> None:
    documented = re.findall(r"^\| `(sandbox_\w+)` \|", OPERATIONS_PAGE, re.MULTILINE)
    endings = {"counter": "_total"}
    assert documented == [
        family.name + endings.get(family.type, "") for family in Metrics().registry.collect()
    ]


def verbs(group: typer.Typer, above: str = "belljar") -> Iterator[str]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{above} {command.name or command.callback.__name__.replace('_', '-')}"
    for nested in group.registered_groups:
        assert nested.typer_instance is not None
        yield from verbs(nested.typer_instance, f"{above} {nested.name}")


def test_the_documented_verbs_are_those_of_the_terminal() -> None:
    documented = re.findall(r"^\| `(belljar [a-z -]+)` \| \S", CLI_PAGE, re.MULTILINE)
    assert documented == sorted(verbs(app))


@pytest.mark.parametrize("page", [page.relative_to(ROOT) for page in PAGES], ids=str)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", (ROOT / page).read_text())
    assert not [link for link in links if not (ROOT / page.parent / link).exists()]


@pytest.mark.parametrize("page", [page.relative_to(ROOT) for page in PAGES], ids=str)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(
        r"`((?:src|tests|deploy|bench|scripts|examples)/[\w./-]+)(?:::\w+)?`", (ROOT / page).read_text()
    )
    assert not [path for path in named if not (ROOT / path).exists()]


PROMISES = re.findall(r"^\| (.+?\.) \| (`tests/.+`) \|$", SECURITY_PAGE, re.MULTILINE)


@pytest.mark.parametrize(("promise", "named"), PROMISES, ids=[promise for promise, _ in PROMISES])
def test_a_promise_names_tests_that_exist(promise: str, named: str) -> None:
    for file, function in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", named):
        tree = ast.parse((ROOT / file).read_text())
        assert function in {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }


def test_every_promise_names_a_test() -> None:
    table = SECURITY_PAGE.partition("## Promises")[2].partition("\n## ")[0]
    head = 1
    assert len(PROMISES) == len(re.findall(r"^\| ", table, re.MULTILINE)) - head > 0


class Block(NamedTuple):
    page: str
    number: int
    language: str
    text: str
    prints: str | None


def blocks() -> Iterator[Block]:
    fence = r"```(\w+)\n(.*?)^```\n"
    prints = r"(?:\n*<!-- prints -->\n```\w*\n(.*?)^```\n)?"
    for page in PAGES:
        found = re.finditer(rf"^<!-- runs -->\n{fence}{prints}", page.read_text(), re.MULTILINE | re.DOTALL)
        for number, match in enumerate(found, 1):
            yield Block(str(page.relative_to(ROOT)), number, match[1], match[2], match[3])


def test_every_block_that_is_marked_is_found() -> None:
    for mark, found in (("runs", list(blocks())), ("prints", [one for one in blocks() if one.prints])):
        marks = sum(page.read_text().count(f"\n<!-- {mark} -->\n") for page in PAGES)
        assert len(found) == marks > 0


def test_the_chinese_page_shows_the_same_code() -> None:
    def code(page: str) -> list[str]:
        shown = re.findall(r"^```(?:sh|python|json)\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
        return [re.sub(r" *#.*", "", text) for text in shown]

    assert code("README.zh.md") == code("README.md")


def free_port() -> str:
    """None that the system gives to who asks for any: it is still free when it is used."""
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize("block", list(blocks()), ids=lambda block: f"{block.page}-{block.number}")
def test_a_block_runs(block: Block, tmp_path: Path) -> None:
    port = free_port()
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    environment = {
        **ours,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "BELLJAR_DATA_DIR": str(tmp_path / "data"),
        "BELLJAR_PORT": port,
        "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always",
    }
    argv = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[block.language]
    (tmp_path / "here").mkdir()
    with subprocess.Popen(
        [*argv, block.text.replace(PORT, port)],
        cwd=tmp_path / "here",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=45)
        finally:
            with suppress(
                ProcessLookupError
            ):  # a service that a block started, and that failed before it ended it
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + err
    assert block.prints is None or out.rstrip("\n") == block.prints.rstrip("\n")
