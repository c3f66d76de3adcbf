"""Puts the parts together: a configuration becomes policies, a grant, an engine. No logic of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from belljar import engines
from belljar.config import Config, stated_limits
from belljar.engines.base import Engine
from belljar.errors import BadConfig, Refused
from belljar.models import Grant
from belljar.policy import files
from belljar.policy.decisions import PolicySet, decide
from belljar.settings import WeakerLimits


def policies_of(config: Config) -> PolicySet:
    """The operator's policy file or a shipped profile; limits of the configuration are its defaults."""
    policies = files.load(config.policy) if config.policy else files.load_profile(config.profile)
    settings = replace(policies.settings, **stated_limits(config))
    wider = settings.wider_than(policies.ceilings)
    if wider:
        raise BadConfig(
            f"{wider[0]} of the configuration is above the ceiling of {policies.name}", field=wider[0]
        )
    return replace(policies, settings=settings)


def grant_for(config: Config, overrides: Mapping[str, object], *, person: bool) -> Grant:
    """What one request gets. `person`: somebody's own run on their own machine, not a server's."""
    if not config.enabled:
        where = config.source_of("sandbox.enabled")
        raise Refused(f"runs are switched off: sandbox.enabled is false ({where.layer} {where.where})")
    accepted = (WeakerLimits.ALWAYS, WeakerLimits.PERSON) if person else (WeakerLimits.ALWAYS,)
    return replace(
        decide(policies_of(config), overrides=overrides).grant,
        accept_weaker_limits=config.jail_accept_weaker_limits in accepted,
    )


async def engine_for(config: Config, name: str | None = None) -> Engine:
    """The engine that the configuration or the caller names, once its probe has passed."""
    return await engines.choose(
        name or config.engine,
        rootfs=str(config.jail_rootfs) if config.jail_rootfs else None,
        preload=config.preload,
        cgroup_parent=config.jail_cgroup_parent,
        uid_base=config.jail_uid_base,
    )
