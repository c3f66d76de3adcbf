"""Where programs run: the contract in `base`, and an engine for each way to keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from belljar.engines.base import Engine, Probe
from belljar.engines.tunnels import WayOut
from belljar.errors import EngineUnavailable

__all__ = ["ENGINES", "Choice", "choose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What engines are made with. None is each engine's own default."""

    preload: tuple[str, ...] = ()
    rootfs: str | None = None
    cgroup_parent: str | None = None
    uid_base: int | None = None
    docker_host: str | None = None
    docker_context: str | None = None
    image: str | None = None
    languages: Mapping[str, str] | None = None
    """Images by language, of engines that have images."""
    runtimes: Mapping[str, str] | None = None
    """The docker engine's name of the runtime of `docker` and of `gvisor`."""
    way_out: WayOut | None = None
    """Without it a grant that has a network is refused."""


def _jail(choice: Choice) -> Engine:
    from belljar.engines.jail.engine import JailEngine

    return JailEngine(
        rootfs=choice.rootfs,
        preload=choice.preload,
        cgroup_parent=choice.cgroup_parent,
        way_out=choice.way_out,
        **({} if choice.uid_base is None else {"uid_base": choice.uid_base}),
    )


def _docker(choice: Choice, name: str, runtime: str) -> Engine:
    from belljar.engines.docker import images
    from belljar.engines.docker.engine import DockerEngine

    return DockerEngine(
        name=name,
        host=choice.docker_host,
        context=choice.docker_context,
        runtime=(choice.runtimes or {}).get(name, runtime),
        image=choice.image or images.DEFAULT,
        languages=images.LANGUAGES if choice.languages is None else choice.languages,
        preload=choice.preload,
        way_out=choice.way_out,
    )


ENGINES: Mapping[str, Callable[[Choice], Engine]] = {
    "jail": _jail,
    "docker": lambda choice: _docker(choice, "docker", "runc"),
    "gvisor": lambda choice: _docker(choice, "gvisor", "runsc"),
}
_AUTO = ("jail", "docker")
"""In this order; the first that this host can hold."""


async def choose(name: str, choice: Choice | None = None) -> Engine:
    """The engine of that name, or for `auto` the first that this host can hold. Never none at all.

    Raises:
        EngineUnavailable: says what is missing and how to mend it.
    """
    if name != "auto" and name not in ENGINES:
        raise EngineUnavailable(f"there is no engine {name}; there are {', '.join(ENGINES)}", field="engine")
    lacking = []
    for candidate in _AUTO if name == "auto" else (name,):
        engine = ENGINES[candidate](choice or Choice())
        probe = await engine.probe()
        if probe.usable:
            return engine
        lacking.append(_lack(probe))
    raise EngineUnavailable("; ".join(lacking), field="engine")


def _lack(probe: Probe) -> str:
    missing = "; ".join(f"{c.name}: {c.detail} (fix: {c.fix})" for c in probe.missing if c.required)
    return f"this machine cannot hold a jar of engine {probe.engine}: {missing}"
