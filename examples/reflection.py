"""A model writes a function; its tests run under glass; it is told what failed, until they pass.

    python examples/reflection.py --url http://127.0.0.1:11434/v1 --model qwen2.5-coder

Any endpoint that speaks OpenAI's chat completions will do. A key, if it wants one, is in OPENAI_API_KEY.
"""

import argparse
import asyncio
import os
import sys

import httpx2

import belljar
from belljar.flows.reflection import code_with_reflection
from belljar.flows.testdriven import Pair, Suite, SuiteKind, by

TASK = (
    "Write a Python module with a function `slug(text)`: lower case, words joined by single dashes, nothing "
    "but letters and digits kept. Run as a program, it prints the slug of its standard input. Answer with "
    "code only."
)
TESTS = [
    Suite(
        SuiteKind.PYTEST,
        "test_slug.py",
        "from solution import slug\n"
        "def test_words(): assert slug('Hello, World!') == 'hello-world'\n"
        "def test_dashes(): assert slug('  a -- b  ') == 'a-b'\n"
        "def test_empty(): assert slug('') == ''\n",
    ),
    Pair("as a program", "Bell Jar 1", "bell-jar-1"),
]


def model(url: str, name: str, key: str):
    async def generate(prompt: str) -> str:
        async with httpx2.AsyncClient(timeout=300) as http:
            answer = await http.post(
                f"{url.rstrip('/')}/chat/completions",
                headers={"authorization": f"Bearer {key}"} if key else {},
                json={"model": name, "messages": [{"role": "user", "content": prompt}]},
            )
            answer.raise_for_status()
            return answer.json()["choices"][0]["message"]["content"]

    return generate


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--iterations", type=int, default=3)
    options = parser.parse_args()
    generate = model(options.url, options.model, os.environ.get("OPENAI_API_KEY", ""))
    async with belljar.alocal() as client:
        done = await code_with_reflection(TASK, generate, TESTS, options.iterations, run=by(client))
    for number, attempt in enumerate(done.attempts, 1):
        counts = ", ".join(f"{count} {what}" for what, count in attempt.report.counts.items() if count)
        print(f"attempt {number}: {counts}", file=sys.stderr)
    if done.code is None:
        return 1
    print(done.code)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
