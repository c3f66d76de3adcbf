"""A docker engine of a test's own, that may be killed: its socket, data, mounts and network are nobody else's."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.crash.places import Place, may_mount

from belljar.engines.docker.api import Api
from belljar.errors import EngineUnavailable

_STARTS_S = 90.0
_ENDS_S = 30.0
_COPY = 'docker -H "$1" export "$2" | docker -H "$3" import - "$4"'


class Daemon:
    def __init__(self, folder: Path, *options: str, etc: Mapping[str, str]) -> None:
        """`etc`: what it finds in files of /etc, and nobody else does. Its data is in memory."""
        folder.chmod(0o711)  # whom ids are mapped to has to get through
        (folder / "data").mkdir()
        mounts = [f"mount -t tmpfs tmpfs {folder}/data"]
        for name, text in etc.items():
            (folder / name).write_text(text)
            mounts.append(f"mount --bind {folder}/{name} /etc/{name}")
        self._folder = folder
        self._place = Place("sh", "-ec", "\n".join(mounts))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{folder}/docker.sock"
        (folder / "daemon.json").write_text("{}")

    async def start(self) -> None:
        """Until it answers."""
        own = {
            "host": self.host,
            "data-root": self._folder / "data",
            "exec-root": self._folder / "exec",
            "pidfile": self._folder / "pid",
            "config-file": self._folder / "daemon.json",
        }
        for left in (self._folder / "pid", self._folder / "exec/containerd/containerd.pid"):
            left.unlink(
                missing_ok=True
            )  # whoever it names may be dead and not buried: it would be waited for
        argv = ["dockerd", "--bridge=none", "--iptables=false", *(f"--{name}={own[name]}" for name in own)]
        with (self._folder / "log").open("ab") as log:
            # With a network of its own: without a bridge it would take away the one that others use.
            argv = [*self._place.enter, "unshare", "--net", *argv, *self._options]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)  # noqa: ASYNC220
        async with asyncio.timeout(_STARTS_S):
            while True:
                try:
                    await (await Api.open(self.host)).close()
                    return
                except EngineUnavailable:
                    assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
                    await asyncio.sleep(0.05)

    def end(self, by: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(by)
        self._process.wait()

    @property
    def processes(self) -> list[str]:
        """It and all that it started, but for what runs inside of containers."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"{self._folder}/" in command:
                found.append(command)
        return found

    def close(self) -> None:
        self.end(signal.SIGTERM)
        deadline = time.monotonic() + _ENDS_S
        while self.processes and time.monotonic() < deadline:  # who looked after containers ends by himself
            time.sleep(0.02)
        self._place.close()
        shutil.rmtree(self._folder)


@asynccontextmanager
async def daemon(
    api: Api, image: str, *options: str, etc: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Daemon]:
    """One that has the image of that name, as `api` has it. It leaves no process behind."""
    if shutil.which("dockerd") is None or not may_mount():
        pytest.skip("no docker engine of our own can be started; run as root, with dockerd installed")
    folder = Path(tempfile.mkdtemp(prefix="belljar-docker-"))
    daemon = Daemon(folder, *options, etc=etc)
    try:
        await daemon.start()
        await _copy(api, image, daemon.host)
        yield daemon
    finally:
        daemon.close()
    assert daemon.processes == []


async def _copy(api: Api, image: str, host: str) -> None:
    """Without its configuration, which does not count."""
    name = f"belljar-test-{secrets.token_hex(4)}"
    await api.ask("POST", "containers/create", body={"Image": image, "Cmd": ["true"]}, name=name)
    try:
        argv = ["sh", "-c", _COPY, "sh", api.endpoint, name, host, image]
        await asyncio.to_thread(subprocess.run, argv, check=True, stdout=subprocess.DEVNULL)
    finally:
        await api.ask("DELETE", f"containers/{name}", force=1)
