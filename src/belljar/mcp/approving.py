"""A run that waits for a person, asked about where the caller is: in the MCP host, by elicitation.

    the run waits ─► may this token decide, and can the host ask? ─► no: the call ends, the run waits on
                          │ yes
                          ▼
                     the host asks ─► accept with `approve` ─► approved or denied, as `approve` says
                                   ├► decline ─► denied
                                   └► cancel, or no answer one can read ─► the call ends, the run waits on

In protocols with a handshake the host is asked during the call. Since 2026-07-28 the call ends with the
question, and is made again with the answer; `request_state`, which the client can neither read nor forge,
says which run it was and what was shown. Either way the answer is only a word to the service, said with the
caller's token. The service decides what it counts for, and that of an agent's token counts for nothing.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from belljar.client import AsyncClient, Event
from belljar.errors import BelljarError, Conflict, Forbidden
from belljar.mcp.calls import Context, Progress, ToolCall, Waiting, cancelled_together, follow
from belljar.wording import printable

__all__ = ["Unfinished", "run_to_end"]

_T = TypeVar("_T")

Begin = Callable[[str], AsyncGenerator[Event | _T, None]]
"""Starts the run of this request_id, or finds the one that is, and tells of it."""

MAX_LINES = 60
"""Of a program in the question; `belljar approvals show` has all of it."""
MAX_LINE = 200
"""As `printable` cuts it."""
MAX_FINDINGS = 20
_DIGEST_CHARS = 16
_KEY = "approval"
_LINE_END = re.compile(r"\r\n|\n|\r")
"""As the readers count lines."""
_BESIDES = (
    "skill_id",
    "args",
    "working_dir",
    "env_keys",
    "files",
    "inputs",
    "session_id",
    "session_files",
    "stdin",
)
_FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Let it run", "default": False},
        "reason": {"type": "string", "title": "Why; the record says it", "maxLength": 1000},
    },
    "required": ["approve"],
}


class Unfinished(Exception):
    """The call ends before its run does; `answer` is what it ends with."""

    def __init__(self, answer: types.CallToolResult | types.InputRequiredResult) -> None:
        super().__init__("a person has to decide")
        self.answer = answer


async def run_to_end(call: ToolCall, begin: Begin[_T], id_name: str = "request_id") -> _T:
    """The end of a run, about which a person is asked on the way if one has to be. `id_name` is the argument
    by which a later call finds the run.

    Raises:
        Unfinished: the run waits for a person.
        ApprovalDenied: somebody said no.
    """
    ctx, client, params = call
    progress = Progress(ctx)
    request_id = call.given.get(id_name) or secrets.token_hex(16)
    answer, seen = None, ""
    if params.request_state is not None:
        request_id, _, seen = params.request_state.rpartition(" ")
        answer = (params.input_responses or {}).get(_KEY)
    while isinstance(end := await follow(progress, client, begin(request_id)), Waiting):
        shown, again = end.shown, {id_name: request_id}
        if answer is None:
            # Nobody is asked whose answer would not count.
            if not (_can_ask(ctx) and shown["may_decide"]):
                raise Unfinished(_waits(shown, again))
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                raise Unfinished(_to_be_asked(shown, request_id))
            answer, seen = await _asked_now(ctx, client, shown), str(shown["digest"])
        if answer is not None:
            if (why := await _left_undecided(client, shown["id"], seen, answer)) is not None:
                raise Unfinished(_waits(shown, again, why))
            answer = None
    return end


def _can_ask(ctx: Context) -> bool:
    told = ctx.session.client_capabilities
    if told is None or told.elicitation is None:
        return False
    # Of the first hosts that could ask, none said by what; it is a form.
    has_forms = told.elicitation.form is not None or told.elicitation.url is None
    return has_forms and (ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or ctx.session.can_send_request)


def _to_be_asked(shown: Mapping[str, Any], request_id: str) -> types.InputRequiredResult:
    form = types.ElicitRequestFormParams(message=_question(shown), requested_schema=dict(_FORM))
    return types.InputRequiredResult(
        input_requests={_KEY: types.ElicitRequest(params=form)},
        request_state=f"{request_id} {shown['digest']}",
    )


async def _asked_now(
    ctx: Context, client: AsyncClient, shown: Mapping[str, Any]
) -> types.ElicitResult | None:
    """What the host's person says; None if somebody else has decided before."""
    exec_id = str(shown["exec_id"])
    answer = None
    async with cancelled_together(client, exec_id), anyio.create_task_group() as group:

        async def watch() -> None:
            with suppress(BelljarError):
                await _decided(client, exec_id)
                group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            answer = await ctx.session.elicit_form(_question(shown), dict(_FORM), ctx.request_id)
        except (MCPError, ValidationError):
            answer = types.ElicitResult(action="cancel")
        group.cancel_scope.cancel()
    return answer


async def _decided(client: AsyncClient, exec_id: str) -> None:
    async with aclosing(client.events(exec_id)) as events:
        async for event in events:
            if event.kind != "pending_approval":
                return


async def _left_undecided(
    client: AsyncClient, approval_id: str, seen: str, answer: types.InputResponse
) -> str | None:
    """Does as they said. If that was neither yes nor no, or is not theirs to say, why; else None."""
    yes, reason = _understood(answer)
    if yes is None:
        return ""
    say = client.approvals.approve if yes else client.approvals.deny
    try:
        await say(approval_id, digest=seen, reason=f"said in an MCP host: {reason}".removesuffix(": "))
    except Conflict:
        pass  # somebody else was faster; what they said is what counts
    except Forbidden as error:
        return error.message
    return None


def _understood(answer: types.InputResponse) -> tuple[bool | None, str]:
    """Yes, no or neither, and why."""
    if not isinstance(answer, types.ElicitResult) or answer.action == "cancel":
        return None, ""
    content = answer.content or {}
    reason = str(content.get("reason") or "")
    if answer.action == "decline":
        return False, reason
    said = content.get("approve")
    return (said if isinstance(said, bool) else None), reason


# In words


def _question(shown: Mapping[str, Any]) -> str:
    """All of it but our own words is hostile. It is on lines of its own that begin with four spaces: to a
    host that shows Markdown that is code, in which nothing acts."""
    program = shlex.join(shown["command"]) if shown.get("command") else shown.get("code") or ""
    lines = _LINE_END.split(program)
    numbered = [f"{number:>4}  {line}" for number, line in enumerate(lines[:MAX_LINES], 1)]
    besides = [f"{name}: {shown[name]}" for name in _BESIDES if shown.get(name)]
    shortened = len(lines) > MAX_LINES or any(len(line) > MAX_LINE for line in (*numbered, *besides))
    where = f"`belljar approvals show {shown['id']}` has everything"
    return "\n".join(
        [
            f"May this run? Its risk is {shown['tier']}. What was found in it:",
            *_block(_findings(shown["findings"])),
            "The program, and what it is given:",
            *_block([*numbered, *besides]),
            f"This is NOT ALL of it: {where}." if shortened or not shown["complete"] else f"{where}.",
            f"A yes is to the digest {shown['digest'][:_DIGEST_CHARS]}…, and for one run.",
        ]
    )


def _findings(findings: Any) -> Iterator[str]:
    yield from (f"line {one['line']}: {one['reason']} ({one['tier']})" for one in findings[:MAX_FINDINGS])
    if not findings:
        yield "nothing; it is the tool that needs a yes"
    if len(findings) > MAX_FINDINGS:
        yield f"and {len(findings) - MAX_FINDINGS} more"


def _block(lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield from (f"    {printable(line)}" for line in lines)
    yield ""


def _waits(shown: Mapping[str, Any], again: Mapping[str, str], why: str = "") -> types.CallToolResult:
    found = "; ".join([f"the risk is {shown['tier']}", *map(printable, shown["reasons"])])
    [(id_name, request_id)] = again.items()
    sentences = [
        f"APPROVAL_NEEDED: a person has to decide: {found}.",
        f"{why}." if why else "",
        f"They do by `belljar approvals approve {shown['id']}` (or `deny`), or on the service's page.",
        f"After that, the same call with {id_name} {request_id!r} gives the result.",
    ]
    facts = {name: shown[name] for name in ("exec_id", "tier", "digest", "expires_at")}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=" ".join(filter(None, sentences)))],
        structured_content={"status": "pending_approval", "approval_id": shown["id"], **facts, **again},
        is_error=True,
    )
