"""A jar whose inside is our guest: what an engine gives back, once it gave it a link and the facts that only
a host can see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from belljar.engines.base import Area, Collected, Command
from belljar.engines.following import PATIENCE_S, Following
from belljar.engines.link import Link, collect, put
from belljar.engines.proxies import PORT, certificates_environment, proxy_environment, proxy_files
from belljar.engines.tunnels import MAX_OPEN, NO_WAY_OUT, Tunnels, WayOut
from belljar.engines.watch import Push
from belljar.errors import EngineUnavailable, GrantNotEnforceable
from belljar.guest import protocol
from belljar.models import Event, Grant, InputFile, Limits, Owner


class GuestJar:
    owner: Owner | None = None

    def __init__(
        self,
        grant: Grant,
        link: Link,
        *,
        base_env: Mapping[str, str],
        held_by: Mapping[str, str],
        counters: Callable[[], Mapping[str, int]],
        kill: Callable[[], None],
        kill_programs: Callable[[], None] = lambda: None,
        destroy: Callable[[], Awaitable[None]],
        timings: Mapping[str, float],
        way_out: WayOut | None = None,
    ) -> None:
        self.link = link
        self.assign(grant)
        self._base_env = base_env
        self.held_by = held_by
        self._way_out = way_out
        self._counters = counters
        self._kill = kill
        self._kill_programs = kill_programs
        self._destroy = destroy
        self._following: Following | None = None
        self.posture = ""
        """Digest of what the live jar was found to be; set by the engine before anything is run."""
        self.timings = timings
        """Seconds that each part of making it took."""
        self._destroyed: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self.link.lost is None and self._destroyed is None

    def assign(self, grant: Grant) -> None:
        self.grant = grant
        self.link.expect((grant.limits.stdout_kb + grant.limits.stderr_kb) << 10)

    def counters(self) -> Mapping[str, int]:
        carried = self.link.tunnels.counters() if self.link.tunnels is not None else {}
        return {**self._counters(), **carried}

    async def settle(self) -> None:
        """When its guest is gone: until `counters` tell why, where that takes more than to read them."""

    async def open_network(self) -> None:
        """Where the grant has one: the guest listens, and what it hears comes to a gate of the grant's rules.

        After the jar was checked and before anything is run in it.
        """
        if not self.grant.network.enabled:
            return
        if self._way_out is None:
            raise GrantNotEnforceable(NO_WAY_OUT, field="network")
        limits = self.grant.limits
        # A quarter of the guest's descriptors, and with full windows an eighth of the jar's memory.
        most = max(1, min(MAX_OPEN, limits.nofile // 4, limits.memory_mb))
        gate = self._way_out.gate(self.grant.network)
        certificate = gate.certificate
        self.link.tunnels = Tunnels(self.link, gate, most)
        stream = self.link.open("network", port=PORT, most=most, files=proxy_files(), certificate=certificate)
        try:
            async with asyncio.timeout(PATIENCE_S):
                error = (await self.link.next(stream)).json().get("error")
        except (TimeoutError, protocol.ProtocolError) as broken:
            raise EngineUnavailable("the jar did not open its way out") from broken
        if error:
            raise GrantNotEnforceable(f"the jar has no way out: {error}", field="network")
        trust = certificates_environment() if certificate else {}
        self._base_env = {**self._base_env, **proxy_environment(), **trust}

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        await put(self.link, area, files, self.grant.limits)

    async def exec(self, command: Command) -> AsyncIterator[Event]:
        if self._destroyed is not None:
            raise EngineUnavailable("the jar was destroyed")
        before = self.counters()
        stream = self.link.open("exec", command.stdin, **self.order(command, self.grant.limits))
        following = self._following = Following(
            self, stream, command.stdin, before, self._push, self.link.tunnels
        )
        try:
            async for event in following.events():
                yield event
        finally:
            self._following = None
            if not following.ended:
                await self.destroy()

    def order(self, command: Command, limits: Limits) -> dict[str, Any]:
        """What the guest is told of a program."""
        return {
            "argv": command.argv,
            "warm": command.warm,
            "env": {**self._base_env, **command.env},
            "cwd": command.cwd,
            "stdout_cap": limits.stdout_kb << 10,
            "stderr_cap": limits.stderr_kb << 10,
        }

    def cancel(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def collect(self, paths: Sequence[str] | None) -> Collected:
        return await collect(self.link, paths, self.grant.limits)

    async def destroy(self) -> None:
        if self._destroyed is None:
            self._destroyed = asyncio.create_task(self._take_away())
        await asyncio.shield(self._destroyed)

    async def _take_away(self) -> None:
        self._kill()
        self.link.close()
        await self._destroy()

    def _push(self, how: Push) -> None:
        """Called by a clock, whether anyone reads the events or not."""
        if how is Push.DESTROY:
            self._kill()
            self.link.fail("the guest does not answer")
        else:
            if how is Push.KILL:
                self._kill_programs()  # the guest may be starved by what it is to kill
            self.link.let("signal", signal=how.value)
