"""A terminal over a WebSocket, and what is given to runs that go on, on the real engine over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import TOKEN, client_with, code_of, exchange, request, serving, status_in
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from belljar.client import AsyncClient, AsyncSession, Retry
from belljar.client.terminals import AsyncTerminal
from belljar.client.wire import Event, Result
from belljar.engines.jail.engine import JailEngine
from belljar.errors import BadRequest, Conflict, Forbidden, LimitExceeded, NotFound, Refused
from belljar.execution.terminals import KIND
from belljar.service import Service
from belljar.tokens import Role


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jailed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with opened(tmp_path_factory.mktemp("jailed"), JailEngine()) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(jailed: Service) -> AsyncIterator[int]:
    async with serving(jailed) as port:
        yield port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(port: int) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{port}", TOKEN, retry=Retry(1)) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def session(client: AsyncClient) -> AsyncIterator[AsyncSession]:
    async with client.session() as session:
        yield session


class Screen:
    def __init__(self, terminal: AsyncTerminal) -> None:
        self.terminal = terminal
        self.shown = b""
        self._output = terminal.output()

    async def type(self, text: str) -> None:
        await self.terminal.type(text.encode())

    async def until(self, text: str) -> None:
        """Something shows; what was shown up to it is not looked at again."""
        try:
            async with asyncio.timeout(60):
                while text.encode() not in self.shown:
                    self.shown += await anext(self._output)
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in {self.shown!r}") from None
        self.shown = self.shown.partition(text.encode())[2]

    async def end(self) -> int | None:
        async with asyncio.timeout(60):
            async for _ in self._output:
                pass
        return self.terminal.exit_code


@asynccontextmanager
async def shell(session: AsyncSession) -> AsyncIterator[Screen]:
    async with session.terminal(30, 100) as terminal:
        screen = Screen(terminal)
        await screen.until("$ ")
        yield screen


async def test_a_shell_has_a_terminal_of_its_own_that_can_be_resized(session: AsyncSession) -> None:
    async with shell(session) as screen:
        await screen.type("tty; stty size; echo $TERM\r")
        await screen.until("/dev/pts/0")
        await screen.until("30 100")
        await screen.until("xterm-256color")
        await screen.terminal.resize(40, 120)
        await screen.type("stty size\r")
        await screen.until("40 120")
        await screen.type("exit 7\r")
        assert await screen.end() == 7


WAITING = """
import signal
signal.signal(signal.SIGCONT, lambda *_: print("resumed", flush=True))
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("ready", flush=True)
while True:
    signal.pause()
"""


async def test_control_c_and_job_control_work(session: AsyncSession) -> None:
    async with shell(session) as screen:
        # No shell: one that is stopped while it forks is not stopped, because it waits for its child.
        await session.files.write("wait.py", WAITING)
        await screen.type("python3 wait.py\r")
        await screen.until("ready")
        await screen.type("\x1a")
        await screen.until("Stopped")
        await screen.until("$ ")
        await screen.type("fg\r")
        await screen.until("resumed")
        await screen.type("\x03")
        await screen.until("$ ")
        await screen.type("echo status-$?\r")
        await screen.until("status-130")
        await screen.type("exit 4\r")
        assert await screen.end() == 4


async def test_much_output_waits_for_its_reader_and_none_is_lost(session: AsyncSession) -> None:
    async with shell(session) as screen:
        await screen.type(
            "for i in 1 2 3 4 5 6 7 8; do seq 100000; done | wc -c; seq 300000 | tail -1; seq 200000\r"
        )
        await screen.until("300000")
        await asyncio.sleep(1)  # far more than the window is written meanwhile
        assert (await session.run("echo still", "bash")).stdout == "still\n"
        await screen.until("\n199999\r\n200000")
        await screen.type("exit\r")
        assert await screen.end() == 0


async def test_a_line_that_is_cut_hangs_up_and_leaves_the_session(
    jailed: Service, session: AsyncSession
) -> None:
    async with shell(session) as screen:
        await screen.type("echo $$ > pid; echo written\r")
        await screen.until("written\r\n")
    async with asyncio.timeout(60):
        while True:
            there = await session.run("test -d /proc/$(cat pid) && echo there", "bash")
            ended = await jailed.store.matters(KIND, "ended")
            mine = [matter.body for matter in ended if matter.body["session_id"] == session.id]
            if mine and not there.stdout:
                break
    assert [body["token_id"] for body in mine] == ["operator"]


async def test_a_terminal_injects_nothing(session: AsyncSession) -> None:
    """TIOCSTI would type at whoever shares the terminal; CVE-2016-2779 and its kin."""
    program = (
        "import fcntl\ntry: fcntl.ioctl(0, 0x5412, b'x')\nexcept OSError as error: print('no:', error.errno)"
    )
    await session.files.write("inject.py", program)
    async with shell(session) as screen:
        await screen.type("python3 inject.py\r")
        await screen.until("no: 1")


async def test_a_session_that_ends_takes_its_terminal_along(client: AsyncClient) -> None:
    async with client.session() as session, shell(session) as screen:
        await session.close()
        assert await screen.end() is None


async def test_only_so_many_terminals(session: AsyncSession) -> None:
    async with asyncio.TaskGroup() as group:
        held = asyncio.Event()
        ready = asyncio.Semaphore(0)

        async def hold() -> None:
            async with shell(session):
                ready.release()
                await held.wait()

        for _ in range(8):
            group.create_task(hold())
        for _ in range(8):
            await ready.acquire()
        with pytest.raises(LimitExceeded):
            async with session.terminal():
                pass
        held.set()


# Who may, and what is no terminal


async def test_a_terminal_is_refused_as_any_call_is(
    jailed: Service, port: int, session: AsyncSession
) -> None:
    url = f"ws://127.0.0.1:{port}/sandbox/sessions/{session.id}/terminal"
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example"}, 403),
        ({"authorization": f"Bearer {jailed.tokens.create(Role.VIEWER, None)[1]}"}, 403),
        ({"authorization": f"Bearer {jailed.tokens.create(Role.AGENT, ('other',))[1]}"}, 404),
    ):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == status, headers


async def test_there_is_no_websocket_elsewhere(port: int) -> None:
    for path, status in (("/health", 400), ("/nowhere", 404)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(
                f"ws://127.0.0.1:{port}{path}",
                additional_headers={"authorization": f"Bearer {TOKEN}"},
                proxy=None,
            )
        assert refused.value.response.status_code == status


async def test_a_get_that_is_no_websocket_is_told_so(port: int, session: AsyncSession) -> None:
    path = f"/sandbox/sessions/{session.id}/terminal"
    assert status_in(await exchange(port, request("GET", path))) == 426
    assert status_in(await exchange(port, request("GET", f"{path}?rows=0"))) == 400
    assert status_in(await exchange(port, request("GET", f"{path}?term=%22x"))) == 400


@pytest.mark.parametrize(
    "message",
    [
        "no json",
        "[]x",
        '{"resize": [0, 5]}',
        '{"resize": [1]}',
        '{"resize": ["a", "b"]}',
        '{"signal": "SIGNOTHING"}',
        '{"other": 1}',
        "[" * 5000,
    ],
)
async def test_an_order_that_is_none_ends_the_line(port: int, session: AsyncSession, message: str) -> None:
    url = f"ws://127.0.0.1:{port}/sandbox/sessions/{session.id}/terminal"
    async with connect(url, additional_headers={"authorization": f"Bearer {TOKEN}"}, proxy=None) as line:
        await line.send(message)
        with suppress(ConnectionClosed):
            async with asyncio.timeout(30):
                async for _ in line:
                    pass
        assert line.close_code == 1008


async def test_where_policy_sees_each_command_there_is_no_terminal(client: AsyncClient) -> None:
    async with client.session(policy_overrides={"allowed_commands": ["ls"]}) as session:
        with pytest.raises(Refused):
            async with session.terminal():
                pass


async def test_a_session_that_is_not_there_has_none(client: AsyncClient) -> None:
    absent = AsyncSession(client, {"session_id": "se-none", "project_id": "p"})
    with pytest.raises(NotFound):
        async with absent.terminal():
            pass


# Runs that are spoken to


async def begun(events: AsyncIterator[Event | Result]) -> str:
    """The id of a run that has written something."""
    exec_id = ""
    async for event in events:
        assert isinstance(event, Event)
        exec_id = str(event.data.get("exec_id", exec_id))
        if event.kind == "stdout":
            return exec_id
    raise AssertionError


async def end_of(events: AsyncIterator[Event | Result]) -> Result:
    async with asyncio.timeout(60):
        async for event in events:
            if isinstance(event, Result):
                return event
    raise AssertionError


async def test_a_run_reads_what_it_is_given_while_it_runs(session: AsyncSession) -> None:
    code = "echo ready; while read line; do echo got $line; done; echo end"
    events = session.stream(code, "bash", stdin="first\n", stdin_open=True)
    exec_id = await begun(events)
    await session.feed(exec_id, "second\n")
    await session.feed(exec_id, "third\n", end=True)
    result = await end_of(events)
    assert result.stdout == "ready\ngot first\ngot second\ngot third\nend\n"
    with pytest.raises(NotFound):
        await session.feed(exec_id, "late\n")


async def test_a_context_reads_too(session: AsyncSession) -> None:
    events = session.stream("print('name?', flush=True)\nwho = input()\nwho", context="main")
    exec_id = await begun(events)
    await session.feed(exec_id, "Ada\n")
    assert (await end_of(events)).results == ({"text/plain": "'Ada'"},)


async def test_a_run_that_does_not_read_takes_only_so_much(session: AsyncSession) -> None:
    events = session.stream("echo ready; sleep 60", "bash", stdin_open=True)
    exec_id = await begun(events)
    for _ in range(3):  # what the pipe holds, and what may wait
        await session.feed(exec_id, bytes(1 << 16))
    with pytest.raises(Conflict, match="not read"):
        await session.feed(exec_id, b"x")
    with pytest.raises(LimitExceeded):
        await session.feed(exec_id, bytes((1 << 16) + 1))
    await session.interrupt(exec_id)
    assert (await end_of(events)).verdict == "cancelled"


async def test_a_run_is_signalled(session: AsyncSession) -> None:
    events = session.stream(
        "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done", "bash"
    )
    exec_id = await begun(events)
    with pytest.raises(BadRequest):
        await session.signal(exec_id, "SIGNOTHING")
    await session.signal(exec_id, "SIGUSR1")
    result = await end_of(events)
    assert (result.stdout, result.exit_code) == ("ready\ncaught\n", 3)


async def test_only_who_may_run_speaks_to_runs(jailed: Service, session: AsyncSession) -> None:
    async with client_with(jailed, Role.VIEWER) as viewer:
        path = f"/sandbox/sessions/{session.id}/runs/ex-1"
        assert code_of(await viewer.post(f"{path}/stdin", content=b"x")) == Forbidden.code
        assert code_of(await viewer.post(f"{path}/signal", json={"signal": "SIGINT"})) == Forbidden.code
