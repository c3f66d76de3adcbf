"""Pictures of the console for its documentation; with `--screenshots docs/images` they are put there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.web.consoles import Api, Console

CHART = """
import struct, time, zlib
for step in range(1, 5):
    print(f'\\x1b[36mstep {step}\\x1b[0m  reading sales.csv, \\x1b[32m{step * 250} rows\\x1b[0m', flush=True)
    time.sleep(0.05)
width, height, values = 480, 160, [3, 5, 4, 7, 9, 8, 12, 11, 14, 13, 17, 19]
rows = b''.join(
    b'\\0' + b''.join(
        b'\\x3a\\x8f\\x86' if x % 40 > 6 and height - y < values[x // 40] * 8 else b'\\xfb\\xfa\\xf7'
        for x in range(width)
    )
    for y in range(height)
)
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
open('sales.png', 'wb').write(
    b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0))
    + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
open('sales.csv', 'w').write('month,sold\\n' + ''.join(f'{n + 1},{v}\\n' for n, v in enumerate(values)))
print('\\x1b[1mdone\\x1b[0m')
"""
RISKY = """import os
import urllib.request

def fetch(url):
    return urllib.request.urlopen(url).read()

print(os.environ.get("HOME"))
os.system("rm -rf ./cache")
"""


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(request.config.getoption("--screenshots", None) or tmp_path)


def test_the_console_has_its_picture_taken(console: Console, api: Api, agent: Api, folder: Path) -> None:
    page = console.page
    page.set_viewport_size({"width": 1200, "height": 800})
    for code, project in ((CHART, "sales"), ("raise SystemExit(2)", "nightly"), ("print(1)", "sales")):
        exec_id = api.run(code, project_id=project)
    api.run("import time\ntime.sleep(9)", timeout_s=0.2, project_id="nightly")
    waiting = agent.post("/run", code=RISKY, project_id="agents")

    console.go("runs")
    expect(page.get_by_role("row").filter(has_text="agents").first).to_be_visible()
    page.screenshot(path=folder / "console-runs.png")

    chart = next(run for run in api.get("/sandbox/execs?project_id=sales")["execs"] if run["artifacts"])
    assert chart["exec_id"] != exec_id
    console.go(f"runs/{chart['exec_id']}")
    console.button("Look at sales.png").click()
    expect(page.locator(".preview img")).to_be_visible()
    page.screenshot(path=folder / "console-run.png", full_page=True)

    console.go(f"approvals/{waiting['approval_id']}")
    expect(console.button("Approve")).to_be_visible()
    page.screenshot(path=folder / "console-approval.png", full_page=True)

    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    console.go("service")
    expect(console.heading("Since the start")).to_be_visible()
    page.screenshot(path=folder / "console-phone.png")
    assert all(
        (folder / f"console-{name}.png").stat().st_size for name in ("runs", "run", "approval", "phone")
    )
