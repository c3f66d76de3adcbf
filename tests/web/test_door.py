"""Who gets in, what happens to the token, and that nothing but the console's own files can run in the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.web.consoles import REBOUND, TOKEN, Console

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.cli.commands import Service


def test_the_right_token_opens_the_console(outside: Console) -> None:
    outside.enter()
    expect(outside.heading("Runs")).to_be_visible()


def test_a_wrong_token_does_not(outside: Console) -> None:
    outside.enter("wrong")
    expect(outside.page.get_by_role("alert")).to_contain_text("this token is not known")
    expect(outside.page.get_by_label("Token")).to_be_visible()
    assert outside.page.evaluate("sessionStorage.length") == 0


def test_the_token_is_in_no_address_and_in_no_lasting_store(outside: Console) -> None:
    outside.enter()
    outside.heading("Runs").wait_for()
    for view in ("approvals", "sessions", "catalogue", "pad", "service", "runs"):
        outside.go(view)
        outside.page.wait_for_load_state()
    assert [url for url in outside.requests if TOKEN in url] == []
    assert outside.page.evaluate("localStorage.length + document.cookie.length") == 0


def test_it_stays_open_when_the_page_is_loaded_again(console: Console) -> None:
    console.page.reload()
    expect(console.heading("Runs")).to_be_visible()


def test_logging_out_forgets_the_token(outside: Console) -> None:
    outside.enter()
    outside.heading("Runs").wait_for()
    outside.button("Log out").click()
    expect(outside.page.get_by_label("Token")).to_be_visible()
    assert outside.page.evaluate("sessionStorage.length") == 0


def test_a_token_that_is_taken_back_leads_to_the_door(outside: Console) -> None:
    outside.enter()
    outside.heading("Runs").wait_for()
    outside.page.evaluate("sessionStorage.setItem('belljar.token', 'taken back')")
    outside.page.reload()
    expect(outside.page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param("document.body.innerHTML = '<b>x</b>'", id="markup"),
        pytest.param("document.write('<b>x</b>')", id="document"),
        pytest.param("document.createElement('script').text = '1'", id="script"),
        pytest.param("document.createElement('iframe').srcdoc = 'x'", id="frame"),
    ],
)
def test_the_browser_itself_refuses_to_make_anything_of_text(console: Console, attack: str) -> None:
    script = f"""() => {{ try {{ {attack}; return "done" }} catch (error) {{ return error.name }} }}"""
    assert console.page.evaluate(script) == "TypeError"
    console.page.wait_for_function("window.violations.length")
    assert console.page.evaluate("window.violations.splice(0)") == ["require-trusted-types-for"]


def test_a_name_that_was_bound_to_this_address_gets_no_page(browser: Browser, service: Service) -> None:
    """DNS rebinding: another site's name has come to mean this machine."""
    page = browser.new_page()
    answer = page.goto(service.url.replace("127.0.0.1", REBOUND))
    assert answer is not None
    assert answer.status == 403
    assert answer.json()["error"]["field"] == "Host"
    page.close()
