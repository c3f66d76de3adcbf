"""Every name a limit goes by, and how its value is read: in the grant, in policy.yaml, on the wire.

    grant `limits.memory_mb`      policy.yaml `max_memory: 512MB`      wire `limits.memory_mb: 512`

In the policy file a value is human (`512MB`, `30s`); on the wire it is a bare number and the name
carries the unit. A wire name in a smaller unit (`max_stdout_bytes`) is rounded up to the grant's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from belljar.errors import BadRequest
from belljar.policy import units

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BY_KEY", "BY_WIRE_NAME", "LIMITS", "Limit", "Unit"]


class Unit(StrEnum):
    SECONDS = "s"
    CORES = "cores"
    MEBIBYTES = "MB"
    KIBIBYTES = "KB"
    COUNT = ""

    @property
    def whole(self) -> bool:
        return self not in (Unit.SECONDS, Unit.CORES)


_BYTES = {Unit.MEBIBYTES: 2**20, Unit.KIBIBYTES: 2**10}


@dataclass(frozen=True, slots=True)
class Limit:
    name: str
    """In the grant: a field of `models.Limits`."""
    key: str
    """In policy.yaml."""
    unit: Unit
    least: float
    """Smallest value that makes sense; a tmpfs of size 0, for one, has no limit at all."""
    wire: Mapping[str, int] = field(default_factory=dict)
    """Its other names on the wire, each with how many of that unit make one of ours."""

    def from_words(self, text: str) -> float:
        """The value in policy.yaml, in this limit's unit. Raises BadRequest."""
        if self.unit is Unit.SECONDS:
            value = units.duration(text)
        elif self.unit is Unit.CORES:
            value = units.number(text)
        elif self.unit is Unit.COUNT:
            value = units.whole(text)
        else:
            value, rest = divmod(units.size(text), _BYTES[self.unit])
            if rest:
                raise BadRequest(f"must be a whole number of {self.unit}")
        return self._checked(value)

    def from_number(self, value: object, per: int = 1) -> float:
        """The value of a request, in units of which `per` make one of ours. Raises BadRequest."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadRequest("must be a number")
        if not -units.LARGEST <= value <= units.LARGEST:  # false for NaN too
            raise BadRequest("must be a finite number below 2**53")
        if value < 0:
            raise BadRequest("must not be negative")
        if not self.unit.whole:
            return self._checked(abs(value) / per)
        if value != int(value):
            raise BadRequest("must be a whole number")
        return self._checked(-(-int(value) // per))

    def _checked(self, value: float) -> float:
        if value < self.least:
            raise BadRequest(f"must be at least {self.least:g}{self.unit and ' ' + self.unit}")
        return value


LIMITS = (
    Limit("timeout_s", "max_execution_time", Unit.SECONDS, 0.001, {"timeout_seconds": 1, "timeout_ms": 1000}),
    Limit("grace_s", "grace_period", Unit.SECONDS, 0),
    Limit("idle_timeout_s", "max_idle_time", Unit.SECONDS, 0, {"idle_timeout_ms": 1000}),
    Limit("memory_mb", "max_memory", Unit.MEBIBYTES, 1),
    Limit("cpu_cores", "max_cpu", Unit.CORES, 0.01),
    Limit("pids", "max_pids", Unit.COUNT, 1),
    Limit("nofile", "max_open_files", Unit.COUNT, 1),
    Limit("stdout_kb", "max_stdout", Unit.KIBIBYTES, 0, {"max_stdout_kb": 1, "max_stdout_bytes": 2**10}),
    Limit("stderr_kb", "max_stderr", Unit.KIBIBYTES, 0, {"max_stderr_kb": 1, "max_stderr_bytes": 2**10}),
    Limit("input_mb", "max_input_size", Unit.MEBIBYTES, 0),
    Limit("input_files", "max_input_files", Unit.COUNT, 0),
    Limit(
        "artifact_mb",
        "max_artifact_size",
        Unit.MEBIBYTES,
        0,
        {"max_output_total_mb": 1, "max_artifacts_bytes_total": 2**20},
    ),
    Limit("artifact_files", "max_artifact_files", Unit.COUNT, 0),
    Limit("workspace_mb", "max_workspace_size", Unit.MEBIBYTES, 1),
    Limit("workspace_files", "max_workspace_files", Unit.COUNT, 1),
    Limit("tmp_mb", "max_tmp_size", Unit.MEBIBYTES, 1),
)

BY_KEY: Mapping[str, Limit] = MappingProxyType({limit.key: limit for limit in LIMITS})
BY_WIRE_NAME: Mapping[str, tuple[Limit, int]] = MappingProxyType(
    {name: (limit, per) for limit in LIMITS for name, per in ({limit.name: 1} | dict(limit.wire)).items()}
)
