"""From a configuration to policies, a grant and an engine: what one run needs, with or without a service."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from belljar import engines
from belljar.config import Config, stated_limits
from belljar.egress import secrets
from belljar.egress.gate import Egress, Quota
from belljar.egress.secrets import Secret
from belljar.engines import Choice
from belljar.engines.base import Engine
from belljar.errors import BadConfig, Refused
from belljar.execution.hostpaths import Environment, detect_environment, host_paths
from belljar.models import Network, Owner
from belljar.policy import files
from belljar.policy.decisions import PolicySet
from belljar.settings import WeakerLimits, limit_key

if TYPE_CHECKING:
    from belljar.execution.packages import Packages


def check_enabled(config: Config) -> None:
    if not config.enabled:
        where = config.source_of("sandbox.enabled")
        raise Refused(f"runs are switched off: sandbox.enabled is false ({where.layer} {where.where})")


def policies_of(config: Config) -> PolicySet:
    """The operator's policy file or a shipped profile; limits of the configuration are its defaults."""
    policies = files.load(config.policy) if config.policy else files.load_profile(config.profile)
    settings = replace(policies.settings, **stated_limits(config))
    wider = settings.wider_than(policies.ceilings)
    if wider:
        name, key = wider[0], limit_key(wider[0])
        asked, most = getattr(settings, name), getattr(policies.ceilings, name)
        message = f"{key} is {asked} ({config.source_of(key)}), above the ceiling of {policies.name}: {most}"
        raise BadConfig(f"{message}; set it lower", field=key)
    ceilings = policies.ceilings
    if config.images:
        allowed = frozenset(config.images)
        ceilings = replace(ceilings, images=allowed if ceilings.images is None else ceilings.images & allowed)
    return replace(policies, settings=settings, ceilings=ceilings)


def accepts_weaker_limits(config: Config, *, person: bool) -> bool:
    """`person`: somebody's own run on their own machine, not a server's."""
    accepted = (WeakerLimits.ALWAYS, WeakerLimits.PERSON) if person else (WeakerLimits.ALWAYS,)
    return config.jail_accept_weaker_limits in accepted


def choice_for(config: Config) -> Choice:
    """Without a way out: that is for engines that run something."""
    return Choice(
        preload=config.preload,
        rootfs=str(config.jail_rootfs) if config.jail_rootfs else None,
        cgroup_parent=config.jail_cgroup_parent,
        uid_base=config.jail_uid_base,
        docker_host=config.docker_host,
        docker_context=config.docker_context,
        image=config.default_image,
        languages=_languages(config),
        runtimes={"docker": config.docker_runtime, "gvisor": config.gvisor_runtime},
    )


def egress_for(config: Config) -> Egress:
    return Egress(
        quota=Quota(config.network_max_connections, config.network_max_mb), secrets=secrets_for(config)
    )


def secrets_for(config: Config) -> tuple[Secret, ...]:
    """BadConfig where their file cannot be read or makes no sense."""
    return secrets.load(config.network_secrets) if config.network_secrets else ()


def usable_secrets(config: Config) -> Callable[[Network, Owner], tuple[str, ...]]:
    return partial(secrets.usable, secrets_for(config))


async def engine_for(config: Config) -> Engine:
    """The engine that the configuration names, once its probe has passed."""
    return await engines.choose(config.engine, replace(choice_for(config), way_out=egress_for(config)))


def workspace_root(config: Config) -> Path:
    """Where a setting says, as this system writes it; else in the data directory."""
    if not (config.workspace_root_win or config.workspace_root_wsl):
        return config.data_dir / "workspace"
    root = Path(
        host_paths(
            Environment(config.runtime_mode),
            detected=detect_environment(sys.platform, platform.release()),
            workspace_root_win=config.workspace_root_win,
            workspace_root_wsl=config.workspace_root_wsl,
        ).host_path_native
    )
    if not root.is_absolute():
        message = f"{root} is no path of this system; set sandbox.runtime_mode to auto"
        raise BadConfig(message, field="runtime_mode")
    return root


def packages_for(config: Config) -> Packages:
    """What installs packages for runs, and keeps them for the next."""
    from belljar.execution.packages import Packages, Supply  # most runs have none
    from belljar.execution.stock import Stock

    supply = Supply(
        index_url=config.packages_index_url,
        file_hosts=config.packages_file_hosts,
        allowed_ips=config.packages_allowed_ips,
        wheelhouse=config.packages_wheelhouse,
        timeout_s=config.packages_timeout_seconds,
        max_mb=config.packages_max_mb,
    )
    return Packages(supply, Stock(config.data_dir / "packages", config.packages_cache_mb))


def images_of(config: Config) -> dict[str, str]:
    """Every image that a run may use, and what for."""
    uses: dict[str, list[str]] = {config.default_image: ["default"]}
    for language, image in _languages(config).items():
        uses.setdefault(image, []).append(language)
    for image in config.images:
        uses.setdefault(image, []).append("requests")
    return {image: ", ".join(what) for image, what in uses.items()}


def _languages(config: Config) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in config.docker_languages)
