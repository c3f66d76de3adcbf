"""Who asks, and with which tool: the canonical names, their tiers, and what a role inherits.

A name is exact. Nothing is folded, trimmed or normalised, so `Bash`, `bash ` and full-width letters
are simply other names, and other names are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from belljar.errors import BadRequest
from belljar.models import Language, RiskTier, RunRequest
from belljar.policy.layers import Policy
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BUILT_IN",
    "CODE_RUN",
    "DEFAULT",
    "SHELL_EXEC",
    "Role",
    "Tool",
    "check_name",
    "lineage",
    "tool_of",
]

CODE_RUN, SHELL_EXEC = "code_run", "shell_exec"

BUILT_IN: Mapping[str, RiskTier] = MappingProxyType(
    {
        "file_read": RiskTier.LOW,
        "search": RiskTier.LOW,
        "file_write": RiskTier.MEDIUM,
        "file_edit": RiskTier.MEDIUM,
        SHELL_EXEC: RiskTier.HIGH,
        CODE_RUN: RiskTier.HIGH,
        "system_admin": RiskTier.CRITICAL,
        "network_scan": RiskTier.CRITICAL,
    }
)
"""Tools that need no entry in the policy, and the tier each has without one."""

DEFAULT = "default"
"""What `inherits` calls the operator's `policies.default`; no role may take the name."""

_DEEPEST = 16
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    policy: Policy = field(default_factory=Policy)

    @property
    def risk(self) -> RiskTier:
        return self.policy.risk or BUILT_IN[self.name]


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    policy: Policy = field(default_factory=Policy)
    """Its own words over those it inherits."""
    tools: frozenset[str] | None = None
    """Tools it may use. None: no opinion. Empty: none."""


def tool_of(request: RunRequest) -> str:
    """The tool that a plain run is, so that nobody can do by one what they may not by the other."""
    program = request.command is None and request.language is not Language.BASH
    return CODE_RUN if program else SHELL_EXEC


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{quoted(name)} is not a name; use 1 to 64 of `a-z`, `0-9`, `_`, `.` and `-`, "
            "with a letter or digit at both ends"
        )


def lineage(name: str, parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """`name` and the roles it inherits from, nearest first.

    Raises BadRequest when a parent is missing, inherits from itself, or is too far away.
    """
    line = [name]
    while (parent := parents[line[-1]]) is not None and parent != DEFAULT:
        if parent not in parents:
            known = [*parents, DEFAULT]
            raise BadRequest(f"inherits from {quoted(parent)}, which is no role{nearest(parent, known)}")
        if parent in line:
            raise BadRequest(f"inherits from itself: {' → '.join([*line, parent])}")
        line.append(parent)
        if len(line) > _DEEPEST:
            raise BadRequest(f"inherits through more than {_DEEPEST} roles")
    return tuple(line)
