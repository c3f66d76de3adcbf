"""`AsyncApprovals`: what waits for a person, and a person's word on it, by the service's HTTP door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.client import wire

if TYPE_CHECKING:
    from belljar.client.asynchronous import AsyncClient

__all__ = ["AsyncApprovals"]

_ROUTE = "/approvals"


class AsyncApprovals:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(
        self, *, state: str | None = None, project_id: str | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Newest first; those that wait, if no other state is asked for."""
        answer = await self._client._json("GET", wire.query(_ROUTE, state=state, project_id=project_id))
        return self._client._understood(wire.rows("approvals"), answer)

    async def show(self, approval_id: str) -> Mapping[str, Any]:
        """All that a person needs to decide. The `digest` is what a yes is bound to."""
        return await self._client._json("GET", wire.path(_ROUTE, approval_id))

    async def approve(
        self, approval_id: str, *, reason: str = "", remember_days: float = 0, digest: str | None = None
    ) -> Mapping[str, Any]:
        """Let it run; with `digest`, only if it is what was seen; for some days, whenever it is asked again.

        Raises:
            Forbidden: this is not theirs to decide.
            Conflict: it is decided already, or is not what was seen.
        """
        more = {"remember_days": remember_days, "digest": digest}
        return await self._decide(approval_id, "approve", reason, **more)

    async def deny(
        self, approval_id: str, *, reason: str = "", digest: str | None = None
    ) -> Mapping[str, Any]:
        return await self._decide(approval_id, "deny", reason, digest=digest)

    async def _decide(
        self, approval_id: str, decision: str, reason: str, **more: object
    ) -> Mapping[str, Any]:
        body = {"decision": decision, "reason": reason, **more}
        # The same word twice counts once; what is remembered for days is said once only.
        once = bool(more.get("remember_days"))
        return await self._client._json("POST", wire.path(_ROUTE, approval_id), body, once=once)
