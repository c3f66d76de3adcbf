"""Traces of requests and their runs, for whom OpenTelemetry's own variables name as the one who wants them.

    POST /run ─► run ─► approval, queue, packages, jar, program, collect, record

The spans of a run are made once it is over and answered, from the moments that it went through: they have no
part in it, and can neither delay it nor fail it. They say which run it was and how it ended, never what it
was: no code, output, file, variable or message of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from belljar.audit.records import ExecRecord
from belljar.errors import BadConfig

__all__ = ["Answered", "Tracing", "Untraced", "tracing_for"]

Answered = Callable[[int, str | None], None]
"""To be told the status of the answer, and the code of the error if it is one."""


class Tracing(Protocol):
    def request(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Answered]:
        """One that starts runs. Those that begin inside belong to it, also when they last longer."""

    def run(self, record: ExecRecord, reached: Mapping[str, int]) -> None:
        """One that is over, and when it reached what, in nanoseconds of the clock on the wall."""

    async def aclose(self) -> None:
        """Send what is left; in bounded time."""


class Untraced:
    """Nobody wants traces: nothing of OpenTelemetry is imported."""

    def request(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Answered]:
        return nullcontext(lambda status, error: None)

    def run(self, record: ExecRecord, reached: Mapping[str, int]) -> None:
        pass

    async def aclose(self) -> None:
        pass


def tracing_for(*, wanted: bool) -> Tracing:
    """
    Raises:
        BadConfig: OpenTelemetry is not installed, or its variables make no sense to it.
    """
    if not wanted:
        return Untraced()
    try:
        from belljar.tracing.spans import Spans
    except ImportError as error:
        message = (
            "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need OpenTelemetry; "
            "in belljar's source: pip install '.[otel]', or set OTEL_TRACES_EXPORTER=none"
        )
        raise BadConfig(message, field="OTEL_EXPORTER_OTLP_ENDPOINT") from error
    try:
        return Spans()
    except Exception as error:  # whatever the SDK makes of its variables
        message = f"the OTEL_ variables make no sense to OpenTelemetry: {error}"
        raise BadConfig(message, field="OTEL_EXPORTER_OTLP_ENDPOINT") from error
