"""A session from the console: begun, used, looked into, ended."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect
from tests.web.consoles import PICTURE, Api, Console


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
    expect(console.button("Look at given.txt")).to_be_visible()
    page.get_by_label("Run as").select_option("bash")
    page.get_by_label("Code").fill("cat given.txt; rm given.txt")
    console.button("Run").click()
    expect(page.get_by_role("log")).to_contain_text("from outside")

    page.get_by_label("Run as").select_option("python, variables kept")
    page.get_by_label("Code").fill(PICTURE)
    console.button("Run").click()
    expect(page.get_by_text("exited 0")).to_have_count(4)
    console.button("Look again").click()
    console.button("Look at dot.png").click()
    expect(page.locator(".preview img")).to_be_visible()

    console.button("Pause").click()
    expect(console.button("Resume")).to_be_visible()
    console.button("Resume").click()
    expect(console.button("Pause")).to_be_visible()
    console.button("Close").click()
    expect(page.get_by_text("ended", exact=True)).to_be_visible()
    expect(console.button("Close")).to_have_count(0)


def test_a_terminal_is_a_shell_in_the_session(console: Console, api: Api) -> None:
    page = console.page
    session = api.post("/sandbox/sessions")["session_id"]
    console.go(f"sessions/{session}")
    console.button("Open a terminal").click()
    terminal = page.get_by_role("textbox", name="Terminal")
    expect(terminal).to_be_focused()
    page.keyboard.type("cd /tmp && x=six; echo $x-$((6*7))\n")
    expect(terminal).to_contain_text("six-42")
    page.keyboard.type("sh -c 'echo rea\"\"dy; exec sleep 100'\n")
    expect(terminal).to_contain_text("ready")
    page.keyboard.press("Control+c")
    page.keyboard.type("printf '\\033[2J\\033[3;5H\\033[32m%s\\033[0m' gr''een; sleep 0.1; pwd\n")
    expect(terminal.locator(".green")).to_have_text("green")
    expect(terminal).to_contain_text("/tmp")
    page.keyboard.type("exit 3\n")
    expect(page.get_by_role("status").first).to_contain_text("The terminal is closed.")
    page.keyboard.press("Shift+Tab")
    expect(terminal).not_to_be_focused()
    api.http.delete(f"/sandbox/sessions/{session}")


def test_a_terminal_of_a_token_that_may_not_is_refused(outside: Console, api: Api) -> None:
    session = api.post("/sandbox/sessions")["session_id"]
    outside.page.goto(outside.url)
    code = outside.page.evaluate(
        """(path) => new Promise((resolve) => {
          const line = new WebSocket(new URL(path, location.href.replace("http", "ws")), ["belljar.terminal", "belljar.bearer.bm8"]);
          line.onopen = () => resolve("open");
          line.onclose = ({ code }) => resolve(code);
        })""",
        f"/sandbox/sessions/{session}/terminal",
    )
    assert code == 1006
    api.http.delete(f"/sandbox/sessions/{session}")
