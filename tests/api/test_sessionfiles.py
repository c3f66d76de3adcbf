"""The files of a session over HTTP: in and out, one at a time and many as one stream, and what is refused."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.api.conftest import opened
from tests.api.served import TOKEN, client_at, client_of, code_of, serving
from tests.api.test_sessions import SESSIONS, run, started

from belljar.engines.jail.engine import JailEngine
from belljar.service import Service

if TYPE_CHECKING:
    import httpx2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jailed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with opened(tmp_path_factory.mktemp("jailed"), JailEngine()) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(jailed: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(jailed) as http:
        yield http


@pytest_asyncio.fixture(loop_scope="module")
async def session(client: httpx2.AsyncClient) -> AsyncIterator[str]:
    async with started(client) as path:
        yield path


def tar(*entries: tarfile.TarInfo | tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                archive.addfile(info, io.BytesIO(entry[1]))
    return packed.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


async def put(client: httpx2.AsyncClient, session: str, path: str, content: bytes, **place: str) -> None:
    answer = await client.put(f"{session}/files/content", params={"path": path, **place}, content=content)
    assert answer.status_code == 200, answer.text


async def names(client: httpx2.AsyncClient, session: str, **asked: Any) -> list[str]:
    answer = await client.get(f"{session}/files", params=asked)
    assert answer.status_code == 200, answer.text
    return [f"{file['path']} {file['kind']}" for file in answer.json()["files"]]


async def test_files_are_written_listed_moved_and_removed(client: httpx2.AsyncClient, session: str) -> None:
    await put(client, session, "d/e/f.txt", b"hello")
    assert await names(client, session) == ["d directory"]
    assert await names(client, session, depth=9) == ["d directory", "d/e directory", "d/e/f.txt regular"]
    assert await names(client, session, path="d/e") == ["f.txt regular"]
    assert (await run(client, session, "cat d/e/f.txt"))["stdout"] == "hello"
    await client.post(f"{session}/files/move", json={"path": "d/e/f.txt", "to": "g/h"})
    await client.post(f"{session}/files/mkdir", json={"path": "new/folder"})
    assert await names(client, session, path="g") == ["h regular"]
    assert await names(client, session, path="new") == ["folder directory"]
    for gone in ("d", "g"):
        await client.delete(f"{session}/files", params={"path": gone})
    assert await names(client, session) == ["main.sh regular", "new directory"]


async def test_areas_are_apart(client: httpx2.AsyncClient, session: str) -> None:
    await put(client, session, "f", b"in", area="inputs")
    await put(client, session, "f", b"art", area="artifacts")
    shown = await run(client, session, "cat /workspace/inputs/f /workspace/artifacts/f; ls")
    assert shown["stdout"] == "inartmain.sh\n"


async def test_what_a_program_left_is_not_what_it_seems(client: httpx2.AsyncClient, session: str) -> None:
    await run(client, session, "ln -s /etc/passwd link; mkfifo pipe; echo x > real")
    assert await names(client, session) == [
        "link symlink",
        "main.sh regular",
        "pipe not_regular",
        "real regular",
    ]
    for path, status in (("link", 400), ("pipe", 400), ("nothing", 404)):
        answer = await client.get(f"{session}/files/content", params={"path": path})
        assert (answer.status_code, answer.json()["error"]["field"]) == (status, "path")


async def test_a_file_comes_as_something_to_save(client: httpx2.AsyncClient, session: str) -> None:
    await put(client, session, "page.html", b"<script>alert(1)</script>")
    answer = await client.get(f"{session}/files/content", params={"path": "page.html"})
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("asked", "status", "content", "told"),
    [
        pytest.param("bytes=2-4", 206, b"234", "bytes 2-4/10", id="middle"),
        pytest.param("bytes=7-", 206, b"789", "bytes 7-9/10", id="from"),
        pytest.param("bytes=-3", 206, b"789", "bytes 7-9/10", id="last"),
        pytest.param("bytes=8-999", 206, b"89", "bytes 8-9/10", id="past-the-end"),
        pytest.param("bytes=0-1,4-5", 200, b"0123456789", None, id="several"),
        pytest.param("bytes=-", 200, b"0123456789", None, id="none"),
        pytest.param("pages=1-2", 200, b"0123456789", None, id="other-unit"),
    ],
)
async def test_a_range_of_a_file(
    client: httpx2.AsyncClient, session: str, asked: str, status: int, content: bytes, told: str | None
) -> None:
    await put(client, session, "f", b"0123456789")
    answer = await client.get(f"{session}/files/content", params={"path": "f"}, headers={"range": asked})
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-range") == told
    assert answer.headers["content-length"] == str(len(content))


async def test_a_range_that_is_not_there(client: httpx2.AsyncClient, session: str) -> None:
    await put(client, session, "f", b"0123456789")
    where = {"range": "bytes=10-"}
    answer = await client.get(f"{session}/files/content", params={"path": "f"}, headers=where)
    assert (answer.status_code, code_of(answer)) == (416, "BAD_REQUEST")
    assert answer.headers["content-range"] == "bytes */10"


async def test_a_large_file_goes_in_and_comes_out_whole(client: httpx2.AsyncClient, session: str) -> None:
    content = bytes(range(256)) * 20_000
    await put(client, session, "large", content)
    assert (await client.get(f"{session}/files/content", params={"path": "large"})).content == content


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", ".ssh/id", "a\\b", "a\nb", "x/" * 40 + "y"]
)
async def test_a_path_that_breaks_the_rules_is_refused(
    client: httpx2.AsyncClient, session: str, path: str
) -> None:
    place = {"path": path}
    for answer in (
        await client.get(f"{session}/files/content", params=place),
        await client.put(f"{session}/files/content", params=place, content=b""),
        await client.delete(f"{session}/files", params=place),
        await client.post(f"{session}/files/mkdir", json=place),
        await client.post(f"{session}/files/move", json={"path": path, "to": "x"}),
        await client.put(f"{session}/files/archive", content=tar((path, b""))) if path else None,
    ):
        if answer is not None:
            assert code_of(answer) == "PATH_NOT_ALLOWED", answer.request.url


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        pytest.param({"area": "etc"}, "area", id="area"),
        pytest.param({"depth": "0"}, "depth", id="no-depth"),
        pytest.param({"depth": "65"}, "depth", id="too-deep"),
        pytest.param({"patth": "x"}, "patth", id="unknown"),
    ],
)
async def test_a_bad_listing_names_the_parameter(
    client: httpx2.AsyncClient, session: str, asked: dict[str, str], field: str
) -> None:
    answer = await client.get(f"{session}/files", params=asked)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


async def test_more_than_fits_is_refused(client: httpx2.AsyncClient) -> None:
    async with started(client, policy_overrides={"limits": {"workspace_mb": 8}}) as session:
        answer = await client.put(f"{session}/files/content", params={"path": "f"}, content=bytes(9 << 20))
        assert (code_of(answer), answer.json()["error"]["field"]) == ("LIMIT_EXCEEDED", "path")
        assert await names(client, session) == []


# Many as one stream


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
async def test_an_archive_goes_in_and_comes_out(client: httpx2.AsyncClient, session: str, form: int) -> None:
    folder = tarfile.TarInfo("empty")
    folder.type = tarfile.DIRTYPE
    # ustar splits a long name at a slash; the others have headers for it
    long = "long/" + "n" * 90 + "/" + "ü" * 40
    files = {"a": b"1", "d/b": b"", long: b"x" * 1000}
    archive = tar(folder, *files.items(), form=form)
    answer = await client.put(f"{session}/files/archive", params={"path": "in"}, content=archive)
    assert answer.json()["files"] == 3, answer.text
    got = await client.get(f"{session}/files/archive", params={"path": "in"})
    with tarfile.open(fileobj=io.BytesIO(got.content)) as packed:
        members = {one.name: one for one in packed.getmembers()}
        contents = {name: packed.extractfile(one).read() for name, one in members.items() if one.isreg()}  # type: ignore[union-attr]
    assert contents == files
    assert {name for name, one in members.items() if one.isdir()} == {"empty", "d", "long", long[:95]}


SPARSE = tarfile.TarInfo("sparse")
SPARSE.type = tarfile.GNUTYPE_SPARSE


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(tar(special("d", tarfile.SYMTYPE, "/tmp"), ("d/x", b"")), id="link-then-write"),
        pytest.param(tar(special("h", tarfile.LNKTYPE, "../../etc/passwd")), id="hard-link"),
        pytest.param(tar(special("dev", tarfile.CHRTYPE)), id="device"),
        pytest.param(tar(special("pipe", tarfile.FIFOTYPE)), id="fifo"),
        pytest.param(tar(SPARSE), id="sparse"),
        pytest.param(tar(("a", b"1"), ("a", b"2")), id="twice"),
        pytest.param(tar(("a", b"1"), ("a/b", b"2")), id="file-as-folder"),
        pytest.param(tar(("a", b"1" * 600))[:700], id="cut-off"),
        pytest.param(b"PK\x03\x04" + bytes(600), id="zip"),
        pytest.param(b"\x1f\x8b" + bytes(600), id="gzip"),
        pytest.param(b"", id="empty"),
        pytest.param(tar(*((f"f{n}", b"") for n in range(1001))), id="too-many"),
    ],
)
async def test_an_archive_of_anything_else_is_refused_and_nothing_of_it_is_written(
    client: httpx2.AsyncClient, session: str, archive: bytes
) -> None:
    answer = await client.put(f"{session}/files/archive", content=archive)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["field"] == "archive"
    assert await names(client, session) == []


# Watching


async def test_a_watcher_is_told_of_changes_until_the_session_ends(jailed: Service) -> None:
    async with serving(jailed) as port, client_at(port, TOKEN) as client, started(client) as session:
        await put(client, session, "old", b"1")
        told: list[str] = []
        news = asyncio.Event()

        async def listen() -> None:
            async with client.stream("GET", f"{session}/files/watch") as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("event: "):
                        told.append(line.removeprefix("event: "))
                        news.set()

        async def heard() -> None:
            await asyncio.wait_for(news.wait(), 30)
            news.clear()

        listening = asyncio.create_task(listen())
        await heard()
        await put(client, session, "new", b"1")
        await heard()
        await put(client, session, "new", b"22")
        await heard()
        await client.delete(f"{session}/files", params={"path": "old"})
        await heard()
        await client.delete(session)
        await asyncio.wait_for(listening, 30)
    assert told == ["watching", "created", "changed", "removed", "ended"]


async def test_only_so_many_watch_a_session(
    client: httpx2.AsyncClient, jailed: Service, session: str
) -> None:
    jailed.sessions.get(session.rpartition("/")[2]).watchers = 8
    answer = await client.get(f"{session}/files/watch")
    assert code_of(answer) == "LIMIT_EXCEEDED"


async def test_a_folder_that_is_not_there_is_not_watched(client: httpx2.AsyncClient, session: str) -> None:
    answer = await client.get(f"{session}/files/watch", params={"path": "nowhere"})
    assert answer.status_code == 404
    assert (await client.get(f"{SESSIONS}/se-none/files/watch")).status_code == 404
