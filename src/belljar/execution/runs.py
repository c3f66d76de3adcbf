"""One run from request to result: a jar is made, filled, used once and taken away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from belljar.engines.base import Area, Collected, Engine, Jar
from belljar.errors import EngineUnavailable, PackageUnavailable
from belljar.execution.requests import PACKAGES, plan
from belljar.execution.stock import Installed
from belljar.models import (
    Ended,
    Event,
    Grant,
    InputFile,
    Output,
    RunRequest,
    RunResult,
    Shown,
    SkipReason,
    Started,
    Stream,
    Verdict,
)

_IN_PART = frozenset({SkipReason.TOO_LARGE, SkipReason.TOO_MANY, SkipReason.TOO_DEEP, SkipReason.UNREADABLE})
"""Why some of what a run left did not come back."""
_GONE = frozenset({SkipReason.MISSING, SkipReason.SYMLINK, SkipReason.NOT_REGULAR})
_LOOKED_FOR_AT_ONCE = 1000
"""Paths that fit into one frame, however long they are."""


async def stream(
    engine: Engine,
    grant: Grant,
    request: RunRequest,
    on_jar: Callable[[Jar], None] = lambda jar: None,
    *,
    packages: Installed | None = None,
    keeping: bool = False,
) -> AsyncGenerator[Event | RunResult, None]:
    """Events as they happen, the RunResult last, while its jar is taken away: gone when the stream ends.

    `on_jar` is told the jar. With `keeping`, the result says which files of `work` the program has removed.

    Raises what `requests.plan` and `Engine.create` raise; a program's own failure is a result.
    PackageUnavailable, where it asks for packages and is given none.
    """
    work = plan(request, grant, engine.interpreters(), engine.name)
    if request.packages and packages is None:
        raise PackageUnavailable("packages are not installed here", field="packages")
    installed = packages or Installed((), ())
    output = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    shown: list[Mapping[str, object]] = []
    ended: Ended | None = None
    posture = ""
    jar = await engine.create(grant)
    on_jar(jar)
    try:
        await jar.put(Area.WORK, work.files)
        await jar.put(Area.INPUTS, (*work.inputs, *_placed(installed)))
        async for event in jar.exec(work.command):
            if isinstance(event, Output):
                output[event.stream] += event.data
            elif isinstance(event, Started):
                posture = event.posture
            elif isinstance(event, Shown):
                shown.append(event.forms)
            elif isinstance(event, Ended):
                ended = event
            yield event
        assert ended is not None, "an engine's last event is Ended"
        left, removed = Collected((), ()), tuple[str, ...]()
        with suppress(EngineUnavailable):  # it ended with its jar; the verdict says how
            left = await jar.collect(request.output_files)
            if keeping and ended.verdict is Verdict.EXITED and _is_whole(request, left):
                removed = await _removed(jar, grant, [file.path for file in request.files])
        leaving = asyncio.create_task(jar.destroy())
        yield RunResult(
            verdict=ended.verdict,
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=bytes(output[Stream.STDOUT]),
            stderr=bytes(output[Stream.STDERR]),
            stdout_bytes=ended.stdout_bytes,
            stderr_bytes=ended.stderr_bytes,
            usage=ended.usage,
            artifacts=left.artifacts,
            skipped=left.skipped,
            removed=removed,
            results=tuple(shown),
            packages=installed.packages,
            engine=engine.name,
            posture=posture,
        )
        await leaving
    finally:
        await jar.destroy()


def _is_whole(request: RunRequest, left: Collected) -> bool:
    """Else a file that was only given another name may be among what did not come back."""
    return request.output_files is None and all(skip.reason not in _IN_PART for skip in left.skipped)


async def _removed(jar: Jar, grant: Grant, files: Sequence[str]) -> tuple[str, ...]:
    """Those that are not in `work` any more: they are looked for with no room to bring their content."""
    limits = replace(grant.limits, artifact_mb=0, artifact_files=_LOOKED_FOR_AT_ONCE)
    jar.assign(replace(grant, limits=limits))
    gone: set[str] = set()
    for start in range(0, len(files), _LOOKED_FOR_AT_ONCE):
        found = await jar.collect(files[start : start + _LOOKED_FOR_AT_ONCE])
        gone.update(skip.path for skip in found.skipped if skip.reason in _GONE)
    return tuple(path for path in files if path in gone)  # whatever else a guest may name


def _placed(installed: Installed) -> Iterator[InputFile]:
    for file in installed.files:
        yield InputFile(f"{PACKAGES}/{file.path}", file.content)


async def run(
    engine: Engine, grant: Grant, request: RunRequest, packages: Installed | None = None
) -> RunResult:
    result = None
    async for event in stream(engine, grant, request, packages=packages):
        result = event
    assert isinstance(result, RunResult)
    return result
