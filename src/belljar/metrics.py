"""How many, how long: counters of one service, in Prometheus' words.

The first six names are seed 004's. A label has a bounded set of values, because one per sandbox would grow
for ever: memory is that of a tool's last run, CPU time that of all its runs.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._executions = Counter(
            "sandbox_executions_total",
            "Runs that ended.",
            ("tool", "language", "status"),
            registry=self.registry,
        )
        self._duration = Histogram(
            "sandbox_execution_duration_seconds",
            "Wall clock of programs.",
            ("tool",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._memory = Gauge(
            "sandbox_memory_usage_bytes",
            "Peak memory of the last run of a tool.",
            ("tool",),
            registry=self.registry,
        )
        self._cpu = Gauge(
            "sandbox_cpu_usage_seconds", "CPU time of all programs so far.", ("tool",), registry=self.registry
        )
        self._pool = Gauge("sandbox_pool_size", "Jars by what they do.", ("status",), registry=self.registry)
        self._violations = Counter(
            "sandbox_policy_violations_total",
            "Requests that policy refused.",
            ("tool", "reason"),
            registry=self.registry,
        )
        self._refusals = Counter(
            "sandbox_refusals_total", "Requests that were not taken.", ("code",), registry=self.registry
        )
        self._alerts = Counter(
            "sandbox_alerts_total",
            "How often a jar came to use nearly all that it may.",
            ("resource",),
            registry=self.registry,
        )
        self._queue = Gauge("sandbox_queue_depth", "Runs that wait for their turn.", registry=self.registry)
        self._starts = Histogram(
            "sandbox_jar_start_seconds",
            "How long it took to make a jar.",
            buckets=_SECONDS,
            registry=self.registry,
        )

        self._contacts = Counter(
            "sandbox_network_contacts_total",
            "Connections that programs asked for.",
            ("decision",),
            registry=self.registry,
        )
        self._network_bytes = Counter(
            "sandbox_network_bytes_total",
            "Bytes that programs moved over the network.",
            ("direction",),
            registry=self.registry,
        )

    def finished(self, record: Any) -> None:
        tool = record.tool or "none"
        self._executions.labels(tool, record.language or "command", record.verdict).inc()
        if record.duration_ms is not None:
            self._duration.labels(tool).observe(record.duration_ms / 1000)
        usage = record.usage
        self._memory.labels(tool).set(usage.get("memory_peak_mb", 0) * (1 << 20))
        self._cpu.labels(tool).inc(usage.get("cpu_s", 0))
        self._network_bytes.labels("sent").inc(record.network_bytes_sent)
        self._network_bytes.labels("received").inc(record.network_bytes_recv)

    def contacted(self, *, allowed: bool) -> None:
        self._contacts.labels("allowed" if allowed else "denied").inc()

    def refused(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def violation(self, tool: str | None, reason: str) -> None:
        self._violations.labels(tool or "none", reason).inc()

    def alert(self, resource: str) -> None:
        self._alerts.labels(resource).inc()

    def jar_started(self, seconds: float) -> None:
        self._starts.observe(seconds)

    def occupancy(self, *, running: int, waiting: int, idle: int) -> None:
        self._pool.labels("busy").set(running)
        self._pool.labels("idle").set(idle)
        self._queue.set(waiting)

    def text(self) -> bytes:
        return generate_latest(self.registry)
