"""All benchmarks of what belljar promises to be fast at, as ratios taken in one run.

python bench/bench.py [--json] [--quick] [--only NAME…] [--write [--beside TEXT]]

Promises that are not kept are said, not punished: the exit status is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import bench_egress
import bench_jail
import bench_service
import bench_sessions
from belljar.engines.jail.engine import JailEngine
from belljar.errors import BelljarError
from belljar.execution.runs import run
from belljar.models import Language, RunRequest
from measuring import Report, commit, machine, markdown, shown

BENCHMARKS = {
    **bench_jail.BENCHMARKS,
    **bench_service.BENCHMARKS,
    **bench_sessions.BENCHMARKS,
    **bench_egress.BENCHMARKS,
}
DOCS = Path(__file__).parents[1] / "docs/benchmarks.md"


async def _held_by() -> dict[str, str]:
    """Which layer holds each limit: where it is another one, other ratios are to be expected."""
    engine = JailEngine()
    try:
        request = RunRequest(language=Language.PYTHON, code="")
        return dict((await run(engine, bench_jail.GRANT, request)).usage.held_by)
    finally:
        await engine.close()


def write(document: Path, name: str, report: Report, circumstances: str) -> None:
    """The benchmark's section of the document, in place of what was measured before."""
    text = document.read_text(encoding="utf-8")
    section = f"## {name}\n\n{circumstances}\n\n{markdown(report)}\n"
    old = re.compile(rf"^## {name}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if old.search(text):
        text = old.sub(lambda _: section, text)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    document.write_text(text.rstrip() + "\n", encoding="utf-8")


async def measure(options: argparse.Namespace) -> None:
    host, revision, held_by = machine(), commit(), await _held_by()
    facts = ", ".join(f"{name} {value}" for name, value in (host | held_by).items())
    if not options.json:
        sys.stdout.write(f"belljar at {revision}: {facts}\n\n")
    reports = {}
    for name in options.only:
        report = await BENCHMARKS[name](bench_jail.SIZES[options.size])
        reports[name] = asdict(report)
        if options.write:
            today = datetime.now(UTC).date()
            write(
                DOCS,
                name,
                report,
                f"{today}, {revision}, {options.size} size: {facts}. {options.beside}".strip(),
            )
        if not options.json:
            sys.stdout.write(shown(name, report))
            sys.stdout.flush()
    if options.json:
        found = {"machine": host, "commit": revision, "held_by": held_by, "benchmarks": reports}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare belljar with bare programs.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", default=list(BENCHMARKS))
    parser.add_argument(
        "--size", choices=bench_jail.SIZES, default="full", help="smoke only shows that it works"
    )
    parser.add_argument("--quick", action="store_const", const="quick", dest="size", help="--size quick")
    parser.add_argument("--write", action="store_true", help=f"keep what was found in {DOCS.name} too")
    parser.add_argument(
        "--beside", default="", metavar="TEXT", help="what else the machine was doing, for --write"
    )
    options = parser.parse_args()
    try:
        asyncio.run(measure(options))
    except BelljarError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
