"""What a person sees before deciding, and what the decision does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.web.consoles import Api, Console

RISKY = "import os\nprint('it ran')\nos.system('true')"


@pytest.fixture
def waiting(agent: Api) -> Any:
    return agent.post("/run", code=RISKY, env={"SECRET_NAME": "1"}, stdin="typed")


def test_the_queue_is_counted_and_listed(console: Console, waiting: Any) -> None:
    expect(console.page.locator("#waiting")).to_be_visible()
    console.go("approvals")
    row = console.page.get_by_role("row").filter(has_text=waiting["approval_id"][:14])
    expect(row).to_contain_text("line 3")


def test_code_findings_and_grant_are_side_by_side(console: Console, waiting: Any) -> None:
    console.go(f"approvals/{waiting['approval_id']}")
    lines = console.section("Program").locator(".listing li")
    expect(lines).to_have_count(3)
    expect(lines.nth(1).locator(".finding")).to_have_count(0)
    expect(lines.nth(2).locator(".finding")).to_be_visible()
    expect(console.section("Program")).to_contain_text("SECRET_NAME")
    expect(console.section("Program")).to_contain_text("typed")
    row = console.section("It would get").get_by_role("row").filter(has_text="limits.memory_mb")
    expect(row).to_contain_text("512")
    left, right = console.section("Program").bounding_box(), console.section("It would get").bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]


def test_a_yes_lets_it_run(console: Console, api: Api, waiting: Any) -> None:
    console.go(f"runs/{waiting['exec_id']}")
    console.page.get_by_role("link", name="Its code, and the decision").click()
    console.page.get_by_label("Reason").fill("looks fine")
    console.button("Approve").click()
    expect(console.page.get_by_role("status").first).to_contain_text("Approved")
    console.page.get_by_role("link", name="The run", exact=True).click()
    expect(console.page.get_by_role("log")).to_contain_text("it ran")
    assert api.over(waiting["exec_id"])["approval"]["reason"] == "looks fine"


def test_a_no_keeps_it_from_running(console: Console, api: Api, waiting: Any) -> None:
    console.go(f"approvals/{waiting['approval_id']}")
    console.page.get_by_label("Reason").fill("not today")
    console.button("Deny").click()
    expect(console.page.get_by_role("status").first).to_contain_text("Denied")
    expect(console.button("Approve")).to_have_count(0)
    record = api.over(waiting["exec_id"])
    assert (record["status"], record["approval"]["reason"]) == ("refused", "not today")


def test_a_decision_holds_for_what_was_on_the_page_only(console: Console, api: Api, waiting: Any) -> None:
    """What is shown and what waits are compared by the digest, which goes along."""
    told = api.get(f"/approvals/{waiting['approval_id']}") | {"digest": "0" * 64, "code": "print('harmless')"}
    console.page.route(
        f"**/approvals/{waiting['approval_id']}",
        lambda route: route.fulfill(json=told) if route.request.method == "GET" else route.continue_(),
    )
    console.go(f"approvals/{waiting['approval_id']}")
    console.button("Approve").click()
    expect(console.page.get_by_role("alert")).to_contain_text("what waits is not what was seen")
    assert api.get(f"/approvals/{waiting['approval_id']}")["state"] == "waiting"


def test_characters_that_hide_or_turn_others_are_shown(console: Console, agent: Api) -> None:
    """A comment that is code, or code that is a comment: "Trojan source"."""
    code = "allowed = 'no'\nif allowed != 'no\u202e \u2066# only for admins\u2069 \u2066':\n    os\u200b = 1"
    console.go(f"approvals/{agent.post('/run', code=code)['approval_id']}")
    lines = console.section("Program").locator(".listing code")
    expect(lines.nth(1)).to_contain_text("⟨U+202E⟩ ⟨U+2066⟩# only for admins⟨U+2069⟩")
    expect(lines.nth(2).locator("mark")).to_have_text("U+200B")
