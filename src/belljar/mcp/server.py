"""`sandbox.run`, `sandbox.health` and `skill.<id>` as MCP tools; what runs left as resources.

The SDK's plain `Server` and not its `MCPServer`: the skills, and so the tools, are for the service to say,
for each caller anew, with schemas that are data. And a call that has to wait for a person can keep the id of
its run in `request_state`, so that asking again finds the run instead of starting another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import mcp_types as types
from mcp.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from belljar import __version__
from belljar.client import AsyncClient, Result
from belljar.errors import BadRequest, BelljarError, NotFound
from belljar.mcp import resources
from belljar.mcp.calls import Context, check, follow, run_view, said, skill_view, told

if TYPE_CHECKING:
    from belljar.client.wire import RunOptions

__all__ = ["create_server"]

_T = TypeVar("_T")

Connect = Callable[[Any], AsyncClient]
"""A client with the caller's own token, from the HTTP request that carried the message; None on stdio."""

INSTRUCTIONS = (
    "sandbox.run runs a program in a sealed jar: no network, limits, nothing kept without persist_work. "
    "Files that a program leaves come back as resources."
)
SKILL = "skill."
FILES = "_files"
"""The argument of every skill that is not one of its own inputs."""

_TEXT = {"type": "string"}
_COUNT = {"type": "integer"}
_MAYBE_COUNT = {"type": ["integer", "null"]}
_FLAG = {"type": "boolean"}

RUN_INPUTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "code": {**_TEXT, "description": "The program."},
        "language": {**_TEXT, "enum": ["python", "bash", "javascript", "typescript"], "default": "python"},
        "files": {
            "type": "object",
            "additionalProperties": _TEXT,
            "description": "Text files to put where the program starts, by relative path.",
        },
        "args": {"type": "array", "items": _TEXT},
        "stdin": _TEXT,
        "env": {"type": "object", "additionalProperties": _TEXT},
        "timeout_s": {"type": "number", "exclusiveMinimum": 0},
        "project_id": _TEXT,
        "persist_work": {**_FLAG, "description": "Begin with the project's files, and keep what is changed."},
    },
    "required": ["code"],
    "additionalProperties": False,
}
_FILES: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        FILES: {
            "type": "object",
            "additionalProperties": _TEXT,
            "description": "Text files for the skill, by path below /workspace/inputs.",
        }
    },
}
_RUN_OUTPUTS: Mapping[str, Mapping[str, Any]] = {
    "exec_id": _TEXT,
    "verdict": _TEXT,
    "exit_code": _MAYBE_COUNT,
    "signal": _MAYBE_COUNT,
    "timed_out": _FLAG,
    "stdout": _TEXT,
    "stderr": _TEXT,
    "truncated": {"type": "object", "properties": {"stdout": _FLAG, "stderr": _FLAG}},
    "duration_ms": _COUNT,
    "artifacts": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"path": _TEXT, "size": _COUNT, "sha256": _TEXT, "mime": _TEXT, "uri": _TEXT},
        },
    },
}


def _outputs(**more: Mapping[str, Any]) -> dict[str, Any]:
    properties = {**_RUN_OUTPUTS, **more}
    return {"type": "object", "properties": properties, "required": list(properties)}


_IN_A_JAR = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
RUN = types.Tool(
    name="sandbox.run",
    title="Run a program",
    description="Run a program in a sealed jar without network; get what it printed and the files it left.",
    input_schema=dict(RUN_INPUTS),
    output_schema=_outputs(),
    annotations=_IN_A_JAR,
)
HEALTH = types.Tool(
    name="sandbox.health",
    title="Health of the sandbox",
    description="Whether programs can be run now, by which engine, and how many run and wait.",
    input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    output_schema={"type": "object"},
    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)


def create_server(connect: Connect) -> Server[dict[str, Any]]:
    """An MCP server that does everything as the client that `connect` gives for a request."""

    async def list_tools(ctx: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        skills = await _or_error(connect(ctx.request).skills())
        return types.ListToolsResult(tools=[RUN, HEALTH, *map(_skill_tool, skills)])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        client, given = connect(ctx.request), params.arguments or {}
        try:
            if params.name == HEALTH.name:
                return _health(await client.sandbox_health())
            if params.name == RUN.name:
                return told(await _run(ctx, client, given))
            if params.name.startswith(SKILL):
                return told(await _invoke(ctx, client, params.name.removeprefix(SKILL), given))
            raise NotFound(f"there is no tool {params.name!r}", field="name")
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
    # What a client keeps for us between two rounds of a call is sealed: it can neither read nor forge it.
    server.middleware.append(
        RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="belljar")
    )
    return server


async def _run(ctx: Context, client: AsyncClient, given: Mapping[str, Any]) -> Mapping[str, Any]:
    check(given, RUN_INPUTS)
    options = cast("RunOptions", {name: given[name] for name in given.keys() - {"code", "language"}})
    events = client.stream(given["code"], given.get("language", "python"), **options)
    result = await follow(ctx, client, events)
    assert isinstance(result, Result)
    return run_view(result)


async def _invoke(
    ctx: Context, client: AsyncClient, skill_id: str, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    check(given, _FILES)
    inputs = {name: value for name, value in given.items() if name != FILES}
    events = client.invoke_stream(skill_id, inputs=inputs, files=given.get(FILES, {}))
    answer = await follow(ctx, client, events)
    assert isinstance(answer, Mapping)
    return skill_view(answer)


def _skill_tool(skill: Mapping[str, Any]) -> types.Tool:
    inputs = dict(skill["inputs"])
    inputs["properties"] = {**inputs.get("properties", {}), **_FILES["properties"]}
    outputs = {"anyOf": [skill["outputs"], {"type": "null"}]}
    return types.Tool(
        name=f"{SKILL}{skill['id']}",
        title=skill["name"],
        description=skill["description"],
        input_schema=inputs,
        output_schema=_outputs(status=_TEXT, reason={"type": ["string", "null"]}, outputs=outputs),
        annotations=_IN_A_JAR,
    )


def _health(answer: Mapping[str, Any]) -> types.CallToolResult:
    text = f"{answer.get('status')}: engine {answer.get('engine')}, {answer.get('running')} running"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=dict(answer)
    )


async def _or_error(work: Awaitable[_T]) -> _T:
    """For what has no result to put an error into."""
    try:
        return await work
    except BelljarError as error:
        code = types.INVALID_PARAMS if isinstance(error, NotFound | BadRequest) else types.INTERNAL_ERROR
        raise MCPError(code=code, message=f"{error.code}: {error.message}") from error
