"""`/sandbox/sessions/{id}/terminal`: a shell over a WebSocket; and what is typed at, or sent to, a run.

    binary   what is typed; what is shown
    text     JSON: `{"resize": [rows, columns]}` and `{"signal": "SIGINT"}` from the caller,
             `{"exit_code", "signal"}` at the end from us

Nothing piles up: what is typed waits for the program, what it shows for the caller. The door sees the request
for a WebSocket as a GET like any other, so token, Host, Origin and role are where they are for every call.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from belljar.api.answers import json_answer
from belljar.api.bodies import Body
from belljar.api.calls import Call
from belljar.api.errors import WrongRequest
from belljar.api.sessions import open_session
from belljar.engines.kept import MAX_FED, Seat, Terminal
from belljar.errors import BadRequest, BelljarError, LimitExceeded, NotFound, Refused
from belljar.execution import terminals
from belljar.execution.live import LiveRun
from belljar.execution.session import Session
from belljar.policy.roles import SHELL_EXEC

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

__all__ = ["SOCKET", "SignalBody", "as_call", "send_signal", "stdin", "terminal"]

SOCKET = "belljar.socket"
"""Where a call has its WebSocket, if it is for one."""
_KIND = re.compile(r"[a-z][a-z0-9.+-]{0,31}")
_MOST = 4096
_SIGNALS = {
    name: signal.Signals[name]
    for name in (
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGTERM",
        "SIGKILL",
        "SIGUSR1",
        "SIGUSR2",
        "SIGTSTP",
        "SIGCONT",
    )
}


class _Socket(NamedTuple):
    receive: Receive
    send: Send


class SignalBody(Body):
    signal: str


def as_call(scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
    """The request for a WebSocket as an HTTP call; what is answered to that is a refusal of the WebSocket."""

    async def deny(message: Message) -> None:
        await send({**message, "type": message["type"].replace("http.", "websocket.http.", 1)})

    return {**scope, "type": "http", "method": "GET", SOCKET: _Socket(receive, send)}, receive, deny


async def terminal(call: Call) -> Response:
    asked = call.asked(("rows", "columns", "term"))
    rows, columns = _size(asked, "rows", 24), _size(asked, "columns", 80)
    kind = asked.get("term", "xterm")
    if not _KIND.fullmatch(kind):
        raise BadRequest("term is the name of a terminal such as xterm-256color", field="term")
    session = await open_session(call)
    if SOCKET not in call.scope:
        raise WrongRequest(426, "a terminal is a WebSocket", field="Upgrade", upgrade="websocket")
    return _Line(call, session, rows, columns, kind)


class _Line(Response):
    def __init__(self, call: Call, session: Session, rows: int, columns: int, kind: str) -> None:
        super().__init__()
        self._call = call
        self._session = session
        self._size = rows, columns
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, session = self._call, self._session
        rows, columns = self._size
        socket: _Socket = scope[SOCKET]
        async with terminals.terminal(
            call.service.lifecycle,
            session,
            rows=rows,
            columns=columns,
            kind=self._kind,
            role=call.caller.agent_role,
            tool=SHELL_EXEC,
            token_id=call.caller.id,
        ) as terminal:
            await socket.send({"type": "websocket.accept"})
            typing = asyncio.create_task(self._type(socket, terminal))
            showing = asyncio.create_task(self._show(socket, terminal))
            try:
                await asyncio.wait((typing, showing), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (typing, showing):
                    task.cancel()
                await asyncio.gather(typing, showing, return_exceptions=True)

    async def _show(self, socket: _Socket, terminal: Terminal) -> None:
        reason = ""
        try:
            async for data in terminal.output():
                await self._send(socket, {"type": "websocket.send", "bytes": data})
        except BelljarError:
            reason = self._session.reason or "the session is gone"
        last = {"exit_code": terminal.exit_code, "signal": terminal.signal}
        await self._send(socket, {"type": "websocket.send", "text": json.dumps(last)})
        await self._send(
            socket, {"type": "websocket.close", "code": 1011 if reason else 1000, "reason": reason}
        )

    async def _send(self, socket: _Socket, message: Message) -> None:
        async with asyncio.timeout(self._call.desk.patience.stalled_s):
            await socket.send(message)

    async def _type(self, socket: _Socket, terminal: Terminal) -> None:
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            self._session.used()
            try:
                if message.get("bytes") is not None:
                    await terminal.type(message["bytes"])
                elif message.get("text") is not None:
                    self._session.check_free()  # a signal could let go on what has to stand still
                    await _obey(message["text"], terminal)
            except BelljarError as error:
                close = {"type": "websocket.close", "code": 1008, "reason": error.message[:120]}
                await self._send(socket, close)
                return


async def _obey(text: str, terminal: Terminal) -> None:
    try:
        order = json.loads(text)
        if set(order) == {"resize"}:
            rows, columns = order["resize"]
            if not (isinstance(rows, int) and isinstance(columns, int) and 0 < rows <= _MOST >= columns > 0):
                raise ValueError
            await terminal.resize(rows, columns)
        elif set(order) == {"signal"}:
            await terminal.send_signal(_SIGNALS[order["signal"]])
        elif order:
            raise ValueError
    except (LookupError, TypeError, ValueError, RecursionError):
        raise BadRequest("a text is resize, with rows and columns, or signal, with its name") from None


async def stdin(call: Call) -> Response:
    """More for a run to read that was begun with `stdin_open`."""
    asked = call.asked(("end",))
    if asked.get("end", "false") not in ("true", "false"):
        raise BadRequest("end is true or false", field="end")
    live, seat = await _running(call)
    if live.submission.surroundings is not None:
        raise Refused("a person approved this run; what is typed at it later was not shown", field="exec_id")
    data = bytes(await call.read_bytes()) if call.has_body else b""
    if len(data) > MAX_FED:
        raise LimitExceeded(f"at most {MAX_FED} bytes are taken at a time", field="body")
    await seat.feed(data, end=asked.get("end") == "true")
    return json_answer({"taken": len(data)})


async def send_signal(call: Call) -> Response:
    """To the program of a run and what it started."""
    body = await call.said(SignalBody)
    if body.signal not in _SIGNALS:
        raise BadRequest(f"signal is one of {', '.join(_SIGNALS)}", field="signal")
    _, seat = await _running(call)
    await seat.send_signal(_SIGNALS[body.signal])
    return json_answer({"signal": body.signal})


async def _running(call: Call) -> tuple[LiveRun, Seat]:
    session = await open_session(call)
    live = session.live.get(call.path_params["exec_id"])
    if live is None or not isinstance(live.jar, Seat):
        raise NotFound("no such run goes on in this session", field="exec_id")
    session.used()
    return live, live.jar


def _size(asked: Mapping[str, Any], name: str, otherwise: int) -> int:
    text = asked.get(name, str(otherwise))
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 0 < int(text) <= _MOST):
        raise BadRequest(f"{name} is a number from 1 to {_MOST}", field=name)
    return int(text)
