"""A session from the console: begun, used, looked into, ended."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect
from tests.web.consoles import Console


def test_a_session_keeps_variables_and_files_until_it_is_closed(console: Console, tmp_path: Path) -> None:
    page = console.page
    console.go("sessions")
    console.button("Start a session").click()
    expect(console.heading("Console")).to_be_visible()

    for code in ("x = 6 * 7", "print('x is', x)"):
        page.get_by_label("Code").fill(code)
        page.keyboard.press("Control+Enter")
        expect(page.get_by_label("Code")).to_have_value("")
        expect(console.button("Run")).to_be_enabled()
    expect(page.get_by_role("log")).to_contain_text("x is 42")

    (tmp_path / "given.txt").write_text("from outside")
    page.get_by_label("A file for it").set_input_files(tmp_path / "given.txt")
    console.button("Send").click()
    page.get_by_label("Run as").select_option("bash")
    page.get_by_label("Code").fill("cat given.txt; rm given.txt")
    console.button("Run").click()
    expect(page.get_by_role("log")).to_contain_text("from outside")

    console.button("Pause").click()
    expect(console.button("Resume")).to_be_visible()
    console.button("Resume").click()
    console.button("Close").click()
    expect(page.get_by_text("ended", exact=True)).to_be_visible()
    expect(console.button("Close")).to_have_count(0)
