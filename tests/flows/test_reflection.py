from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from belljar.client import AsyncClient
from belljar.errors import BadRequest
from belljar.flows.reflection import code_with_reflection
from belljar.flows.testdriven import Outcome, Suite, SuiteKind, by

TESTS = [
    Suite(SuiteKind.PYTEST, "test_add.py", "from solution import add\ndef test_add(): assert add(2, 3) == 5")
]
EXAMPLE = Path(__file__).parents[2] / "examples/reflection.py"
RIGHT_SLUG = """
import re, sys
def slug(text): return "-".join(re.findall("[a-z0-9]+", text.lower()))
if __name__ == "__main__": print(slug(sys.stdin.read()))
"""


async def test_the_model_is_told_what_failed_until_it_passes(client: AsyncClient) -> None:
    prompts = []

    async def model(prompt: str) -> str:
        prompts.append(prompt)
        code = "def add(a, b): return a - b" if len(prompts) == 1 else "def add(a, b): return a + b"
        return f"Here you are:\n```python\n{code}\n```\nAnything else?"

    done = await code_with_reflection("Write add(a, b).", model, TESTS, run=by(client))
    assert done.code == "def add(a, b): return a + b\n"
    assert len(done.attempts) == len(prompts) == 2
    assert prompts[0] == "Write add(a, b)."
    assert "the left is -1, the right 5" in prompts[1]
    assert "return a - b" in prompts[1]


async def test_after_so_many_attempts_it_is_enough(client: AsyncClient) -> None:
    async def model(prompt: str) -> str:
        return "import os; os._exit(0)"

    done = await code_with_reflection("Write add(a, b).", model, TESTS, 2, run=by(client))
    assert done.code is None
    assert len(done.attempts) == 2
    assert done.attempts[0].report.tests[0].outcome is Outcome.ERROR


async def test_no_iteration_makes_no_sense(client: AsyncClient) -> None:
    async def model(prompt: str) -> str:
        return ""

    with pytest.raises(BadRequest):
        await code_with_reflection("", model, TESTS, 0, run=by(client))


class Model(BaseHTTPRequestHandler):
    """An endpoint in the form of OpenAI's: wrong at first, right once it is told so."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert (self.path, asked["model"]) == ("/v1/chat/completions", "stub")
        told = "failed these tests" in asked["messages"][0]["content"]
        content = RIGHT_SLUG if told else "def slug(text): return text.lower()"
        answer = {"choices": [{"message": {"role": "assistant", "content": f"```python\n{content}\n```"}}]}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.usefixtures("jail")
def test_the_example_speaks_to_an_endpoint(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "--url", url, "--model", "stub"],
            env={
                **os.environ,
                "BELLJAR_DATA_DIR": str(tmp_path),
                "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS": "always",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["attempt 1: 1 passed, 3 failed", "attempt 2: 4 passed"]
    assert "re.findall" in done.stdout
