"""What the documentation lists is what there is: nothing missing, nothing stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from belljar import errors
from belljar.settings import SETTINGS, Setting

ROOT = Path(__file__).parents[1]
SETTINGS_PAGE = (ROOT / "docs/settings.md").read_text()
ERRORS_PAGE = (ROOT / "docs/errors.md").read_text()


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
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {name for page in pages for name in re.findall(r"\bBELLJAR_[A-Z_]+\b", page.read_text())}
    assert named <= {setting.env for setting in SETTINGS}


def test_the_documented_error_codes_are_those_of_the_tree() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \| `(\w+)` \| `(\w+)` \| \S.*\. \|$", ERRORS_PAGE, re.MULTILINE)
    classes = [getattr(errors, name) for name in errors.__all__ if name != "BelljarError"]
    assert sorted(documented) == sorted((cls.code, cls.__name__, cls.__base__.__name__) for cls in classes)


@pytest.mark.parametrize(
    "page", [page.relative_to(ROOT) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]], ids=str
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", (ROOT / page).read_text())
    assert not [link for link in links if not (ROOT / page.parent / link).exists()]
