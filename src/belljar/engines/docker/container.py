"""What every container of ours is, as the Engine API is asked for it; nothing a caller says gets in here.

    image      named by its digest; its entrypoint, command, user, health check and variables do not count
    /          read-only
    /workspace one tmpfs with the grant's size and number of files, for `work` and `artifacts`
    inputs     a tmpfs of its own, read-only in the jar; only a stager, another container, can write to it
    /tmp       and /dev/shm: tmpfs, no programs
    /dev/pts   terminals of the jar's own, and few of them; or none
    network    none, and no address of a resolver
    uid        1000:1000, no capability, no way to get one

`forced` is the whole of it. `check_readback` asks the engine what it made of that: an engine, or something
between, may have dropped what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from belljar.engines import kernelfs, seccomp
from belljar.engines.cgroup import CPU_PERIOD_US, limits_for
from belljar.errors import PostureMismatch
from belljar.models import Limits

UID = 1000
STAGER_UID = 1001
"""Who owns the inputs where read-only is not enough: it runs nothing but our guest."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where an image says nothing better."""
WORKSPACE = "/workspace"
INPUTS = "/workspace/inputs"

TERMINALS = "/dev/pts"

_HIDDEN = ("/sys", "/dev/mqueue")
_READ_ONLY_IN_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A tmpfs that outlives a container: the only thing that two containers can share."""

    name: str
    target: str
    read_only: bool
    uid: int = UID


class FileOwner(NamedTuple):
    """Of the files in a volume, as the engine sees it; in the container it is 1000:1000 always."""

    uid: int = 1000
    gid: int = 1000


_OWNER = FileOwner()


def volume_owner(info: Mapping[str, Any]) -> FileOwner:
    """An engine that remaps ids mounts volumes as one who does not, and has a folder for each mapping."""
    remaps = any("name=userns" in option for option in info.get("SecurityOptions") or ())
    first = re.search(r"/(\d+)\.(\d+)$", str(info.get("DockerRootDir"))) if remaps else None
    return FileOwner(int(first[1]) + 1000, int(first[2]) + 1000) if first else _OWNER


def forced(
    *,
    image: str,
    image_env: Sequence[str],
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    limits: Limits,
    runtime: str,
    labels: Mapping[str, str],
    volumes: Sequence[Volume],
    owner: FileOwner = _OWNER,
    uid: int = UID,
    terminals: bool = False,
    keep: bool = False,
) -> dict[str, Any]:
    """The body of `POST /containers/create`. `keep`: the engine does not remove it when it ends."""
    wanted = limits_for(limits.memory_mb, limits.pids, limits.cpu_cores)
    dropped = {entry.partition("=")[0] for entry in image_env} - env.keys()
    places = {volume.target for volume in volumes}
    own = {
        WORKSPACE: f"exec,{_tmpfs(limits.workspace_mb, limits.workspace_files)},{_owned(_OWNER, uid)}",
        "/tmp": f"noexec,{_tmpfs(limits.tmp_mb, 16384)},mode=1777",
        "/dev/shm": f"noexec,{_tmpfs(limits.tmp_mb, 16384)},mode=1777",
    }
    return {
        "Image": image,
        "Entrypoint": list(argv[:1]),
        "Cmd": list(argv[1:]),
        # A name without a value takes the image's variable away.
        "Env": [*(f"{name}={value}" for name, value in env.items()), *sorted(dropped)],
        "User": f"{uid}:{uid}",
        "WorkingDir": cwd,
        "Hostname": "belljar",
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Labels": dict(labels),
        # Docker's own part of a network (hosts, resolver, their bookkeeping) takes longer than all the rest.
        "NetworkDisabled": True,
        "Tty": False,
        "OpenStdin": True,
        # When we are gone, so is its stdin, and with that the guest and everything in the container.
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "NetworkMode": "none",
            "Sysctls": {"net.ipv4.ping_group_range": "1 0"},  # Docker would let everybody ping
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "PidMode": "",
            "UTSMode": "",
            "ReadonlyRootfs": True,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={_profile()}"],
            "MaskedPaths": [
                *_HIDDEN,
                *([] if terminals else [TERMINALS]),
                *(f"/proc/{name}" for name in kernelfs.HIDDEN_IN_PROC),
            ],
            "ReadonlyPaths": [f"/proc/{name}" for name in _READ_ONLY_IN_PROC],
            "Memory": wanted["memory"],
            "MemorySwap": wanted["memory"],
            "PidsLimit": wanted["pids"],
            "CpuPeriod": CPU_PERIOD_US,
            "CpuQuota": wanted["cpu_quota_us"],
            "Ulimits": [
                {"Name": name, "Soft": value, "Hard": value} for name, value in _ulimits(limits).items()
            ],
            "Tmpfs": {place: options for place, options in own.items() if place not in places},
            "Mounts": [
                *(_mount(volume, limits, labels, owner) for volume in volumes),
                *([_terminals(labels)] if terminals else []),
            ],
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": not keep,
            "Init": False,
            "Runtime": runtime,
        },
    }


def writable(config: Mapping[str, Any]) -> set[str]:
    """The places where such a container can make files."""
    host = config["HostConfig"]
    mounted = {mount["Target"] for mount in host["Mounts"] if not mount["ReadOnly"]}
    return {*host["Tmpfs"], *mounted} - {TERMINALS}


_READ_BACK = (
    "NetworkMode",
    "Sysctls",
    "IpcMode",
    "CgroupnsMode",
    "PidMode",
    "UTSMode",
    "ReadonlyRootfs",
    "Privileged",
    "CapDrop",
    "SecurityOpt",
    "MaskedPaths",
    "ReadonlyPaths",
    "Memory",
    "MemorySwap",
    "PidsLimit",
    "CpuPeriod",
    "CpuQuota",
    "Ulimits",
    "Tmpfs",
    "Runtime",
    "Init",
)
_ABSENT = (
    "Binds",
    "CapAdd",
    "DeviceCgroupRules",
    "DeviceRequests",
    "Devices",
    "GroupAdd",
    "Links",
    "VolumesFrom",
)


def check_readback(asked: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """PostureMismatch for the first thing that the engine holds otherwise than it was asked to."""
    host, held = asked["HostConfig"], found["HostConfig"]
    for name in _READ_BACK:
        _expect(name, held.get(name), host[name])
    for name in _ABSENT:
        _expect(name, held.get(name) or None, None)
    _expect("LogConfig", held["LogConfig"]["Type"], "none")
    _expect("RestartPolicy", held["RestartPolicy"]["Name"], "no")
    for name in ("User", "Tty"):
        _expect(name, found["Config"].get(name), asked[name])
    _expect("Healthcheck", found["Config"]["Healthcheck"]["Test"], asked["Healthcheck"]["Test"])
    _expect("Entrypoint", list(found["Config"]["Entrypoint"]), asked["Entrypoint"])
    wanted = {(mount["Target"], not mount["ReadOnly"]) for mount in host["Mounts"]}
    _expect("mounts", {(mount["Destination"], mount["RW"]) for mount in found["Mounts"]}, wanted)


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        shown = "something else" if what == "SecurityOpt" else repr(found)
        raise PostureMismatch(f"{what} of the container is {shown}, not what was asked for")


@cache
def _profile() -> str:
    return json.dumps(seccomp.load_profile())


def _tmpfs(size_mb: int, files: int) -> str:
    return f"nosuid,nodev,size={size_mb}m,nr_inodes={files}"


def _owned(owner: FileOwner, uid: int) -> str:
    return f"uid={owner.uid + uid - UID},gid={owner.gid + uid - UID},mode=755"


def _mount(volume: Volume, limits: Limits, labels: Mapping[str, str], owner: FileOwner) -> dict[str, Any]:
    options = f"{_tmpfs(limits.workspace_mb, limits.workspace_files)},{_owned(owner, volume.uid)}"
    return {
        "Type": "volume",
        "Source": volume.name,
        "Target": volume.target,
        "ReadOnly": volume.read_only,
        "VolumeOptions": _volume("tmpfs", options, labels),
    }


def _terminals(labels: Mapping[str, str]) -> dict[str, Any]:
    """Docker's own /dev/pts has no limit but the machine's, which all jars share; a volume can have one.

    It has no name, so it goes away with its container.
    """
    return {
        "Type": "volume",
        "Target": TERMINALS,
        "ReadOnly": False,
        "VolumeOptions": _volume("devpts", f"nosuid,noexec,{kernelfs.TERMINALS}", labels),
    }


def _volume(kind: str, options: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "NoCopy": True,  # nothing of the image's
        "Labels": dict(labels),
        "DriverConfig": {"Name": "local", "Options": {"type": kind, "device": kind, "o": options}},
    }


def _ulimits(limits: Limits) -> dict[str, int]:
    """As the jail's, but for `nproc`: uid 1000 is the same in every container, so they would share it."""
    return {
        "nofile": limits.nofile,
        "core": 1,  # not 0: a core_pattern that pipes to a program of the host ignores 0. core(5)
        "memlock": 1 << 16,
        "msgqueue": 0,
        "nice": 0,
        "rtprio": 0,
        "sigpending": 1024,
    }
