"""A WebSocket as a page opens it: the token among the protocols counts as the header would, and no other way."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import TOKEN, client_at, serving
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from belljar.engines.jail.engine import JailEngine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Of the terminal of a session."""
    async with (
        opened(tmp_path_factory.mktemp("jailed"), JailEngine()) as service,
        serving(service) as port,
        client_at(port) as http,
    ):
        session = (await http.post("/sandbox/sessions", json={})).json()["session_id"]
        yield f"ws://127.0.0.1:{port}/sandbox/sessions/{session}/terminal"
        await http.delete(f"/sandbox/sessions/{session}")


def bearer(token: str) -> str:
    return "belljar.bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


async def refusal(address: str, *protocols: str, **more: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(address, subprotocols=[*protocols] or None, **more):  # type: ignore[list-item]
            pass
    return caught.value.response.status_code


async def test_a_token_among_the_protocols_opens_a_terminal(address: str) -> None:
    async with connect(address, subprotocols=["belljar.terminal", bearer(TOKEN)]) as line:  # type: ignore[list-item]
        assert line.subprotocol == "belljar.terminal"
        await line.send(b"echo $((6*7)).\n")
        shown = b""
        while b"42." not in shown:
            shown += await line.recv(decode=False)


@pytest.mark.parametrize(
    "protocols",
    [
        pytest.param((), id="none"),
        pytest.param(("belljar.terminal",), id="no-token"),
        pytest.param(("belljar.terminal", bearer("wrong")), id="wrong"),
        pytest.param(("belljar.terminal", "belljar.bearer."), id="empty"),
        pytest.param(("belljar.terminal", "belljar.bearer.!!!"), id="no-base64"),
        pytest.param(("belljar.terminal", bearer(TOKEN), bearer("wrong")), id="two"),
        pytest.param((bearer(TOKEN),), id="protocol-not-named"),
    ],
)
async def test_anything_less_does_not(address: str, protocols: tuple[str, ...]) -> None:
    assert await refusal(address, *protocols) == 401


async def test_a_page_of_another_site_is_refused_with_the_right_token_too(address: str) -> None:
    assert await refusal(address, "belljar.terminal", bearer(TOKEN), origin="http://evil.example") == 403
