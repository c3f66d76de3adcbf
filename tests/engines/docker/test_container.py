"""What is forced on every container: asked for, read back, and found in the live process."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from belljar.engines.base import Command
from belljar.engines.docker import container, posture, running
from belljar.engines.docker.container import Volume, check_readback, forced, volume_owner
from belljar.engines.docker.engine import DockerEngine
from belljar.errors import PostureMismatch
from belljar.models import Grant, Limits, Output, Stream


def config(**changed: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "image": "sha256:00",
        "image_env": ("PATH=/opt/bin", "LD_PRELOAD=/evil.so", "PYTHONPATH=/evil"),
        "argv": ("python3", "-c", "…"),
        "env": {"PATH": "/usr/bin", "HOME": "/tmp"},
        "cwd": "/",
        "limits": Limits(memory_mb=64, pids=10, cpu_cores=0.5, nofile=99, workspace_mb=7, tmp_mb=3),
        "runtime": "runc",
        "labels": {"belljar.jar": "x"},
        "volumes": [Volume(name="x-inputs", target="/workspace/inputs", read_only=True)],
    }
    return forced(**{**asked, **changed})


FORCED = {
    "NetworkMode": "none",
    "ReadonlyRootfs": True,
    "Privileged": False,
    "CapDrop": ["ALL"],
    "IpcMode": "private",
    "CgroupnsMode": "private",
    "PidsLimit": 11,  # the guest is one of them
    "Memory": 64 << 20,
    "MemorySwap": 64 << 20,
    "CpuQuota": 50_000,
    "LogConfig": {"Type": "none", "Config": {}},
    "RestartPolicy": {"Name": "no"},
    "Init": False,
}


@pytest.mark.parametrize("flag", FORCED)
def test_a_flag_is_forced(flag: str) -> None:
    assert config()["HostConfig"][flag] == FORCED[flag]


def test_the_program_is_uid_1000_without_tty_or_health_check() -> None:
    made = config()
    assert made["User"] == "1000:1000"
    assert made["Healthcheck"] == {"Test": ["NONE"]}
    assert not made["Tty"]


def test_every_writable_place_has_a_size_and_a_number_of_files() -> None:
    places = config()["HostConfig"]["Tmpfs"]
    assert places.keys() == {"/workspace", "/tmp", "/dev/shm"}
    for options in places.values():
        assert {"size", "nr_inodes"} <= {option.partition("=")[0] for option in options.split(",")}
        assert "nosuid" in options.split(",")
    assert "noexec" in places["/tmp"].split(",")


def test_the_profile_is_the_one_that_every_engine_has() -> None:
    no_new_privileges, profile = config()["HostConfig"]["SecurityOpt"]
    assert no_new_privileges == "no-new-privileges"
    shipped = Path(container.__file__).parents[1] / "seccomp.json"
    assert json.loads(profile.removeprefix("seccomp=")) == json.loads(shipped.read_text())


def test_variables_of_the_image_are_taken_away() -> None:
    assert config()["Env"] == ["PATH=/usr/bin", "HOME=/tmp", "LD_PRELOAD", "PYTHONPATH"]


def read_back(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What an honest engine says of it."""
    found = copy.deepcopy(dict(asked))
    mounts = [{"Destination": m["Target"], "RW": not m["ReadOnly"]} for m in asked["HostConfig"]["Mounts"]]
    return {"Config": found, "HostConfig": found["HostConfig"], "Mounts": mounts}


def test_an_honest_engine_passes() -> None:
    check_readback(config(), read_back(config()))


@pytest.mark.parametrize(
    "changed",
    [
        *(pytest.param({name: None}, id=f"no-{name}") for name in container._READ_BACK),
        *(pytest.param({name: ["x"]}, id=f"with-{name}") for name in container._ABSENT),
        pytest.param({"LogConfig": {"Type": "json-file"}}, id="log-driver"),
        pytest.param({"RestartPolicy": {"Name": "always"}}, id="restart"),
    ],
)
def test_an_engine_that_holds_something_else_is_refused(changed: dict[str, Any]) -> None:
    found = read_back(config())
    found["HostConfig"].update(changed)
    with pytest.raises(PostureMismatch, match=next(iter(changed))):
        check_readback(config(), found)


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        pytest.param("0 0 4294967295\n", 1000, id="not-mapped"),
        pytest.param("0 200000 65536\n", 201000, id="remapped"),
        pytest.param("0 1000 1\n1 100000 65536\n", 100999, id="rootless"),
    ],
)
def test_an_id_of_the_container_is_known_here(ranges: str, found: int) -> None:
    assert posture.mapped(1000, ranges) == found


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        pytest.param("1000 0 1\n", "root's here", id="to-root"),
        pytest.param("0 200000 1000\n", "has no id 1000", id="not-there"),
        pytest.param("", "has no id 1000", id="none"),
    ],
)
def test_an_id_that_is_roots_or_nobodys_is_refused(ranges: str, says: str) -> None:
    with pytest.raises(PostureMismatch, match=says):
        posture.mapped(1000, ranges)


def test_an_engine_that_remaps_has_volumes_owned_by_whom_ids_are_mapped_to() -> None:
    info = {"SecurityOptions": ["name=seccomp", "name=userns"], "DockerRootDir": "/data/200000.300000"}
    (mount,) = config(owner=volume_owner(info))["HostConfig"]["Mounts"]
    assert "uid=201000,gid=301000" in mount["VolumeOptions"]["DriverConfig"]["Options"]["o"]


def test_a_mount_that_was_not_asked_for_is_refused() -> None:
    found = read_back(config())
    found["Mounts"].append({"Destination": "/data", "RW": True})
    with pytest.raises(PostureMismatch, match="mounts"):
        check_readback(config(), found)


@pytest.mark.parametrize(
    ("without", "names"),
    [
        pytest.param({"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]}, "Seccomp", id="seccomp"),
        pytest.param({"SecurityOpt": []}, "NoNewPrivs", id="new-privileges"),
        pytest.param({"CapDrop": []}, "CapBnd", id="capabilities"),
        pytest.param({"NetworkMode": "host"}, "net namespace", id="network"),
        pytest.param({"IpcMode": "host"}, "ipc namespace", id="ipc"),
        pytest.param({"PidMode": "host"}, "pid namespace", id="pid"),
        pytest.param({"CgroupnsMode": "host"}, "cgroup namespace", id="cgroup"),
        pytest.param({"ReadonlyRootfs": False}, "/ of the container is writable", id="rootfs"),
        pytest.param({"Memory": 1 << 30, "MemorySwap": 1 << 30}, "cgroup limits", id="memory"),
        pytest.param({"PidsLimit": 1000}, "cgroup limits", id="pids"),
        pytest.param({"Ulimits": []}, "open files", id="ulimits"),
        pytest.param({"Mounts": []}, "terminals", id="terminals"),
    ],
)
async def test_a_live_container_without_a_layer_is_refused(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, without: dict[str, Any], names: str
) -> None:
    """The engine's word is left out, so that only the kernel can tell."""

    def lacking(**fields: Any) -> dict[str, Any]:
        made = forced(**fields)
        made["HostConfig"].update(without)
        if "NetworkMode" in without:
            made["NetworkDisabled"] = False
            made["HostConfig"]["Sysctls"] = {}  # the host's are not Docker's to set
        return made

    monkeypatch.setattr("belljar.engines.docker.engine.forced", lacking)
    monkeypatch.setattr(running, "check_readback", lambda *_: None)
    with pytest.raises(PostureMismatch, match=names):
        await engine.create(Grant())


async def test_a_caller_reaches_none_of_it(engine: DockerEngine) -> None:
    """Whatever a command says, the container was made before it was heard."""
    jar = await engine.create(Grant())
    hostile = Command(
        argv=("sh", "-c", "id -u; id -g; env | grep -c LD_", "--privileged", "-v/:/host"),
        env={"DOCKER_HOST": "unix:///var/run/docker.sock", "LD_PRELOAD": "/x.so", "USER": "0"},
        cwd="/workspace/work/--privileged",
    )
    said = b"".join(
        [
            event.data
            async for event in jar.exec(hostile)
            if isinstance(event, Output) and event.stream is Stream.STDOUT
        ]
    )
    assert said.splitlines() == [b"1000", b"1000", b"1"]
    await jar.destroy()


async def test_the_guest_is_out_of_a_programs_reach(engine: DockerEngine) -> None:
    """It is of the same uid and can be seen, but neither read, traced, nor killed."""
    code = """
import ctypes, os
def attempt(deed, *args):
    try:
        deed(*args)
    except OSError as error:
        print(error.strerror)
    else:
        print("reached")
for name in ("mem", "maps", "environ", "fd"):
    attempt(os.open, f"/proc/1/{name}", os.O_RDONLY)
for name in ("cwd", "root", "exe"):
    attempt(os.readlink, f"/proc/1/{name}")
print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))
os.kill(1, 9)
print("alive")
"""
    jar = await engine.create(Grant())
    said = b"".join(
        [
            event.data
            async for event in jar.exec(Command(argv=("python3", "-c", code)))
            if isinstance(event, Output)
        ]
    ).decode()
    assert said.splitlines() == ["Permission denied"] * 7 + ["-1", "alive"]
    await jar.destroy()
