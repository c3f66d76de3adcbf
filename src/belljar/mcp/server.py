"""belljar's tools on an MCP server, and what runs left as resources.

The SDK's plain `Server` and not its `MCPServer`: the skills, and so the tools, are for the service to say,
for each caller anew, with schemas that are data.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import mcp_types as types
from mcp.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from belljar import __version__
from belljar.client import AsyncClient, Event, Result
from belljar.errors import BadRequest, BelljarError, NotFound
from belljar.mcp import resources, sessions
from belljar.mcp.approving import Unfinished, run_to_end
from belljar.mcp.calls import Context, ToolCall, answer, check, run_view, said, skill_view, told
from belljar.mcp.schemas import FLAG, PROGRAM, REQUEST_ID, TEXT, TEXTS, inputs, run_outputs

if TYPE_CHECKING:
    from belljar.client.wire import RunOptions

__all__ = ["create_server"]

_T = TypeVar("_T")

Connect = Callable[[Any], AsyncClient]
"""A client with the caller's own token, from the HTTP request that carried the message; None on stdio."""

INSTRUCTIONS = (
    "sandbox.run runs a program in a sealed jar: no network, limits, nothing kept without persist_work. "
    "session.start keeps one for several calls of session.run. "
    "Files that a program leaves come back as resources. Some programs have to wait for a person's yes."
)
ANSWER_WITHIN_S = 3600.0
"""A person who is asked between two rounds of a call; who takes longer decides elsewhere."""
SKILL = "skill."
SKILL_FILES = "_files"
SKILL_REQUEST_ID = "_request_id"
"""Arguments of every skill that are not its own inputs."""

_OF_A_SKILL: Mapping[str, Mapping[str, Any]] = {
    SKILL_FILES: {**TEXTS, "description": "Text files for the skill, by path below /workspace/inputs."},
    SKILL_REQUEST_ID: REQUEST_ID,
}
_IN_A_JAR = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

RUN = types.Tool(
    name="sandbox.run",
    title="Run a program",
    description="Run a program in a sealed jar without network; get what it printed and the files it left.",
    input_schema=inputs(
        {
            **PROGRAM,
            "packages": {
                "type": "array",
                "items": TEXT,
                "description": "To install first for a Python program, such as numpy>=2; where allowed.",
            },
            "project_id": TEXT,
            "persist_work": {
                **FLAG,
                "description": "Begin with the project's files, and keep what is changed.",
            },
        },
        "code",
    ),
    output_schema=run_outputs(),
    annotations=_IN_A_JAR,
)
HEALTH = types.Tool(
    name="sandbox.health",
    title="Health of the sandbox",
    description="Whether programs can be run now, by which engine, and how many run and wait.",
    input_schema=inputs({}),
    output_schema={"type": "object"},
    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)


def create_server(connect: Connect) -> Server[dict[str, Any]]:
    """An MCP server that does everything as the client that `connect` gives for a request."""

    async def list_tools(ctx: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        skills = await _or_error(connect(ctx.request).skills())
        own = [tool for tool, _ in _TOOLS.values()]
        return types.ListToolsResult(tools=[*own, *map(_skill_tool, skills)])

    async def call_tool(
        ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        call = ToolCall(ctx, connect(ctx.request), params)
        try:
            if params.name in _TOOLS:
                tool, do = _TOOLS[params.name]
                check(call.given, tool.input_schema)
                return await do(call)
            if params.name.startswith(SKILL):
                return await _invoke(call)
            raise NotFound(f"there is no tool {params.name!r}", field="name")
        except Unfinished as unfinished:
            return unfinished.answer
        except BelljarError as error:
            return said(error)

    async def list_resources(
        ctx: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return await _or_error(resources.listing(connect(ctx.request)))

    async def read_resource(
        ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await _or_error(resources.read(connect(ctx.request), params.uri))

    async def list_templates(
        ctx: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[resources.TEMPLATE])

    server: Server[dict[str, Any]] = Server(
        "belljar",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_resource_templates=list_templates,
    )
    # What a client keeps for us between two rounds of a call is sealed: it can neither read nor forge it, nor
    # use it for another call or with another token.
    sealed = RequestStateSecurity(
        keys=[secrets.token_bytes(32)], ttl=ANSWER_WITHIN_S, bind_principal=_principal
    )
    server.middleware.append(RequestStateBoundary(sealed, default_audience="belljar"))
    return server


def _principal(ctx: Context) -> str | None:
    return None if ctx.request is None else str(ctx.request.headers["authorization"])


async def _run(call: ToolCall) -> types.CallToolResult:
    given = call.given
    own = {"code", "language", "request_id"}
    options = cast("RunOptions", {name: given[name] for name in given.keys() - own})

    def begin(request_id: str) -> AsyncGenerator[Event | Result, None]:
        named: RunOptions = {**options, "request_id": request_id}
        return call.client.stream(given["code"], given.get("language", "python"), **named)

    return told(run_view(await run_to_end(call, begin)))


async def _invoke(call: ToolCall) -> types.CallToolResult:
    check(call.given, {"type": "object", "properties": _OF_A_SKILL})
    skill_id = call.params.name.removeprefix(SKILL)
    own = {name: value for name, value in call.given.items() if name not in _OF_A_SKILL}
    files = call.given.get(SKILL_FILES, {})

    def begin(request_id: str) -> AsyncGenerator[Event | Mapping[str, Any], None]:
        return call.client.invoke_stream(skill_id, inputs=own, files=files, request_id=request_id)

    return told(skill_view(await run_to_end(call, begin, SKILL_REQUEST_ID)))


def _skill_tool(skill: Mapping[str, Any]) -> types.Tool:
    taken = dict(skill["inputs"])
    taken["properties"] = {**taken.get("properties", {}), **_OF_A_SKILL}
    given = {"anyOf": [skill["outputs"], {"type": "null"}]}
    return types.Tool(
        name=f"{SKILL}{skill['id']}",
        title=skill["name"],
        description=skill["description"],
        input_schema=taken,
        output_schema=run_outputs(status=TEXT, reason={"type": ["string", "null"]}, outputs=given),
        annotations=_IN_A_JAR,
    )


async def _health(call: ToolCall) -> types.CallToolResult:
    found = await call.client.sandbox_health()
    text = f"{found.get('status')}: engine {found.get('engine')}, {found.get('running')} running"
    return answer(found, text)


class _Own(NamedTuple):
    tool: types.Tool
    do: Callable[[ToolCall], Awaitable[types.CallToolResult]]


_TOOLS: Mapping[str, _Own] = {
    own.tool.name: own
    for own in (
        _Own(RUN, _run),
        _Own(HEALTH, _health),
        _Own(sessions.START, sessions.start),
        _Own(sessions.RUN, sessions.run),
        _Own(sessions.FILES, sessions.files),
        _Own(sessions.STOP, sessions.stop),
    )
}


async def _or_error(work: Awaitable[_T]) -> _T:
    """For what has no result to put an error into."""
    try:
        return await work
    except BelljarError as error:
        code = types.INVALID_PARAMS if isinstance(error, NotFound | BadRequest) else types.INTERNAL_ERROR
        raise MCPError(code=code, message=f"{error.code}: {error.message}") from error
