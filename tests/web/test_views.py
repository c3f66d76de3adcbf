"""The other views, and what holds for all: by keyboard, on a phone, in the dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.web.consoles import Api, Console

VIEWS = ("runs", "approvals", "sessions", "catalogue", "pad", "service")
_WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
_UNNAMED = """
() => [...document.querySelectorAll("input, select, textarea, button, a")]
  .filter((one) => !(one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim()))
  .map((one) => one.outerHTML)
"""


def test_the_scratch_pad_runs_what_is_in_it(console: Console) -> None:
    console.go("pad")
    console.page.get_by_label("Language").select_option("bash")
    console.page.get_by_label("Code").fill("echo 1; sleep 0.2; echo 2 >&2; exit 3")
    console.button("Run").click()
    expect(console.page.get_by_role("log")).to_contain_text("exited 3")
    console.page.get_by_role("link", name="The whole of this run").click()
    expect(console.heading("Receipt")).to_be_visible()


def test_a_tool_is_tried_with_a_form_made_from_its_schema(console: Console) -> None:
    console.go("catalogue")
    tool = console.page.locator("details").filter(has=console.page.get_by_text("code_run", exact=True))
    tool.locator("summary").click()
    tool.get_by_label("code *").fill("print(6 * 7)")
    tool.get_by_label("language").select_option("python")
    tool.get_by_label("timeout_s").fill("5")
    tool.get_by_role("button", name="Try it").click()
    expect(tool.locator("pre")).to_contain_text("42")


def test_the_service_tells_how_it_is(console: Console, api: Api) -> None:
    api.run("print(1)")
    console.go("service")
    expect(
        console.section("Engine jail").get_by_role("row").filter(has_text="seccomp filter")
    ).to_contain_text("ok")
    expect(console.section("Since the start")).to_contain_text("exited")
    console.button("Check the whole chain").click()
    expect(console.section("Receipts")).to_contain_text("Every receipt is signed")


def test_policy_is_explained(console: Console) -> None:
    console.go("service")
    console.page.get_by_label("Role").fill("watched")
    console.button("What would be granted").click()
    row = console.section("Policy").get_by_role("row").filter(has_text="approve_at")
    expect(row).to_contain_text("low")
    expect(row).to_contain_text("role")


def test_an_unknown_view_is_the_first_one(console: Console) -> None:
    console.go("constructor")
    expect(console.heading("Runs")).to_be_visible()


def test_a_run_that_is_not_there_is_an_error_in_words(console: Console) -> None:
    console.go("runs/ex-0")
    expect(console.page.get_by_role("alert")).to_contain_text("there is no run of that id")


def test_everything_can_be_done_without_a_mouse(console: Console, api: Api) -> None:
    exec_id = api.run("print('by keyboard')")
    page = console.page
    page.get_by_text(exec_id[:14]).wait_for()
    page.reload()
    page.get_by_text(exec_id[:14]).wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(4):  # three filters and their button
        page.keyboard.press("Tab")
    expect(console.button("Filter")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_text(exec_id[:14])).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("by keyboard")
    assert page.evaluate("document.activeElement.id") == "content"


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name(console: Console, view: str) -> None:
    console.go(view)
    console.page.locator("h1").wait_for()
    assert console.page.evaluate(_UNNAMED) == []


def test_a_phone_shows_one_column(console: Console, agent: Api) -> None:
    waiting = agent.post("/run", code="import os\nos.system('true')" + "#" * 300)
    console.page.set_viewport_size({"width": 390, "height": 800})
    for view in (*VIEWS, f"approvals/{waiting['approval_id']}"):
        console.go(view)
        console.page.locator("h1").wait_for()
        assert (view, console.page.evaluate(_WIDER)) == (view, 0)
    program, grant = console.section("Program").bounding_box(), console.section("It would get").bounding_box()
    assert program is not None
    assert grant is not None
    assert program["y"] + program["height"] <= grant["y"]


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_follow_the_person(console: Console, scheme: str, dark: bool) -> None:
    console.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    colour = console.page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(colour.removeprefix("rgb(").partition(",")[0])
    assert (red < 128) == dark
