from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from belljar.errors import BadRequest, Unavailable
from belljar.flows.agents import agent_from


async def test_a_function_is_asked() -> None:
    assert await agent_from("json:dumps")({"prompt": "x"}) == '{"prompt": "x"}'


@pytest.mark.parametrize("said", ["", "json", "json:", ":dumps", "json:none", "no_such_module:f", "math:pi"])
def test_what_is_no_agent_is_refused(said: str) -> None:
    with pytest.raises(BadRequest):
        agent_from(said)


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        task = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(500 if self.path == "/fails" else 200)
        self.end_headers()
        self.wfile.write(b"no json" if self.path == "/odd" else json.dumps({"got": task}).encode())

    def log_message(self, *_: object) -> None:
        pass


async def test_an_endpoint_is_asked() -> None:
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert await agent_from(url)({"prompt": "x"}) == {"got": {"prompt": "x"}}
        for path in ("/fails", "/odd"):
            with pytest.raises(Unavailable):
                await agent_from(url + path)({})
        server.shutdown()
        thread.join()
    with pytest.raises(Unavailable):
        await agent_from(url)({})
