"""Everything that a program, its caller or its files say is text in the console, wherever it is shown.

The fixtures look at the canaries when a test is over; each test makes sure that the text was there at all.
"""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect
from tests.web.consoles import HOSTILE, Api, Console

NAME = "<img src=x onerror=pwned=1>.txt"
VARIABLE = "<script>pwned()</script>"
CONTENTS = {
    "page.html": f"<!doctype html><script>window.pwned=1</script>{HOSTILE}",
    "picture.svg": f'<svg xmlns="http://www.w3.org/2000/svg" onload="window.pwned=1"><script>window.pwned=1</script>{HOSTILE}</svg>',
    "picture.png": f"<script>window.pwned=1</script>{HOSTILE}",
    "table.csv": f"{HOSTILE},b\n1,{HOSTILE}\n",
    "data.json": json.dumps({HOSTILE: [HOSTILE], "__proto__": {"polluted": 1}}),
    "broken.json": HOSTILE,
    "text.txt": HOSTILE,
    "script.js": f"window.pwned=1//{HOSTILE}",
    "notes.md": f"[click](javascript:pwned=1) {HOSTILE}",
}


def test_what_a_program_prints(console: Console, api: Api) -> None:
    code = (
        f"import sys\nprint({HOSTILE!r})\nprint({HOSTILE!r}, file=sys.stderr)\nraise ValueError({HOSTILE!r})"
    )
    console.go(f"runs/{api.run(code)}")
    expect(console.page.get_by_role("log")).to_contain_text(HOSTILE)
    expect(console.page.get_by_role("log")).to_contain_text(f"ValueError: {HOSTILE}")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(r"print('\x1b]8;;javascript:pwned=1\x07click\x1b]8;;\x07')", id="link"),
        pytest.param(r"print('\x1b]' + 'x' * 500_000)", id="endless-command"),
        pytest.param(r"print('\x1b[' + '1;' * 100_000 + 'mred')", id="endless-colour"),
        pytest.param(
            r"print(''.join(f'\x1b[3{n % 8}mx' for n in range(100_000)))", id="colour-of-every-letter"
        ),
        pytest.param(r"print('\n' * 500_000)", id="empty-lines"),
        pytest.param(r"print('\r' * 500_000)", id="restarted-lines"),
        pytest.param(r"import sys; sys.stdout.buffer.write(bytes(range(256)) * 2000)", id="bytes"),
    ],
)
def test_a_flood_for_a_terminal_leaves_the_page_alive(console: Console, api: Api, code: str) -> None:
    console.go(f"runs/{api.run(code)}")
    expect(console.page.get_by_role("log")).to_contain_text("exited 0")
    assert console.page.locator(".output a").count() == 0
    assert console.page.locator(".output *").count() < 20_000


def test_what_the_caller_says_of_a_run(console: Console, api: Api) -> None:
    command = ["python3", "-c", "import sys; print(sys.argv)", HOSTILE]
    answer = api.post("/run", command=command, request_id="<img/src=x/onerror=pwned=1>", env={VARIABLE: "1"})
    console.go(f"runs/{answer['id']}")
    expect(console.page.get_by_text("<img/src=x/onerror=pwned=1>", exact=True)).to_be_visible()
    expect(console.page.get_by_text(VARIABLE)).to_be_visible()
    expect(console.page.locator("dd").filter(has_text=HOSTILE)).to_be_visible()
    console.go("runs?text=%3Cimg%2Fsrc")
    expect(console.page.locator("tbody tr")).to_have_count(1)


@pytest.mark.parametrize("path", CONTENTS)
def test_what_is_in_a_file(console: Console, left: str, path: str) -> None:
    console.go(f"runs/{left}")
    console.button(f"Look at {path}").click()
    shown = "This is not the image/png that it says it is." if path.endswith(".png") else "pwned=1"
    expect(console.page.locator(".preview")).to_contain_text(shown)
    assert console.page.evaluate("({}).polluted ?? null") is None


def test_how_a_file_is_called(console: Console, left: str) -> None:
    console.go(f"runs/{left}")
    console.button(f"Look at {NAME}").click()
    expect(console.page.locator(".preview h3")).to_have_text(NAME)
    expect(console.page.get_by_text("<b>link was left out: symlink")).to_be_visible()


@pytest.fixture(scope="module")
def left(api: Api) -> str:
    files = {**CONTENTS, NAME: HOSTILE}
    return api.run(
        f"import os\nfor name, text in {files!r}.items(): open(name, 'w').write(text)\nos.symlink('/x', '<b>link')"
    )


def test_what_waits_for_a_person_and_what_the_person_says(console: Console, agent: Api) -> None:
    waiting = agent.post(
        "/run",
        code=f"import os\nos.system({HOSTILE!r})\n# {HOSTILE}",
        stdin=HOSTILE,
        args=[HOSTILE],
        env={VARIABLE: "1"},
        input_files=[{"path": NAME, "content_b64": "eA=="}],
    )
    console.go("approvals")
    expect(console.page.get_by_text(waiting["approval_id"][:14])).to_be_visible()
    console.go(f"approvals/{waiting['approval_id']}")
    expect(console.page.locator(".listing li").nth(2)).to_contain_text(HOSTILE)
    expect(console.section("Program").locator("pre")).to_contain_text(HOSTILE)
    console.page.get_by_label("Reason").fill(HOSTILE)
    console.button("Deny").click()
    expect(console.page.get_by_text(f"denied by operator: {HOSTILE}")).to_be_visible()
    console.go(f"runs/{waiting['exec_id']}")
    expect(console.page.locator("dd").filter(has_text=HOSTILE)).to_have_count(2)


def test_what_the_service_answers_to_a_wrong_request(console: Console) -> None:
    console.go("service")
    console.page.get_by_label("Role").fill(HOSTILE)
    console.button("What would be granted").click()
    expect(console.page.get_by_role("alert")).to_contain_text("<img")


def test_what_a_skill_says_of_itself_and_answers(console: Console) -> None:
    console.go("catalogue")
    skill = console.page.locator("details").filter(has_text="hostile.words")
    skill.locator("summary").click()
    expect(skill.locator("p").first).to_have_text(HOSTILE)
    skill.get_by_label("word").fill("<img src=x onerror=pwned=1>")
    skill.get_by_role("button", name="Try it").click()
    expect(skill.locator("pre")).to_contain_text("<img src=x onerror=pwned=1>")


def test_what_a_session_shows_and_holds(console: Console, api: Api) -> None:
    session = api.post("/sandbox/sessions")["session_id"]
    console.go(f"sessions/{session}")
    html = f"class Page:\n  def _repr_html_(self): return {HOSTILE!r}\n  def __repr__(self): return {HOSTILE!r}\n"
    console.page.get_by_label("Code").fill(
        f"{html}open({NAME!r}, 'w').write({HOSTILE!r})\nprint({HOSTILE!r})\nPage()"
    )
    console.button("Run").click()
    expect(console.page.locator("section pre.text")).to_contain_text(HOSTILE)
    console.button("Look again").click()
    console.button(f"Look at {NAME}").click()
    expect(console.page.locator(".preview pre")).to_contain_text(HOSTILE)
    console.button("Open a terminal").click()
    expect(console.page.get_by_role("textbox", name="Terminal")).to_be_focused()
    console.page.keyboard.type("printf '%s%s' '<scr' 'ipt>pwned()</scr''ipt><img src=x onerror=pwned=1>'\n")
    expect(console.page.get_by_label("Terminal")).to_contain_text(
        "<script>pwned()</script><img src=x onerror=pwned=1>"
    )
    api.http.delete(f"/sandbox/sessions/{session}")


@pytest.mark.parametrize("png", ["'not base64'", "5", "[1]", "'PHNjcmlwdD4='"])
def test_a_picture_that_is_none_does_not_end_the_story(console: Console, api: Api, png: str) -> None:
    session = api.post("/sandbox/sessions")["session_id"]
    shown = f"class Bad:\n  def _repr_mimebundle_(self, **_): return {{'image/png': {png}}}\n"
    api.post(f"/sandbox/sessions/{session}/run", code=f"{shown}display(Bad())\nprint('after')", context="c")
    [run] = [run for run in api.get("/sandbox/execs?limit=5")["execs"] if run["session_id"] == session]
    console.go(f"runs/{run['exec_id']}")
    expect(console.page.get_by_role("log")).to_contain_text("after")
    expect(console.page.get_by_role("log")).to_contain_text("exited 0")
    api.http.delete(f"/sandbox/sessions/{session}")
