"""The shape of a jar: the part of a grant that is fixed when the jar is made, whatever is run in it later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from belljar.errors import BadRequest
from belljar.models import Grant, Limits, Network
from belljar.policy.asks import request_layer

__all__ = ["check_shape", "shape_of", "shaped"]

_LIMITS = ("memory_mb", "cpu_cores", "pids", "nofile", "workspace_mb", "workspace_files", "tmp_mb")


def shape_of(grant: Grant) -> Grant:
    """What a jar is made of. Grants that differ in the rest (clocks, caps) share jars."""
    return Grant(
        limits=Limits(**{name: getattr(grant.limits, name) for name in _LIMITS}),
        network=grant.network,
        image=grant.image,
        accept_weaker_limits=grant.accept_weaker_limits,
    )


def shaped(grant: Grant, made: Grant) -> Grant:
    """The grant of a run in a jar that is there already, made for another grant.

    Raises:
        BadRequest: the jar has more than the run may have.
    """
    for name in _LIMITS:
        has, most = getattr(made.limits, name), getattr(grant.limits, name)
        if has > most:
            raise BadRequest(
                f"the session has {name} {has:g}, and policy gives this run {most:g}; start one with less",
                field="session_id",
            )
    if not _within(made.network, grant.network):
        message = "the session has more network than policy gives this run; start one with less"
        raise BadRequest(message, field="session_id")
    limits = replace(grant.limits, **{name: getattr(made.limits, name) for name in _LIMITS})
    return replace(
        grant,
        limits=limits,
        network=made.network,
        image=made.image,
        accept_weaker_limits=made.accept_weaker_limits,
    )


def _within(network: Network, most: Network) -> bool:
    """Every rule must allow, so more rules are less network; but the first list of something opens it."""
    if not network.enabled:
        return True
    opened = (_listed(part, network) and not _listed(part, most) for part in ("hosts", "ports", "addresses"))
    return most.enabled and set(most.rules) <= set(network.rules) and not any(opened)


def _listed(part: str, network: Network) -> bool:
    return any(getattr(rules, part) is not None for rules in network.rules)


def check_shape(overrides: Mapping[str, object], made: Grant) -> None:
    """
    Raises:
        BadRequest: a run in a jar that is there already asks for another shape.
    """
    try:
        asked = request_layer(overrides).policy
    except BadRequest:
        return  # for whoever decides on the run to say
    for name in _LIMITS:
        if getattr(asked, name) not in (None, getattr(made.limits, name)):
            message = f"{name} of a session is fixed at its start: {getattr(made.limits, name):g}"
            raise BadRequest(message, field=f"limits.{name}")
    opened = asked.network_access not in (None, made.network.enabled)
    if opened or not set(asked.network_rules) <= set(made.network.rules):
        raise BadRequest("the network of a session is fixed at its start", field="network")
