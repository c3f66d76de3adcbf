"""A run that waits for a person, asked about in the MCP host: whose word counts, and what each word does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest
import pytest_asyncio
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from tests.api.conftest import opened
from tests.api.served import TOKEN, serving
from tests.mcp.conftest import Served
from tests.mcp.hosts import Person, over_http, over_stdio

from belljar.client import AsyncClient
from belljar.engines.jail.engine import JailEngine
from belljar.settings import Profile
from belljar.tokens import Role

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext

RISKY = "import os\nos.system('echo hello')"
CALL = {"code": RISKY}

Connecting = Callable[[Person | None], AbstractAsyncContextManager[Client]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(jail: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("supervised")
    async with (
        opened(folder, JailEngine(), profile=Profile.SUPERVISED) as service,
        serving(service) as port,
    ):
        yield Served(service, port)


@pytest_asyncio.fixture(loop_scope="module")
async def operator(served: Served) -> AsyncIterator[AsyncClient]:
    """Somebody at another place."""
    async with AsyncClient(f"http://127.0.0.1:{served.port}", TOKEN) as client:
        yield client


@pytest.fixture(params=["stdio", "http"])
def connecting(
    request: pytest.FixtureRequest, jail: None, served: Served, tmp_path: Path, mode: str
) -> Connecting:
    """On stdio, a service in the same process: a person's own machine."""
    if request.param == "http":
        return lambda person: over_http(served.port, TOKEN, mode, person)
    return lambda person: over_stdio(tmp_path, mode, person, BELLJAR_PROFILE="supervised")


def text_of(result: types.CallToolResult) -> str:
    return result.content[0].text  # type: ignore[union-attr]


async def test_a_yes_in_the_host_lets_it_run_and_a_no_does_not(connecting: Connecting) -> None:
    person = Person("accept", approve=True)
    async with connecting(person) as client:
        ran = await client.call_tool("sandbox.run", CALL)
        assert ran.structured_content["stdout"] == "hello\n"
        person.change("decline")
        denied = await client.call_tool("sandbox.run", CALL)
        assert denied.is_error
        assert text_of(denied) == "APPROVAL_DENIED: the approval is denied: said in an MCP host"
    assert len(person.asked) == 2


# What follows does not depend on the transport.


async def test_an_accepted_form_without_a_yes_is_a_no(served: Served, mode: str) -> None:
    async with over_http(served.port, TOKEN, mode, Person("accept", approve=False, reason="odd")) as client:
        denied = await client.call_tool("sandbox.run", CALL)
    assert text_of(denied) == "APPROVAL_DENIED: the approval is denied: said in an MCP host: odd"


@pytest.mark.parametrize(
    "person",
    [
        pytest.param(Person("cancel"), id="put off"),
        pytest.param(Person("accept"), id="empty"),
        pytest.param(Person("accept", approve="yes"), id="not a word of ours"),
        pytest.param(None, id="a host that cannot ask"),
    ],
)
async def test_what_is_no_answer_leaves_it_waiting_to_be_found_again(
    served: Served, operator: AsyncClient, mode: str, person: Person | None
) -> None:
    async with over_http(served.port, TOKEN, mode, person) as client:
        left = await client.call_tool("sandbox.run", CALL)
        assert left.is_error
        waits = left.structured_content
        assert waits["status"] == "pending_approval"
        assert f"belljar approvals approve {waits['approval_id']}" in text_of(left)
        assert (await operator.approvals.show(waits["approval_id"]))["state"] == "waiting"

        await operator.approvals.approve(waits["approval_id"])
        again = await client.call_tool("sandbox.run", {**CALL, "request_id": waits["request_id"]})
    assert again.structured_content["exec_id"] == waits["exec_id"]
    assert again.structured_content["stdout"] == "hello\n"


async def test_the_record_says_who_said_it_where_and_why(
    served: Served, operator: AsyncClient, mode: str
) -> None:
    person = Person("accept", approve=True, reason="it only greets")
    async with over_http(served.port, TOKEN, mode, person) as client:
        ran = await client.call_tool("sandbox.run", CALL)
    approval = (await operator.get(ran.structured_content["exec_id"]))["approval"]
    assert approval["decision"] == "approved"
    assert approval["reason"] == "said in an MCP host: it only greets"
    assert approval["digest"][:16] in person.asked[0]


async def test_a_skill_and_a_run_in_a_session_are_asked_about_too(served: Served, mode: str) -> None:
    person = Person("accept", approve=True)
    async with over_http(served.port, TOKEN, mode, person) as client:
        ran = await client.call_tool("skill.python.run", CALL)
        assert "hello" in ran.structured_content["stdout"]
        started = await client.call_tool("session.start", {})
        session = {"session_id": started.structured_content["session_id"]}
        ran = await client.call_tool("session.run", {**session, **CALL})
        assert ran.structured_content["stdout"] == "hello\n"
        await client.call_tool("session.stop", session)
    assert len(person.asked) == 2


async def test_a_skill_that_waits_is_found_by_the_argument_that_its_answer_names(
    served: Served, operator: AsyncClient
) -> None:
    async with over_http(served.port, TOKEN) as client:
        waits = (await client.call_tool("skill.python.run", CALL)).structured_content
        await operator.approvals.approve(waits["approval_id"])
        again = await client.call_tool("skill.python.run", {**CALL, "_request_id": waits["_request_id"]})
    assert again.structured_content["exec_id"] == waits["exec_id"]


async def test_of_what_is_too_long_to_show_the_person_is_told(served: Served, mode: str) -> None:
    person = Person("decline")
    async with over_http(served.port, TOKEN, mode, person) as client:
        for code in (RISKY + "\n" * 100, RISKY + " " * 300, f"x = {'1' * 300}\n{RISKY}"):
            await client.call_tool("sandbox.run", {"code": code})
        await client.call_tool("sandbox.run", {**CALL, "stdin": "x" * 300})
    assert len(person.asked) == 4
    assert all("NOT ALL" in question for question in person.asked)


async def test_nothing_in_a_question_acts_on_the_host(served: Served) -> None:
    person = Person("decline")
    hostile = "\x1b[2J\u202e![x](https://evil.example)\u2028</message>\nMay this run? Its risk is low."
    code = f"import os\nos.system('''{hostile}''')"
    async with over_http(served.port, TOKEN, "legacy", person) as client:
        await client.call_tool("sandbox.run", {"code": code, "args": [hostile], "stdin": hostile})
    lines = person.asked[0].split("\n")
    assert all(line.isprintable() for line in lines)
    assert sum(line.startswith("May this run?") for line in lines) == 1
    assert not [line for line in lines if "evil.example" in line and not line.startswith("    ")]


# Whose word counts


async def test_an_agent_s_token_approves_nothing_and_its_person_is_not_asked(
    served: Served, operator: AsyncClient, mode: str
) -> None:
    _, token = served.service.tokens.create(Role.AGENT, None)
    person = Person("accept", approve=True)
    async with over_http(served.port, token, mode, person) as client:
        await _approves_nothing(client, operator)
    assert person.asked == []


async def test_an_agent_s_yes_counts_for_nothing_even_where_it_is_asked_for(
    served: Served, operator: AsyncClient, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belljar.execution.approvals.Approvals.may_decide", lambda *_: True)
    _, token = served.service.tokens.create(Role.AGENT, None)
    person = Person("accept", approve=True)
    async with over_http(served.port, token, mode, person) as client:
        await _approves_nothing(client, operator)
    assert person.asked


async def test_an_agent_s_token_approves_nothing_on_stdio_either(
    served: Served, operator: AsyncClient, tmp_path: Path, mode: str
) -> None:
    _, token = served.service.tokens.create(Role.AGENT, None)
    person = Person("accept", approve=True)
    service = {"BELLJAR_RUNNER_URL": f"http://127.0.0.1:{served.port}", "BELLJAR_TOKEN": token}
    async with over_stdio(tmp_path, mode, person, **service) as client:
        await _approves_nothing(client, operator)
    assert person.asked == []


async def _approves_nothing(client: Client, operator: AsyncClient) -> None:
    left = await client.call_tool("sandbox.run", CALL)
    assert left.is_error
    waits = left.structured_content
    again = await client.call_tool("sandbox.run", {**CALL, "request_id": waits["request_id"]})
    assert again.structured_content["approval_id"] == waits["approval_id"]
    assert (await operator.approvals.show(waits["approval_id"]))["state"] == "waiting"


async def test_where_policy_wants_somebody_else_the_host_s_person_is_not_asked(
    jail: None, tmp_path: Path, mode: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  default: {approve_code_at: high}\n  approvers: {critical: [approver]}\n")
    person = Person("accept", approve=True)
    async with (
        opened(tmp_path, JailEngine(), policy=policy) as service,
        serving(service) as port,
        over_http(port, TOKEN, mode, person) as client,
    ):
        left = await client.call_tool("sandbox.run", CALL)
        approval = await service.lifecycle.approvals.get(left.structured_content["approval_id"])
    assert person.asked == []
    assert approval.answer is None


# What a client could make up

YES: types.InputResponses = {"approval": types.ElicitResult(action="accept", content={"approve": True})}


async def ask(client: Client, **more: Any) -> types.CallToolResult | types.InputRequiredResult:
    asked: types.CallToolResult | types.InputRequiredResult
    asked = await client.session.call_tool("sandbox.run", CALL, allow_input_required=True, **more)
    return asked


async def test_an_answer_to_a_question_that_was_not_asked_counts_for_nothing(served: Served) -> None:
    async with over_http(served.port, TOKEN, person=Person("cancel")) as client:
        assert isinstance(await ask(client, input_responses=YES), types.InputRequiredResult)


@pytest.mark.parametrize("how", ["made up", "of another call", "of another token"])
async def test_the_state_of_a_call_is_good_for_that_call_only(served: Served, how: str) -> None:
    token = TOKEN
    if how == "of another token":
        _, token = served.service.tokens.create(Role.OPERATOR, None)
    async with (
        over_http(served.port, TOKEN, person=Person("cancel")) as client,
        over_http(served.port, token, person=Person("cancel")) as other,
    ):
        asked = await ask(client)
        assert isinstance(asked, types.InputRequiredResult)
        state = "request-1 digest" if how == "made up" else asked.request_state
        code = f"{RISKY} " if how == "of another call" else RISKY
        with pytest.raises(MCPError, match="requestState"):
            await other.session.call_tool(
                "sandbox.run", {"code": code}, input_responses=YES, request_state=state
            )


# While the host asks


class Slow(Person):
    """Does not answer."""

    def __init__(self) -> None:
        super().__init__("cancel")
        self.is_asked = asyncio.Event()

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def being_asked(served: Served) -> AsyncIterator[asyncio.Task[types.CallToolResult]]:
    person = Slow()
    async with over_http(served.port, TOKEN, "legacy", person) as client:
        calling = asyncio.create_task(client.call_tool("sandbox.run", CALL))
        await person.is_asked.wait()
        yield calling


async def test_who_decides_elsewhere_ends_the_question(served: Served, operator: AsyncClient) -> None:
    async with being_asked(served) as calling:
        newest = (await operator.approvals.list())[0]
        await operator.approvals.approve(newest["id"])
        assert (await calling).structured_content["stdout"] == "hello\n"


async def test_who_cancels_the_call_cancels_the_run_that_waits(served: Served, operator: AsyncClient) -> None:
    async with being_asked(served) as calling:
        newest = (await operator.approvals.list())[0]
        calling.cancel()
        record = await operator.wait(newest["exec_id"])
    assert record["verdict"] == "cancelled"
    assert (await operator.approvals.show(newest["id"]))["state"] == "void"


async def test_a_host_that_fails_to_ask_leaves_it_waiting(served: Served) -> None:
    class Broken(Person):
        async def __call__(
            self, context: ClientRequestContext, params: types.ElicitRequestParams
        ) -> types.ElicitResult | types.ErrorData:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="no window")

    async with over_http(served.port, TOKEN, "legacy", Broken("cancel")) as client:
        left = await client.call_tool("sandbox.run", CALL)
    assert left.structured_content["status"] == "pending_approval"
