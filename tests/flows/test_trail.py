from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from belljar.client import AsyncClient
from belljar.flows.project import Project
from belljar.flows.trail import Now, Wrote, state_of, trail_of


def written(folder: Path, run_id: str, content: bytes, name: str = "f") -> None:
    with Project(folder) as project:
        run = project.start(run_id)
        run.land([(name, content)], lambda landed: {}, prefix="docs/out", overwrite=True)


def test_every_version_of_a_file_has_its_run(tmp_path: Path) -> None:
    written(tmp_path, "b-first", b"1")
    written(tmp_path, "a-second", b"2")
    written(tmp_path, "c-other", b"3", "other")
    with Project(tmp_path) as project:
        entries = trail_of(project, "docs/out/f")
        assert [(one.run_id, one.change, one.sha256, one.before) for one in entries] == [
            ("b-first", Wrote.CREATED, sha256(b"1").hexdigest(), None),
            ("a-second", Wrote.CHANGED, sha256(b"2").hexdigest(), sha256(b"1").hexdigest()),
        ]
        assert (
            len(trail_of(project))
            == len(trail_of(project, "docs"))
            == len(trail_of(project, "docs/out/"))
            == 3
        )
        assert trail_of(project, "doc") == []


def test_what_nobodys_run_did_is_told_too(tmp_path: Path) -> None:
    written(tmp_path, "r1", b"1")
    with Project(tmp_path) as project:
        [entry] = trail_of(project)
        assert state_of(project, entry) is Now.AS_WRITTEN
        (tmp_path / "docs/out/f").write_text("mine")
        assert state_of(project, entry) is Now.CHANGED
        (tmp_path / "docs/out/f").unlink()
        assert state_of(project, entry) is Now.REMOVED


def test_a_broken_trail_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    written(tmp_path, "r1", b"1")
    with (tmp_path / ".belljar/runs/r1/events.jsonl").open("ab") as file:
        file.write(
            b'7\n{"event": "sandbox_complete"}\n{"event": "sandbox_complete", "files": [{"path": 7}]}\n'
        )
        file.write(b"[" * 100_000 + b'\n{"event": "sandbox_comp')
    (tmp_path / ".belljar/runs/empty").mkdir()
    with Project(tmp_path) as project:
        assert len(trail_of(project)) == 1


async def test_the_service_tells_which_run_left_which_version(client: AsyncClient) -> None:
    code = "open('f', 'a').write('x'); open('new', 'w')"
    first = await client.run(code, files={"f": "a"}, project_id="trail")
    second = await client.run(code, files={"f": "b"}, project_id="trail")
    await client.run("open('f', 'w')", project_id="elsewhere")
    found = await client.trail(project_id="trail", path="f")
    assert [(one["exec_id"], one["change"], one["before"]) for one in found["entries"]] == [
        (second.id, "changed", sha256(b"b").hexdigest()),
        (first.id, "changed", sha256(b"a").hexdigest()),
    ]
    assert found["entries"][1]["sha256"] == sha256(b"ax").hexdigest()
    new = await client.trail(project_id="trail", path="new")
    assert [one["change"] for one in new["entries"]] == ["created", "created"]
    page = await client.trail(project_id="trail", limit=1)
    rest = await client.trail(project_id="trail", limit=1, cursor=page["cursor"])
    assert [page["entries"][0]["exec_id"], rest["entries"][0]["exec_id"]] == [second.id, first.id]


async def test_work_that_was_kept_was_there_before(client: AsyncClient) -> None:
    code = "open('kept', 'a').write('x')"
    await client.run(code, project_id="keeps", persist_work=True)
    await client.run(code, project_id="keeps", persist_work=True)
    found = await client.trail(project_id="keeps", path="kept")
    assert [one["change"] for one in found["entries"]] == ["changed", "created"]
