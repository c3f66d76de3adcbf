"""The list of runs, also a long one, and one run: its output as it comes, its end, its files, its receipt."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.cli.commands import Service, end, start_service
from tests.web.consoles import PICTURE, TOKEN, Api, Console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

MANY = 10_000
FILES = PICTURE + (
    "open('table.csv', 'w').write('name,note\\nada,\"one, \"\"two\"\"\"\\n')\n"
    "open('data.json', 'w').write('{\"deep\":{\"er\":[1,2]}}')\n"
    "open('page.html', 'w').write('<b>bold</b>')\n"
    "open('bytes.bin', 'wb').write(bytes(range(256)))\n"
)


def test_a_run_shows_up_by_itself(console: Console, api: Api) -> None:
    exec_id = api.run("print('hello')")
    row = console.page.get_by_role("row").filter(has_text=exec_id[:14])
    expect(row).to_contain_text("exited 0")


def test_the_code_of_a_run_is_shown_with_its_lines(console: Console, api: Api) -> None:
    exec_id = api.run("x = '<b>bold</b>'\nprint(x)")
    console.go(f"runs/{exec_id}")
    program = console.page.get_by_role("region", name="Program")
    expect(program.get_by_role("listitem")).to_have_text(["x = '<b>bold</b>'", "print(x)"])


def test_filters_are_part_of_the_address(console: Console, api: Api) -> None:
    wanted, other = api.run("print(1)", project_id="wanted"), api.run("print(1)", project_id="other")
    console.page.get_by_label("Project").fill("wanted")
    console.page.get_by_label("State").select_option("finished")
    console.button("Filter").click()
    expect(console.page.get_by_text(wanted[:14])).to_be_visible()
    expect(console.page.get_by_text(other[:14])).to_have_count(0)
    console.page.reload()
    expect(console.page.get_by_label("Project")).to_have_value("wanted")


def test_text_is_looked_for_in_what_a_row_says(console: Console, api: Api) -> None:
    wanted = api.run("print(1)", request_id="find-the-needle")
    other = api.run("print(1)")
    console.page.get_by_label("Text").fill("NEEDLE")
    console.button("Filter").click()
    expect(console.page.get_by_text(wanted[:14])).to_be_visible()
    expect(console.page.get_by_text(other[:14])).to_have_count(0)


def test_output_is_there_before_the_run_is_over(console: Console, api: Api) -> None:
    exec_id = api.begin("import time\nprint('first', flush=True)\ntime.sleep(20)\nprint('last')")
    console.go(f"runs/{exec_id}")
    expect(console.page.get_by_role("log")).to_contain_text("first")
    expect(console.page.get_by_role("log")).not_to_contain_text("last")
    console.button("Cancel").click()
    expect(console.page.get_by_role("log")).to_contain_text("cancelled")
    expect(console.button("Cancel")).to_have_count(0)
    assert api.get(f"/sandbox/execs/{exec_id}")["verdict"] == "cancelled"


def test_colours_are_shown_and_other_commands_to_a_terminal_are_not(console: Console, api: Api) -> None:
    code = r"print('\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b[2Jplain\r\x1b[32mgreen\x1b[0m')"
    console.go(f"runs/{api.run(code)}")
    expect(console.page.get_by_role("log").locator("div").first).to_have_text("green")
    expect(console.page.locator(".output .green")).to_have_text("green")


def test_stdout_and_stderr_can_be_told_apart(console: Console, api: Api) -> None:
    console.go(f"runs/{api.run('import sys; print(1); print(2, file=sys.stderr)')}")
    expect(console.page.locator(".output .err")).to_have_text("2")


def test_the_grant_says_which_layer_set_each_field(console: Console, api: Api) -> None:
    console.go(f"runs/{api.run('print(1)', limits={'memory_mb': 99})}")
    row = console.section("Granted").get_by_role("row").filter(has_text="limits.memory_mb")
    expect(row).to_contain_text("99")
    expect(row).to_contain_text("request")


def test_usage_is_drawn_while_the_run_goes_on(console: Console, api: Api) -> None:
    exec_id = api.begin("import time\nfull = bytearray(64 << 20)\nwhile True: pass")
    console.go(f"runs/{exec_id}")
    chart = console.section("Usage").get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile(r"memory (6[4-9]|7\d)(\.\d)? of 512 MB"))
    expect(chart.locator("polyline.processor")).to_have_attribute("points", re.compile(r"(\S+ ){2}"))
    console.go("service")
    expect(console.section("Jars in use")).to_contain_text(exec_id[:14])
    api.post(f"/sandbox/execs/{exec_id}/cancel")


def test_usage_is_drawn_against_the_limits(console: Console, api: Api) -> None:
    console.go(f"runs/{api.run('print(1)')}")
    chart = console.section("Usage").get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile("memory: .* of 512 MB"))
    expect(chart.locator("rect.bar")).to_have_count(4)


def test_a_receipt_is_checked_here_and_by_the_service(console: Console, api: Api) -> None:
    console.go(f"runs/{api.run('print(1)')}")
    receipt = console.section("Receipt")
    expect(receipt).to_contain_text("It says what the record says, and its hash is right.")
    console.button("Check the whole chain").click()
    expect(receipt).to_contain_text("Every receipt is signed")


def test_a_receipt_of_something_else_is_noticed(console: Console, api: Api) -> None:
    mine, other = api.run("print(1)"), api.run("print(2)")
    receipt = api.http.get(f"/sandbox/execs/{other}/receipt")
    console.page.route(
        "**/receipt", lambda route: route.fulfill(body=receipt.text, content_type="application/json")
    )
    console.go(f"runs/{mine}")
    expect(console.section("Receipt")).to_contain_text("The receipt says something else of exec_id")


@pytest.mark.parametrize(
    ("path", "selector", "text"),
    [
        pytest.param("table.csv", "td:last-child", 'one, "two"', id="csv"),
        pytest.param("data.json", "pre", '    "er": [', id="json"),
        pytest.param("page.html", "pre", "<b>bold</b>", id="html-as-text"),
        pytest.param("bytes.bin", "p", "256 bytes that are not text.", id="binary"),
    ],
)
def test_a_file_can_be_looked_at(console: Console, files: str, path: str, selector: str, text: str) -> None:
    console.go(f"runs/{files}")
    console.button(f"Look at {path}").click()
    expect(console.page.locator(f".preview {selector}")).to_contain_text(text)


def test_a_picture_is_a_picture(console: Console, files: str) -> None:
    console.go(f"runs/{files}")
    console.button("Look at dot.png").click()
    picture = console.page.locator(".preview img")
    expect(picture).to_be_visible()
    assert picture.evaluate("(one) => one.decode().then(() => one.naturalWidth)") == 1


def test_a_file_is_saved_as_it_is(console: Console, files: str) -> None:
    console.go(f"runs/{files}")
    with console.page.expect_download() as saving:
        console.button("Save bytes.bin").click()
    assert saving.value.suggested_filename == "bytes.bin"
    assert Path(saving.value.path()).read_bytes() == bytes(range(256))


@pytest.fixture(scope="module")
def files(api: Api) -> str:
    return api.run(FILES)


@pytest.fixture(scope="module")
def crowded(jail: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with ten thousand runs, copied from a real one."""
    service = start_service(tmp_path_factory.mktemp("crowded"), BELLJAR_TOKEN=TOKEN)
    api = Api(service.url)
    with api.http:
        api.run("print(1)")
    with closing(sqlite3.connect(service.data_dir / "belljar.db", timeout=10)) as database, database:
        names = [row[1] for row in database.execute("PRAGMA table_info(sandbox_execs)")]
        fresh = {
            "exec_id": "printf('ex-%032x', n)",
            "request_id": "'copy-' || n",
            "accepted_at": "strftime('%Y-%m-%dT%H:%M:%fZ', accepted_at, '-' || n || ' seconds')",
        }
        columns = ", ".join(fresh.get(name, name) for name in names)
        database.execute(
            f"WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {MANY}) "
            f"INSERT INTO sandbox_execs SELECT {columns} FROM sandbox_execs, counted"
        )
    yield service
    assert end(service) == 0


def test_ten_thousand_runs_are_paged_through_and_searched(browser: Browser, crowded: Service) -> None:
    with browser.new_context() as context:
        console = Console(context, crowded)
        console.enter()
        rows = console.page.locator("tbody tr")
        expect(rows).to_have_count(50)
        first = rows.first.inner_text()
        for page in range(2, 5):
            console.button("Older").click()
            expect(console.page.get_by_text(f"page {page}")).to_be_visible()
            expect(rows).to_have_count(50)
        console.button("Newer").click()
        expect(console.page.get_by_text("page 3")).to_be_visible()
        assert rows.first.inner_text() != first
        console.page.get_by_label("Text").fill("copy-1999")
        console.button("Filter").click()
        expect(rows).to_have_count(1)
        console.check_untouched()
