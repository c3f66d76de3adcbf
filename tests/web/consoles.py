"""The console as a person has it before them, and what nothing that a program wrote may ever touch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page
    from tests.cli.commands import Service

TOKEN = "operator-token-of-the-console"
PICTURE = (
    "import base64; open('dot.png', 'wb').write(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='))\n"
)
"""A program that leaves one."""
REBOUND = "rebound.example"
"""A name that leads to this machine, in the browser of the tests."""
HOSTILE = (
    '"><img src=x onerror="window.pwned=1"><script>window.pwned=1</script><svg onload="window.pwned=1">'
    '<iframe src="javascript:parent.pwned=1"></iframe><a href="javascript:pwned=1">\'&amp;{{7*7}}'
)
"""Markup in every place where a program can leave text."""

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (one) => window.violations.push(one.violatedDirective));
"""
_MARKUP = """
() => [...document.querySelectorAll(`:is(main, #notice, #fault) :is(script, iframe, object, embed, base, meta, link, style,
  [onerror], [onload], [onclick], [style]:not([style=""]), [srcdoc], [href^="javascript" i], img:not([src^="blob:"]))`)].map((one) => one.outerHTML)
"""


class Console:
    def __init__(self, context: BrowserContext, service: Service) -> None:
        self.service = service
        self.url = f"{service.url}/"
        self.requests: list[str] = []
        self.mishaps: list[str] = []
        context.add_init_script(_WATCH)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("page", lambda page: self._watch(page))
        self.page: Page = context.new_page()

    def _watch(self, page: Page) -> None:
        def dismiss(dialog: Any) -> None:
            self.mishaps.append(f"a dialog: {dialog.message}")
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.on("pageerror", lambda error: self.mishaps.append(f"an error: {error}"))
        page.on("framenavigated", lambda frame: self._check_address(frame.url))

    def _check_address(self, url: str) -> None:
        if url != "about:blank" and not url.startswith(self.url):
            self.mishaps.append(f"the page went to {url}")

    def enter(self, token: str = TOKEN) -> None:
        self.page.goto(self.url)
        self.page.get_by_label("Token").fill(token)
        self.button("Log in").click()

    def start_again(self) -> None:
        """At the first view, with what the last test did to the window undone."""
        self.page.unroute_all()
        self.page.set_viewport_size({"width": 1280, "height": 720})
        self.page.emulate_media(color_scheme="light")
        self.requests.clear()
        self.go("runs")
        self.heading("Runs").wait_for()

    def go(self, view: str) -> None:
        self.page.goto(f"{self.url}#/{view}")

    def heading(self, name: str) -> Locator:
        return self.page.get_by_role("heading", name=name, exact=True)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def section(self, title: str) -> Locator:
        return self.page.locator("section").filter(has=self.heading(title))

    def check_untouched(self) -> None:
        """No script of a program ran or tried to, nothing became markup, and nobody else was asked for anything."""
        ours = urlsplit(self.url).netloc
        foreign = [url for url in self.requests if urlsplit(url.removeprefix("blob:")).netloc != ours]
        assert foreign == []
        assert self.mishaps == []
        assert self.page.evaluate("[window.pwned ?? null, window.violations]") == [None, []]
        found = self.page.evaluate(_MARKUP)
        assert found == [], found


class Api:
    """Another caller of the same service."""

    def __init__(self, url: str, token: str = TOKEN) -> None:
        self.http = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=30)

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.is_success, answer.text
        return answer.json()

    def over(self, exec_id: str) -> Any:
        """The record of a run, once it is final."""
        self.http.get(f"/sandbox/execs/{exec_id}/events")  # ends with the run
        return self.get(f"/sandbox/execs/{exec_id}")

    def post(self, path: str, /, **body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def run(self, code: str, **more: Any) -> str:
        """The id of a run that is over."""
        exec_id: str = self.post("/run", code=code, **more)["id"]
        return exec_id

    def begin(self, command: str, kind: str = "python", **more: Any) -> str:
        """The id of a run that goes on."""
        body = {"exec": {"kind": kind, "command": command, **more}, "wait": False}
        exec_id: str = self.post("/sandbox/execs", **body)["exec_id"]
        return exec_id
