"""`make crash`: a service is killed at every instant that matters, and what is left is counted.

python -m tests.crash.sweep [REPETITIONS]
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.crash import calls
from tests.crash.deaths import Aftermath, Deaths, adopting
from tests.crash.mortal import POINTS

LOADED = 20
"""Deaths at no special instant while many wait."""

Death = Callable[[], Aftermath]


def instants(deaths: Deaths, folder: Path) -> Iterator[tuple[str, Death]]:
    for point in POINTS:
        yield f"at {point}", partial(deaths.at, point)
    yield "in recovery", deaths.in_recovery
    for _ in range(LOADED):
        after_s = random.uniform(0, 0.5)
        yield f"{after_s:.3f} s into a crowd", partial(deaths.at_any_time, after_s)
    for call in calls.of_a_run(deaths, folder / "run.log"):
        yield f"run: thread {call.thread}, {call.name} {call.number}", partial(deaths.at_call, *call)
    made = calls.of_a_start(folder / "watched", folder / "start.log")
    for name, number in dict.fromkeys((call.name, call.number) for call in made):
        yield f"first start: {name} {number}", partial(_first_start, folder, name, number)


def _first_start(folder: Path, name: str, number: int) -> Aftermath:
    with tempfile.TemporaryDirectory(dir=folder) as data_dir:
        deaths = Deaths(Path(data_dir))
        after = deaths.at_start(name, number)
        after.orphans += deaths.close().get("orphans", [])
        return after


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(repetitions: int) -> int:
    began = time.monotonic()
    found: list[Aftermath] = []
    with adopting(), tempfile.TemporaryDirectory(prefix="belljar-crash-") as folder:
        deaths = Deaths(Path(folder) / "data")
        try:
            for _ in range(repetitions):
                for label, death in instants(deaths, Path(folder)):
                    after = death()
                    found.append(after)
                    reached = "" if after.died else "  (not reached: killed after the answer)"
                    say(f"{len(found):6}  {label}{reached}")
                    for name, fault in after.faults.items():
                        say(f"        {name}: {fault}")
        finally:
            left = deaths.close()
    say(f"\n{len(found)} deaths in {time.monotonic() - began:.0f} s, repeated {repetitions} times")
    say(f"{sum(after.died for after in found):6}  at their very instant")
    say(f"{sum(after.orphans_at_once for after in found):6}  processes left at once")
    for one in (one for one in dataclasses.fields(Aftermath) if one.default is dataclasses.MISSING):
        say(f"{sum(len(getattr(after, one.name)) for after in found):6}  {one.name} left after recovery")
    say(f"{len(left):6}  left at the end {left or ''}")
    return 1 if left or any(after.faults for after in found) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
