"""One call of a route: who calls, what the body says, and what may be asked of the service for it.

The body is read here and nowhere else: as it arrives, within a size, a time and the memory that all bodies
share, then as strict JSON, then as the model of the route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request

from belljar.api import strictjson
from belljar.api.bodies import Body, checked
from belljar.api.desk import Desk
from belljar.api.errors import WrongRequest
from belljar.audit.records import ExecRecord
from belljar.errors import BadRequest, Forbidden, LimitExceeded, NotFound
from belljar.execution.workspace import check_project_id
from belljar.service import Service
from belljar.tokens import Role, Token
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["Call"]

_ID_CHARS = 200

_Model = TypeVar("_Model", bound=Body)


class Call(Request):
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.desk: Desk = scope["belljar.desk"]
        self.service: Service = self.desk.service
        self._held = 0

    @property
    def caller(self) -> Token:
        token: Token = self.scope["belljar.caller"]
        return token

    @property
    def is_operator(self) -> bool:
        return self.caller.role is Role.OPERATOR

    # What it says

    async def said(self, model: type[_Model]) -> _Model:
        """The body as the route's model.

        Raises:
            BadRequest: and what is under it, with the field at fault.
            QueueFull: there is no memory for it now.
        """
        value = strictjson.loads(await self.read(), max_bytes=self.desk.max_body_bytes)
        request_id = value.get("request_id")
        if isinstance(request_id, str) and len(request_id) <= _ID_CHARS:
            self.scope["belljar.request_id"] = request_id
        return checked(model, value)

    async def no_body(self) -> None:
        """For a route whose path says it all; an empty object is nothing too."""
        if self.has_body:
            await self.said(Body)

    def asked(self, known: Iterable[str]) -> dict[str, str]:
        """The parameters of the query, each of them known and there once."""
        found: dict[str, str] = {}
        for name, value in self.query_params.multi_items():
            if name not in known:
                raise BadRequest(f"unknown parameter {quoted(name)}{nearest(name, known)}", field=name[:64])
            if name in found:
                raise BadRequest(f"the parameter {name} is given twice", field=name)
            found[name] = value
        return found

    def keep_until(self, task: asyncio.Task[None]) -> None:
        """What the body takes in memory stays taken until then."""
        held, self._held = self._held, 0
        task.add_done_callback(lambda _: self.desk.intake.give_back(held))

    def let_go(self) -> None:
        self.desk.intake.give_back(self._held)
        self._held = 0

    # What may be asked for it

    def project(self, *given: str | None) -> str:
        """The first that is given, else the token's only one, else `default`; if the token is for it."""
        own = self.caller.projects
        only = own[0] if own is not None and len(own) == 1 else "default"
        project_id = next((name for name in given if name is not None), only)
        if not self.caller.sees(check_project_id(project_id)):
            raise Forbidden("this token is not for that project", field="project_id")
        return project_id

    async def record(self, exec_id: str | None = None) -> ExecRecord:
        """Of the run that the path names. One that is not the caller's is as absent as none."""
        record = await self.service.store.get(exec_id or self.path_params["exec_id"])
        if record is None or not self.caller.sees(record.project_id):
            raise NotFound("there is no run of that id", field="exec_id")
        return record

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    async def read(self) -> bytearray:
        """The body as it is; once."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise WrongRequest(415, "the body must be application/json", field="Content-Type")
        return await self.read_bytes()

    async def read_bytes(self) -> bytearray:
        """The body, of whatever type."""
        if "content-encoding" in self.headers:
            raise WrongRequest(415, "the body must not be encoded", field="Content-Encoding")
        length = self.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self.desk.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.desk.patience.body_s):
                async for chunk in self.stream():
                    if len(body) + len(chunk) > self.desk.max_body_bytes:
                        raise self._too_large()
                    self.desk.intake.take(len(chunk))
                    self._held += len(chunk)
                    body += chunk
        except TimeoutError:
            raise WrongRequest(408, "the body did not come in time", field="body") from None
        self.scope["belljar.body_read"] = True
        return body

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded(f"the body is larger than {self.desk.max_body_bytes} bytes", field="body")
