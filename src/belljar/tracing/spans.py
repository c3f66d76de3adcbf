"""Traces by OpenTelemetry's SDK, sent over OTLP with HTTP by a thread that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from belljar import __version__
from belljar.audit.records import ExecRecord
from belljar.models import Verdict
from belljar.tracing import Answered

__all__ = ["Spans"]

logger = logging.getLogger(__name__)

MAX_WAITING = 2048
"""Spans to be sent; the oldest go first where nobody takes them."""
AT_ONCE = 512
EVERY_S = 1.0
FLUSH_S = 5.0
"""At the end, for what has not been sent yet."""

_STEPS = {
    "pending_approval": "approval",
    "queued": "queue",
    "approved": "queue",
    "installing": "packages",
    "running": "jar",
    "started": "program",
    "ended": "collect",
    "collected": "record",
}
"""What begins when a run gets there, and lasts until the next begins or the run is over."""


class Spans:
    """`Tracing`, as the OTEL_ variables have it. The SDK reads them itself."""

    def __init__(self) -> None:
        ours = Resource.create({"service.name": "belljar", "service.version": __version__})
        self._provider = TracerProvider(
            resource=ours.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # `aclose` does that
        )
        self._provider.add_span_processor(_Sender(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("belljar", __version__)
        self._callers = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[Answered]:
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._callers.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )

        def answered(status: int, error: str | None) -> None:
            span.set_attribute("http.response.status_code", status)
            if error is not None:
                span.set_attribute("error.type", error)
            if status >= 500:
                span.set_status(StatusCode.ERROR)

        # What an error says may be the caller's own words.
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield answered

    def run(self, record: ExecRecord, reached: Mapping[str, int]) -> None:
        try:
            self._tell(record, reached)
        except Exception:
            logger.exception("%s: its trace could not be made", record.exec_id)

    def _tell(self, record: ExecRecord, reached: Mapping[str, int]) -> None:
        over = time.time_ns()
        steps = sorted((at, _STEPS[point]) for point, at in reached.items() if point in _STEPS)
        began = steps[0][0] if steps else over
        # In the run's own task, whose context is that of the request which started it.
        span = self._tracer.start_span("run", start_time=began, attributes=_attributes(record))
        if record.verdict == Verdict.LOST:
            span.set_status(StatusCode.ERROR)
        below = trace.set_span_in_context(span)
        ends = [at for at, _ in steps[1:]] + [over]
        for (at, name), end in zip(steps, ends, strict=True):
            step: Span = self._tracer.start_span(name, context=below, start_time=at)
            step.end(end)
        span.end(over)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._provider.shutdown)


def _attributes(record: ExecRecord) -> dict[str, str | int | float]:
    known = {
        "exec_id": record.exec_id,
        "project": record.project_id,
        "tool": record.tool,
        "language": record.language,
        "engine": record.engine,
        "status": record.status,
        "verdict": record.verdict,
        "exit_code": record.exit_code,
        "error_code": record.error_code,
        "duration_ms": record.duration_ms,
        "cpu_s": record.usage.get("cpu_s"),
    }
    return {f"belljar.{name}": value for name, value in known.items() if value is not None}


class _Sender(SpanProcessor):
    """Sends spans as they come, some together. The SDK's own may hold up the end of the service for 30 s."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._waiting: deque[ReadableSpan] = deque(maxlen=MAX_WAITING)
        self._news = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, name="traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._waiting.append(span)
            self._news.set()

    def shutdown(self) -> None:
        self._over.set()
        self._news.set()
        self._thread.join(FLUSH_S)
        self._waiting.clear()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its patience, too

    def _send(self) -> None:
        while not self._over.is_set():
            self._news.wait()
            self._over.wait(EVERY_S)
            self._news.clear()
            while spans := self._next():
                self._exporter.export(spans)

    def _next(self) -> list[ReadableSpan]:
        spans: list[ReadableSpan] = []
        with suppress(IndexError):
            while len(spans) < AT_ONCE:
                spans.append(self._waiting.popleft())
        return spans
