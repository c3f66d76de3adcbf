"""A real service that is killed again and again on one data directory, and what the next one makes of it.

Each service first settles what the one before it has left, which is then looked at from outside, and gets a
request that it does not survive. Orphans become children of this process, so that none is overlooked.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cli.commands import environment
from tests.crash.places import Place, may_mount

from belljar.engines.jail.probe import probe

MORTAL = [sys.executable, str(Path(__file__).parent / "mortal.py")]
SERVE = ["serve", "--port", "0", "--json", "--engine"]
PROGRAM = "import uuid; print(uuid.uuid4()); open('left.txt', 'w').write('x' * 5000)"
"""A second run of it would say something else."""
PATIENCE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36
_OWN_FILES = {"code.txt", "stdout.txt", "stderr.txt", "manifest.json", "meta.json", "events.jsonl"}


def need_what_kills() -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace to kill at system calls; on Debian and Ubuntu: apt install strace")
    if not (found := probe()).usable:
        pytest.skip(f"no jail here: {', '.join(check.name for check in found.missing)}")


@dataclass
class Aftermath:
    """What one death has left. All but the first two have to be nothing."""

    died: bool = True
    """At the point; else we ended it after its answer."""
    orphans_at_once: int = 0
    orphans: list[int] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    """Requests with two rows or two runs or that nobody sent, runs without exactly one receipt."""
    forgotten: list[str] = field(default_factory=list)
    """Requests whose caller had an answer that the next service does not give."""
    folders: list[str] = field(default_factory=list)
    """What lies there and no record speaks of, or the other way round."""
    chain: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, Any]:
        return {
            name: found
            for name, found in vars(self).items()
            if found and name not in ("died", "orphans_at_once")
        }


class Service:
    """One process. `url` is None if it did not live to say it."""

    def __init__(
        self, data_dir: Path, point: str | None = None, under: Sequence[str] = (), engine: str = "jail"
    ) -> None:
        self.process = subprocess.Popen(
            [*under, *MORTAL, *([point] if point else []), *SERVE, engine],
            env=environment(data_dir),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = int(self._line() or self.process.pid)  # not that of who watches it
        self.url: str | None = None
        if said := self._line():
            self.url = json.loads(said)["url"]
            # It may see other mounts than we do.
            self._token = Path(f"/proc/{self.pid}/root{data_dir}/token").read_text().strip()

    def doom(self, point: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{point}\n")
        self.process.stdin.flush()
        assert self._line() == f"{point}\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def http(self) -> httpx2.Client:
        assert self.url is not None, "the service did not start"
        headers = {"authorization": f"Bearer {self._token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60)

    @property
    def threads(self) -> list[int]:
        """In the order in which they were started."""
        return sorted(int(tid) for tid in os.listdir(f"/proc/{self.pid}/task"))

    def end(self, by: signal.Signals = signal.SIGKILL) -> int:
        with suppress(ProcessLookupError):
            os.kill(self.pid, by)
        return self.wait()

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        status = self.process.wait(patience_s)
        with self.process:
            return status


class Deaths:
    """Belongs to a process that has nothing else to do meanwhile: all that it adopts was ours."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        # As an ordinary user it can mount nothing that others see.
        self._place = Place() if may_mount() else None
        self._mounts = self._place.mounts() if self._place else set()
        self._before = set(_children(os.getpid()))
        self._started: list[Service] = []
        self._sent: set[str] = set()
        self._told: dict[str, Any] = {}
        """What the callers were told; None if nothing."""

    @property
    def service(self) -> Service:
        return self._started[-1] if self._started else self._start()

    # Dying

    def at(self, point: str) -> Aftermath:
        """At one of the named points."""
        self.service.doom(point)
        return self._after(self._killed_by_request())

    def at_call(self, thread: int, call: str, number: int) -> Aftermath:
        """When that thread, counted from the first, makes that system call for so many times."""
        threads = self.service.threads
        if thread >= len(threads):
            return Aftermath(died=False)
        with attached([threads[thread]], *_killing(call, number)):
            died = self._killed_by_request(after_answer_s=1.0)  # it may not make that call at all
        return self._after(died)

    def at_any_time(self, after_s: float, callers: int = 12) -> Aftermath:
        """While many wait, at no special point."""
        service = self.service
        with ThreadPoolExecutor(callers) as pool:
            for _ in range(callers):
                pool.submit(self._ask, service)
            time.sleep(after_s)
            service.end()
        return self._after(died=True)

    def in_recovery(self) -> Aftermath:
        """While it settles what the death before has left."""
        self.service.doom("program_started")
        assert self._killed_by_request()
        return self._after(self._killed_at_start(self._start("finished_row")))

    def at_start(self, call: str, number: int) -> Aftermath:
        """When a thread of a service that starts makes that call for so many times."""
        # Detached at execve: the launcher and its jars are not to be killed, they have to see it by themselves.
        strace = ["strace", "-f", "-b", "execve", "-qq", "-o", "/dev/null", *_killing(call, number)]
        return self._after(self._killed_at_start(self._start(under=strace)))

    def survive_one(self) -> None:
        """A request that nobody dies of."""
        assert self._ask(self.service)
        self._told.clear()

    def close(self) -> dict[str, Any]:
        """What is left when the last service has ended in peace."""
        status = self.service.end(signal.SIGTERM)
        left = {"status": status, "orphans": self._lasting(), "cgroups": self._cgroups(self._started)}
        if self._place:
            self._place.close()
        return {name: found for name, found in left.items() if found}

    def _start(self, point: str | None = None, under: Sequence[str] = ()) -> Service:
        inside = self._place.enter if self._place else []
        self._started.append(Service(self._data_dir, point, [*inside, *under]))
        return self._started[-1]

    def _killed_by_request(self, after_answer_s: float = PATIENCE_S) -> bool:
        service = self.service
        answered = self._ask(service)
        try:
            service.wait(after_answer_s if answered else PATIENCE_S)
        except subprocess.TimeoutExpired:
            service.end()
            return False
        return True

    def _killed_at_start(self, service: Service) -> bool:
        service.end()
        return service.url is None

    def _ask(self, service: Service) -> bool:
        body = self._body()
        self._told[body["request_id"]] = None
        try:
            with service.http() as http:
                self._told[body["request_id"]] = http.post("/run", json=body).json()
        except httpx2.HTTPError:
            return False
        return True

    def _body(self, request_id: str | None = None) -> dict[str, str]:
        request_id = request_id or secrets.token_hex(8)
        self._sent.add(request_id)
        return {"request_id": request_id, "code": PROGRAM}

    # And after

    def _after(self, died: bool) -> Aftermath:
        found = Aftermath(died=died, orphans_at_once=len(self._orphans()))
        dead = [*self._started]
        told, self._told = self._told, {}
        with self._start().http() as http:
            self._check_rows(found)
            for request_id, answer in told.items():
                self._check_request(http, request_id, answer, found)
            # The first jar has the engine sweep what the dead have left.
            assert http.post("/run", json=self._body()).status_code == 200
            found.chain = [fault["what"] for fault in http.get("/audit/verify").json()["faults"]]
        self._check_rows(found)
        found.folders = list(self._strange_folders())
        found.cgroups = self._cgroups(dead)
        found.mounts = sorted(self._place.mounts() - self._mounts) if self._place else []
        found.orphans = self._lasting()
        return found

    def _check_request(self, http: httpx2.Client, request_id: str, told: Any, found: Aftermath) -> None:
        """Sent once more, it gives what it gave; it is run if it was never accepted, and only then."""
        row, jars = self._row(request_id), jars_made(http)
        answer = http.post("/run", json=self._body(request_id))
        if told is not None and answer.json() != told:
            found.forgotten.append(request_id)
        if jars_made(http) - jars != (row is None) or row not in (None, self._row(request_id)):
            found.doubled.append(request_id)
        if answer.status_code != (503 if row is not None and row["verdict"] == "lost" else 200):
            found.forgotten.append(request_id)

    def _check_rows(self, found: Aftermath) -> None:
        rows = self._rows("SELECT request_id, exec_id, status FROM sandbox_execs")
        receipts = Counter(row["exec_id"] for row in self._rows("SELECT exec_id FROM receipts"))
        requests = Counter(row["request_id"] for row in rows)
        found.unfinished += [row["exec_id"] for row in rows if row["status"] != "finished"]
        found.doubled += [one for one, count in requests.items() if count != 1 or one not in self._sent]
        found.doubled += [row["exec_id"] for row in rows if receipts[row["exec_id"]] != 1]

    def _strange_folders(self) -> Iterator[str]:
        rows = {row["exec_id"]: row for row in self._rows("SELECT * FROM sandbox_execs")}
        lying = {path.name: path for path in self._data_dir.glob("workspace/projects/*/artifacts/*")}
        yield from lying.keys() ^ {exec_id for exec_id, row in rows.items() if row["artifacts_path"]}
        for exec_id, folder in lying.items():
            files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            left = {f"files/{one['path']}" for one in json.loads(rows[exec_id]["artifacts"])}
            yield from (f"{exec_id}/{name}" for name in files ^ (left | _OWN_FILES))

    def _row(self, request_id: str) -> dict[str, Any] | None:
        found = self._rows("SELECT * FROM sandbox_execs WHERE request_id = ?", request_id)
        return found[0] if found else None

    def _rows(self, sql: str, *values: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self._data_dir / "belljar.db")) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(sql, values)]

    def _orphans(self) -> list[int]:
        """Processes of the dead that still run; those that have ended are buried here."""
        known = self._before | {service.process.pid for service in self._started}
        adopted = [pid for pid in _children(os.getpid()) if pid not in known]
        return [pid for pid in adopted if os.waitpid(pid, os.WNOHANG) == (0, 0)]

    def _lasting(self) -> list[int]:
        """Those that do not end by themselves: each sees by itself that its service is dead."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self._orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _cgroups(self, of: Sequence[Service]) -> list[str]:
        names = tuple(f"belljar-{service.pid}-" for service in of)
        return [
            f"{folder}/{name}"
            for folder, below, _ in os.walk("/sys/fs/cgroup")
            for name in below
            if name.startswith(names)
        ]


def _killing(call: str, number: int) -> list[str]:
    return ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]


@contextmanager
def attached(threads: Sequence[int], *options: str, log: Path | str = os.devnull) -> Iterator[None]:
    """strace on these threads; it lets go at the end, if there is still something to let go of."""
    on = [option for thread in threads for option in ("-p", str(thread))]
    strace = subprocess.Popen(["strace", "-qq", "-o", str(log), *options, *on])
    try:
        for thread in threads:
            while "TracerPid:\t0\n" in Path(f"/proc/{thread}/status").read_text():
                assert strace.poll() is None, "strace could not attach"
                time.sleep(0.005)
        yield
    finally:
        strace.terminate()
        strace.wait()


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans below us become our children, not init's. prctl(2)"""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def jars_made(http: httpx2.Client) -> int:
    for line in http.get("/metrics").text.splitlines():
        if line.startswith("sandbox_jar_start_seconds_count "):
            return int(float(line.split()[1]))
    raise AssertionError("jars are not counted")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return found
