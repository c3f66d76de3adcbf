"""The console's files: for anybody, exactly these, as what they are, under a policy that lets nothing else run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.api.served import client_of, code_of

import belljar
from belljar.service import Service

if TYPE_CHECKING:
    import httpx2

WEB = Path(belljar.__file__).parent / "web"
FILES = sorted(file.name for file in (WEB / "console").iterdir())
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@pytest.fixture
def anybody(shared_service: Service) -> httpx2.AsyncClient:
    return client_of(shared_service, token=None)


@pytest.mark.parametrize("path", ["", *(f"console/{name}" for name in FILES)])
async def test_a_file_is_there_without_a_token(anybody: httpx2.AsyncClient, path: str) -> None:
    answer = await anybody.get(f"/{path}")
    name = path or "index.html"
    assert answer.status_code == 200
    assert answer.content == (WEB / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_policy_allows_the_consoles_own_files_and_no_text_to_become_code(
    anybody: httpx2.AsyncClient,
) -> None:
    [given] = (await anybody.get("/")).headers.get_list("content-security-policy")
    rules = dict(rule.split(" ", 1) for rule in given.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert not re.search("unsafe|http|[*]", given)


async def test_the_api_keeps_its_own_policy(anybody: httpx2.AsyncClient) -> None:
    answer = await anybody.get("/health")
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert answer.headers["cache-control"] == "no-store"


async def test_a_file_that_the_browser_has_is_not_sent_again(anybody: httpx2.AsyncClient) -> None:
    first = await anybody.get("/console/main.js")
    again = await anybody.get("/console/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"


async def test_head_says_what_get_would(anybody: httpx2.AsyncClient) -> None:
    answer = await anybody.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "path", ["/console/", "/console/index.html", "/console/nope.js", "/console/app.py", "/index.html"]
)
async def test_anything_else_needs_a_token_like_every_route(anybody: httpx2.AsyncClient, path: str) -> None:
    assert code_of(await anybody.get(path)) == "UNAUTHORIZED"


async def test_a_page_takes_nothing(anybody: httpx2.AsyncClient) -> None:
    answer = await anybody.post("/", json={})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


async def test_a_name_that_is_not_ours_gets_no_page(anybody: httpx2.AsyncClient) -> None:
    answer = await anybody.get("/", headers={"host": "rebound.example"})
    assert answer.status_code == 403
    assert code_of(answer) == "FORBIDDEN"


@pytest.mark.parametrize("name", FILES)
def test_no_file_parses_markup_or_names_another_site(name: str) -> None:
    """The browser would refuse it; this says where."""
    text = (WEB / "console" / name).read_text()
    assert (
        re.findall(
            r"(?i)innerHTML|outerHTML|insertAdjacent|document\.write|srcdoc|\beval\b|new Function|DOMParser",
            text,
        )
        == []
    )
    assert [
        url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"
    ] == []
