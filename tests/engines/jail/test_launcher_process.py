"""The launcher's end, and a start that never comes true: nobody waits for what cannot be."""

from __future__ import annotations

import asyncio

import pytest

from belljar.engines.environment import WARM
from belljar.engines.jail.launcher_process import LauncherProcess
from belljar.engines.jail.trees import host_tree
from belljar.errors import EngineUnavailable


async def test_a_launcher_that_is_gone_makes_nothing_and_says_so_at_once() -> None:
    launcher = await LauncherProcess.start(host_tree(), (), {}, WARM)
    await launcher.close()
    async with asyncio.timeout(60):
        with pytest.raises(EngineUnavailable, match="launcher is gone"):
            await launcher.make("jar-late", {"jar": "jar-late", "uid": 0})
