"""A service of a compose file, as options of `docker run`: so that the file is what is tested, also where
`docker compose` is not installed. A key that is not known here is an error, not left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
_NOT_OF_A_RUN = {"image", "build", "restart", "stop_grace_period"}
_PLAIN = {
    "user": "--user",
    "pid": "--pid",
    "cgroup": "--cgroupns",
    "mem_limit": "--memory",
    "memswap_limit": "--memory-swap",
    "cpus": "--cpus",
    "pids_limit": "--pids-limit",
}
_LISTS = {"cap_drop": "--cap-drop", "tmpfs": "--tmpfs", "group_add": "--group-add"}
_VARIABLE = re.compile(r"\$\{(\w+):([-?])([^}]*)\}")


def load(name: str, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A compose file with its variables filled in."""
    loaded: dict[str, Any] = _filled(yaml.safe_load((DEPLOY / name).read_text()), given or {})
    return loaded


def _filled(value: Any, given: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, given) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, given) for one in value]
    return _VARIABLE.sub(lambda match: _value(match, given), value) if isinstance(value, str) else value


def _value(match: re.Match[str], given: Mapping[str, str]) -> str:
    variable, kind, text = match.groups()
    if kind == "?" and variable not in given:
        raise KeyError(f"{variable}: {text}")
    return given.get(variable, text)


def run_options(service: Mapping[str, Any], name: str) -> list[str]:
    """But for its image and command. Volumes and the published port are the test's own."""
    return list(_options(service, name))


def _options(service: Mapping[str, Any], name: str) -> Iterator[str]:
    for key, value in service.items():
        if key in _NOT_OF_A_RUN:
            continue
        if key in _PLAIN:
            yield from (_PLAIN[key], str(value))
        elif key in _LISTS:
            for one in value:
                yield from (_LISTS[key], str(one))
        elif key == "environment":
            for variable, text in value.items():
                yield from ("--env", f"{variable}={text}")
        elif key == "ports":
            for port in value:
                address, _, inside = port.split(":")
                yield from ("--publish", f"{address}::{inside}")
        elif key == "volumes":
            for volume in value:
                yield from ("--volume", volume if volume.startswith("/") else f"{name}-{volume}")
        elif key == "security_opt":
            for option in value:
                what, _, file = option.partition("=")
                yield from ("--security-opt", f"seccomp={DEPLOY / file}" if what == "seccomp" else option)
        elif key == "read_only":
            yield from ["--read-only"] if value else []
        else:
            raise ValueError(f"{key} has no option of docker run here")
