"""Services with a docker engine die again and again, and no container is left. `make crash-docker`: of 1,000."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.containers import Lives

from belljar.engines.docker.engine import DockerEngine

DEATHS = 20
LONGEST_S = 1.0


@pytest.mark.timeout(600)
async def test_no_container_is_left_of_services_that_were_killed(tmp_path: Path) -> None:
    probe = await DockerEngine().probe()
    if not probe.usable:
        pytest.skip(f"no docker engine here: {', '.join(check.detail for check in probe.missing)}")
    lives = Lives(tmp_path, "docker")
    for number in range(DEATHS):
        lives.live_and_die(most_runs=1000, after_s=LONGEST_S * number / DEATHS)
    toll = lives.end()
    assert toll.deaths == DEATHS
    assert toll.left_at_once > 0, "nothing was there that could have been left"
    assert toll.left == []
