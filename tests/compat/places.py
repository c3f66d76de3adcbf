"""The two places in which modules of the regression tests are run: outside, and inside a jar."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from belljar.engines.jail.engine import JailEngine
from belljar.execution import runs
from belljar.models import Grant, Limits, RunRequest, Start

PYTHON = "/usr/bin/python3.11"
"""Debian's, in both places: it lies below /usr, which the jar's tree shows, and its tests are a package."""
PATH = "/usr/local/bin:/usr/bin:/bin"
DRIVER = Path(__file__).with_name("outcomes.py").read_text()
NOBODY = 65534
LIMITS = Limits(
    timeout_s=250, memory_mb=2048, cpu_cores=2, pids=512, tmp_mb=512, workspace_mb=512, stdout_kb=256
)


@dataclass(frozen=True)
class Outcomes:
    of: dict[str, str]
    """Test to how it ended."""
    details: dict[str, str]
    """Test to what it said, where it did not pass."""
    log: str
    """What the runner printed."""

    @classmethod
    def read(cls, text: bytes | None, log: bytes) -> Outcomes:
        if text is None:  # the runner died: the log says of what
            return cls({}, {}, log.decode("utf-8", "replace"))
        found = json.loads(text)
        return cls(found["outcomes"], found["details"], log.decode("utf-8", "replace"))


class Places:
    """Both use the same interpreter, limits and environment; outside is an ordinary user too."""

    def __init__(self, engine: JailEngine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder

    async def outside(self, arguments: Sequence[str]) -> Outcomes:
        script, out = self._folder / "main.py", self._folder / "out.json"
        out.unlink(missing_ok=True)
        script.write_text(DRIVER)
        become: list[str] = []
        if os.getuid() == 0:
            become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        # The bounds of a jar, so that tests which look for them find the same.
        bounds = ["prlimit", f"--nofile={LIMITS.nofile}", "--core=1", "timeout", str(LIMITS.timeout_s)]
        process = await asyncio.create_subprocess_exec(
            *[*bounds, *become, PYTHON, str(script), str(out), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env={
                "PATH": PATH,
                "LANG": "C.UTF-8",
                "HOME": str(self._folder),
                "TMPDIR": str(self._folder),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            start_new_session=True,
        )
        log, _ = await process.communicate(b"")
        return Outcomes.read(out.read_bytes() if out.exists() else None, log)

    async def inside(self, start: Start, arguments: Sequence[str]) -> Outcomes:
        result = await runs.run(
            self._engine,
            Grant(limits=LIMITS, accept_weaker_limits=True),
            RunRequest(code=DRIVER, start=start, args=("/workspace/artifacts/out.json", *arguments)),
        )
        out = next((file.content for file in result.artifacts if file.path == "artifacts/out.json"), None)
        log = result.stdout + result.stderr + f"\n{result.verdict} {result.exit_code}".encode()
        return Outcomes.read(out, log)
