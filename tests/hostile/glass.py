"""The oracle: runs a hostile program in a jar, and says whether it was contained.

Contained means all of: the goal was not reached and no canary came out (I1), the run ended as it had to (I2),
no process, cgroup, mount or file of it is left (I3), this process and the launcher hold what they held before
(I4), a benign run right after is fine (I6), and a neighbour that ran all the while is untouched. Then the
same program is run where the layer that guards against it is missing: there it must reach its goal.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any

from belljar.engines.base import Area, Command
from belljar.engines.jail.engine import JailEngine
from belljar.engines.link import GuestJar
from belljar.execution import runs
from belljar.execution.requests import SCRIPTS
from belljar.models import (
    Ended,
    Grant,
    InputFile,
    Language,
    Limits,
    OnOutputLimit,
    Output,
    RunRequest,
    RunResult,
    Verdict,
)
from tests.hostile.attacks import SMALL, TACTICS, Attack, Control
from tests.hostile.canaries import Canaries, Standing, demoted, descendants, jar_cgroup_claims

BENIGN_S = 5.0
"""Far more than a benign run takes, on a machine as busy as it may be."""
BARE_S = 20.0


class Glass:
    def __init__(self, runner: asyncio.Runner, engine: JailEngine, bare: JailEngine, canaries: Canaries) -> None:
        self._runner = runner
        self.engine = engine
        self._unfiltered = bare
        self.canaries = canaries
        self.neighbour = Neighbour(canaries.token)
        self.kinds: list[str] = []
        """Of every program that was contained, how it was shown to be an attack."""
        self.wait(self.neighbour.move_in(engine))
        self._claims = jar_cgroup_claims()
        first = self.wait(self.run("print('first')"))
        self.has_cgroup = "cgroup" in first.usage.held_by["memory"]
        """False for an ordinary user without delegation: limits are held by weaker layers."""

    def close(self) -> None:
        self.wait(self.neighbour.move_out())

    def wait[T](self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def run(
        self,
        code: str,
        *,
        limits: Limits = SMALL,
        language: Language = Language.PYTHON,
        on_output_limit: OnOutputLimit = OnOutputLimit.TRUNCATE,
        engine: JailEngine | None = None,
        **fields: Any,
    ) -> RunResult:
        """One run with the canaries' whereabouts in its environment."""
        grant = Grant(limits=limits, on_output_limit=on_output_limit, accept_weaker_limits=True)
        fields.setdefault("env", {**self.canaries.whereabouts, "MARK": self.mark})
        request = RunRequest(
            language=language, code=code, files=(InputFile("tactics.py", TACTICS.encode()),), **fields
        )
        return await runs.run(engine or self.engine, grant, request)
