"""A disk that is full or read-only under a whole service: nothing runs unrecorded, and it heals by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.commands import BELLJAR, environment
from tests.crash.deaths import Service, jars_made, need_what_kills
from tests.crash.places import Place, may_mount

if TYPE_CHECKING:
    import httpx2

SIZE_MB = 24


class Disk:
    """A small one, that nobody else sees."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder
        self._place = Place("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(folder))
        self._filler = self._place.path(folder / "filler")

    @contextmanager
    def service(self) -> Iterator[Service]:
        service = Service(self.data_dir, under=self._place.enter)
        try:
            yield service
        finally:
            service.end()

    def warnings_of(self, *arguments: str) -> str:
        """What a command says on stderr."""
        command = [*self._place.enter, *BELLJAR, *arguments]
        env = environment(self.data_dir)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stderr

    def fill(self, but_kb: int = 0) -> None:
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(self._filler, max(0, self._filler.stat().st_size - (but_kb << 10)))

    def free(self) -> None:
        self._filler.unlink()

    def remount(self, how: str) -> None:
        subprocess.run([*self._place.enter, "mount", "-o", f"remount,{how}", self.data_dir], check=True)

    def close(self) -> None:
        self._place.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    need_what_kills()
    if not may_mount():
        pytest.skip("no mounts of our own; run as root")
    disk = Disk(tmp_path)
    yield disk
    disk.close()


def run(http: httpx2.Client, request_id: str, code: str = "print(6 * 7)") -> httpx2.Response:
    return http.post("/run", json={"code": code, "request_id": request_id})


def rows(http: httpx2.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/sandbox/execs").json()["execs"]
    return found


def assert_nothing_runs(http: httpx2.Client, why: str) -> None:
    jars, known = jars_made(http), rows(http)
    for number in range(3):
        answer = run(http, f"unrecorded-{number}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "STORE_UNAVAILABLE")
        assert why in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]
        assert http.get("/health").status_code == 200
    assert (jars_made(http), rows(http)) == (jars, known)


def assert_all_is_well(http: httpx2.Client) -> None:
    for number in range(3):
        assert run(http, f"unrecorded-{number}").json()["stdout"] == "42\n"
    assert http.get("/audit/verify").json()["ok"]


def test_on_a_full_disk_nothing_runs_until_there_is_room(disk: Disk) -> None:
    with disk.service() as service, service.http() as http:
        assert run(http, "first").status_code == 200
        disk.fill()
        assert_nothing_runs(http, why="has no room; free some space on its disk")
        disk.free()
        assert_all_is_well(http)


def test_on_a_read_only_disk_nothing_runs_until_it_is_writable(disk: Disk) -> None:
    with disk.service() as service, service.http() as http:  # killed, so its database has a log
        assert run(http, "first").status_code == 200
    disk.remount("ro")
    with disk.service() as service, service.http() as http:
        assert_nothing_runs(http, why="is read-only; make it and its folder writable")
        disk.remount("rw")
        assert_all_is_well(http)


def test_a_start_on_a_read_only_disk_says_so(disk: Disk) -> None:
    disk.remount("ro")
    said = disk.warnings_of("serve", "--port", "0")
    assert f"{disk.data_dir} cannot be written to; until it can" in said


def test_what_a_run_left_and_does_not_fit_is_not_kept_in_part(disk: Disk) -> None:
    with disk.service() as service, service.http() as http:
        disk.fill(but_kb=2048)
        code = "[open(f'{n}', 'wb').write(bytes(1 << 20)) for n in range(5)]"
        answer = run(http, "large", code).json()
        record = http.get(f"/sandbox/execs/{answer['id']}").json()
        artifacts = http.get(f"/sandbox/execs/{answer['id']}/artifacts/0")
        disk.free()
        verified = http.get("/audit/verify").json()
    assert (answer["verdict"], len(answer["output_files"])) == ("exited", 5)
    assert answer["error_code"] == "STORE_UNAVAILABLE"
    assert (verified["ok"], [note["exec_id"] for note in verified["notes"]]) == (True, [answer["id"]])
    assert (record["error_code"], record["artifacts_dir"]) == ("STORE_UNAVAILABLE", None)
    assert artifacts.status_code == 404


def test_an_outcome_that_cannot_be_written_is_written_when_there_is_room(disk: Disk) -> None:
    with disk.service() as service, service.http() as http:
        asked = {"exec": {"kind": "python", "command": "import time; time.sleep(4)"}, "request_id": "late"}
        record = http.post("/sandbox/execs", json={**asked, "wait": False}).json()
        while record["status"] != "running":
            record = http.get(f"/sandbox/execs/{record['exec_id']}").json()
        disk.fill()
        answer = http.post("/sandbox/execs", json=asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "STORE_UNAVAILABLE")
        disk.free()
        while record["status"] != "finished":
            record = http.get(f"/sandbox/execs/{record['exec_id']}").json()
        assert record["verdict"] == "exited"
        assert http.get("/audit/verify").json()["ok"]
        assert len(rows(http)) == 1
