"""Where programs run: the contract in `base`, and an engine for each way to keep it."""

from __future__ import annotations

from belljar.engines.base import Engine
from belljar.errors import EngineUnavailable

__all__ = ["choose"]


async def choose(
    name: str,
    *,
    rootfs: str | None = None,
    preload: tuple[str, ...] = (),
    cgroup_parent: str | None = None,
    uid_base: int | None = None,
) -> Engine:
    """The engine of that name, or for `auto` the first that this host can hold. Never none at all.

    Raises:
        EngineUnavailable: says what is missing and how to mend it.
    """
    if name not in ("auto", "jail"):
        raise EngineUnavailable(f"engine {name} is not part of this version; it has jail", field="engine")
    from belljar.engines.jail.engine import JailEngine

    engine = JailEngine(
        rootfs=rootfs,
        preload=preload,
        cgroup_parent=cgroup_parent,
        **({} if uid_base is None else {"uid_base": uid_base}),
    )
    probe = await engine.probe()
    if not probe.usable:
        missing = "; ".join(f"{c.name}: {c.detail} (fix: {c.fix})" for c in probe.missing if c.required)
        raise EngineUnavailable(f"this machine cannot hold a jail: {missing}", field="engine")
    return engine
