"""Sessions from Python, against the service in this process with a real jail behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import belljar
from belljar.client import AsyncClient, Client, Event, Result, Retry, Unreachable
from belljar.client.sessions import AsyncSession
from belljar.config import Config, load
from belljar.errors import BadRequest, Conflict, NotFound


@pytest.fixture(scope="module")
def config(jail: None, tmp_path_factory: pytest.TempPathFactory) -> Config:
    home = tmp_path_factory.mktemp("home")
    return load(environ={}, cwd=home, home=home, machine_file=home / "none")


@pytest.fixture(scope="module")
def client(config: Config) -> Iterator[Client]:
    with belljar.local(config) as client:
        yield client


async def test_a_session_is_used_and_ends_with_its_block(config: Config) -> None:
    async with belljar.alocal(config) as client:
        async with client.session(project_id="p", env={"COLOUR": "green"}) as session:
            await session.files.write("a/b.txt", "text")
            await session.run("x = open('a/b.txt').read()", context="main")
            result = await session.run("x.upper()", context="main")
            assert result.results == ({"text/plain": "'TEXT'"},)
            assert (await session.run("echo $COLOUR", "bash")).stdout == "green\n"
        with pytest.raises(Conflict, match="closed"):
            await session.run("1")
        assert (await session.info())["state"] == "ended"


def test_the_blocking_twin_does_the_same(client: Client) -> None:
    with client.session() as session:
        session.files.upload({"d/one": b"1", "two": "2"})
        assert session.files.download() == {"d/one": b"1", "two": b"2"}
        session.files.move("two", "d/two")
        session.files.make_folder("e")
        session.files.remove("d/one")
        found = {file["path"]: file["kind"] for file in session.files.list(depth=3)}
        assert found == {"d": "directory", "d/two": "regular", "e": "directory"}
        session.files.write("long", b"0123456789")
        assert session.files.read("long", start=2, end=4) == b"23"
        assert session.files.read("long") == b"0123456789"
        last = [*session.stream("print(1)\n2", context="main")][-1]
        assert isinstance(last, Result)
        assert last.results == ({"text/plain": "2"},)
        assert session.contexts() == ["main"]
        session.close_context("main")
        assert session.contexts() == []


def test_a_session_is_kept_found_and_forked(client: Client) -> None:
    with client.session(project_id="kept") as session:
        session.files.write("f", b"x")
        found = client.get_session(session.id)
        assert found.pause()["state"] == "paused"
        assert found.resume()["state"] == "ready"
        assert found.extend(500)["idle_s"] >= 500
        digest = found.snapshot()["digest"]
        assert [one["digest"] for one in client.snapshots("kept")] == [digest]
        [fork] = session.fork()
        with fork, client.session(project_id="kept", snapshot=digest) as copy:
            assert fork.files.read("f") == copy.files.read("f") == b"x"
            assert len(client.sessions(project_id="kept")) == 3
        client.remove_snapshot(digest, "kept")
    assert client.sessions(project_id="kept") == ()
    assert len(client.sessions(project_id="kept", ended=True)) == 3


def test_a_run_is_interrupted_from_elsewhere(client: Client) -> None:
    with client.session() as session:
        started = threading.Event()
        ended: list[Event | Result] = []

        def run() -> None:
            for event in session.stream("import time\nprint(1, flush=True)\ntime.sleep(60)", context="main"):
                if isinstance(event, Event) and event.kind == "stdout":
                    started.set()
                ended.append(event)

        running = threading.Thread(target=run)
        running.start()
        assert started.wait(60)
        [exec_id] = session.interrupt()
        running.join(60)
        assert isinstance(ended[-1], Result)
        assert (ended[-1].id, ended[-1].verdict) == (exec_id, "cancelled")


def test_changes_are_watched(client: Client) -> None:
    with client.session() as session:
        changes = session.files.watch()
        assert next(changes).kind == "watching"
        session.files.write("new", b"1")
        event = next(changes)
        assert (event.kind, event.data["path"]) == ("created", "new")
        changes.close()


@pytest.mark.parametrize("path", ["\ud800", "../x", "no/such"])
def test_a_bad_path_is_our_error(client: Client, path: str) -> None:
    with client.session() as session, pytest.raises((BadRequest, NotFound)):
        session.files.read(path)


def test_content_that_is_none_is_our_error(client: Client) -> None:
    with client.session() as session, pytest.raises(BadRequest):
        session.files.write("f", 5)  # type: ignore[arg-type]


async def test_what_may_have_been_done_is_not_sent_again() -> None:
    import httpx2

    sent: list[str] = []

    class Broken(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            sent.append(request.url.path.rpartition("/")[2])
            raise httpx2.ReadError("gone")

    retry = Retry(attempts=3, first_s=0.001)
    async with AsyncClient("http://localhost", "t", transport=Broken(), retry=retry) as client:
        session = AsyncSession(client, {"session_id": "se-1", "project_id": "p"})
        for call in (session.fork, session.info):
            with pytest.raises(Unreachable):
                await call()
    assert sent == ["fork", *["se-1"] * 3]
