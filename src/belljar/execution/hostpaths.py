"""Where the workspace lies, as this system and as its Docker write it (Windows, WSL or plain Linux).

One folder has two names, `D:\\jars` to Windows and `/mnt/d/jars` to WSL. An operator may set either or both;
a system only ever gets its own form. The other form is converted by drive letter, as WSL mounts drives by
default; where that is not so, set both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath, PureWindowsPath

from belljar.errors import BadConfig

__all__ = ["Environment", "HostPaths", "detect_environment", "host_paths"]

_WIN = "sandbox.workspace_root_win"
_WSL = "sandbox.workspace_root_wsl"

_DRIVE = re.compile(r"(?:\\\\\?\\)?([A-Za-z]):")
_WSL_SHARE = re.compile(r"\\\\wsl(?:\$|\.localhost)\\[^\\]+", re.IGNORECASE)


class Environment(StrEnum):
    AUTO = "auto"  # take what `detect_environment` finds
    WINDOWS = "windows"
    WSL = "wsl"  # Linux under Windows, with its drives under /mnt
    LINUX = "linux"  # any other POSIX system: paths are used as they are


@dataclass(frozen=True, slots=True)
class HostPaths:
    host_path_native: str
    """What this system opens."""
    docker_mount_path: str
    """What this system's docker takes as the source of a mount."""


def detect_environment(platform: str, kernel_release: str) -> Environment:
    """From `sys.platform` and `platform.release()`; a WSL kernel has `microsoft` in its release."""
    if platform.lower().startswith("win"):
        return Environment.WINDOWS
    return Environment.WSL if "microsoft" in kernel_release.lower() else Environment.LINUX


def host_paths(
    environment: Environment,
    *,
    detected: Environment,
    workspace_root_win: str | None = None,
    workspace_root_wsl: str | None = None,
) -> HostPaths:
    """The workspace root in this system's own form; an empty setting is converted from the other one.

    Raises:
        BadConfig: neither setting gives a path that this system can use; `field` is the one to set.
    """
    if environment is Environment.AUTO:
        environment = detected
    if environment is Environment.WINDOWS:
        root = _windows(workspace_root_win) if workspace_root_win else _windows_of(workspace_root_wsl)
        native = str(root)
    elif workspace_root_wsl:
        native = str(_posix(workspace_root_wsl))
    elif environment is Environment.WSL and workspace_root_win:
        native = str(_posix_of(workspace_root_win))
    else:
        raise BadConfig(f"{_WSL} is not set; set it to an absolute path such as /srv/belljar", field=_WSL)
    return HostPaths(host_path_native=native, docker_mount_path=native)


def _windows(root: str) -> PureWindowsPath:
    path = _checked_windows(root)
    drive = _DRIVE.fullmatch(path.drive)
    if drive is None:
        raise BadConfig(
            f"{_WIN} is {_shown(root)}, a network or WSL share that Docker cannot mount from; "
            r"give a folder on a drive such as D:\belljar",
            field=_WIN,
        )
    return PureWindowsPath(f"{drive[1].upper()}:\\", *path.parts[1:])


def _posix(root: str) -> PurePosixPath:
    path = PurePosixPath(root)
    if not path.is_absolute() or ".." in path.parts or "\0" in root:
        raise BadConfig(
            f"{_WSL} is {_shown(root)}, which is not an absolute POSIX path without '..'; "
            "write it like /mnt/d/belljar",
            field=_WSL,
        )
    return PurePosixPath("/", *path.parts[1:])  # `//x` may mean something else


def _windows_of(root_wsl: str | None) -> PureWindowsPath:
    if not root_wsl:
        raise BadConfig(rf"{_WIN} is not set; set it to a folder on a drive such as D:\belljar", field=_WIN)
    match _posix(root_wsl).parts:
        case ("/", "mnt", drive, *names) if re.fullmatch("[A-Za-z]", drive):
            if not any(re.search(r"[\\:]", name) for name in names):
                return PureWindowsPath(f"{drive.upper()}:\\", *names)
    raise BadConfig(
        f"{_WSL} is {_shown(root_wsl)}, which is on no Windows drive, so it cannot be converted; "
        rf"set {_WIN} to a folder such as D:\belljar",
        field=_WIN,
    )


def _posix_of(root_win: str) -> PurePosixPath:
    path = _checked_windows(root_win)
    if drive := _DRIVE.fullmatch(path.drive):
        return PurePosixPath("/mnt", drive[1].lower(), *path.parts[1:])
    if _WSL_SHARE.fullmatch(path.drive):
        return PurePosixPath("/", *path.parts[1:])
    raise BadConfig(
        f"{_WIN} is {_shown(root_win)}, a network share that WSL has no path for; "
        f"set {_WSL} to an absolute path such as /mnt/d/belljar",
        field=_WSL,
    )


def _checked_windows(root: str) -> PureWindowsPath:
    path = PureWindowsPath(root)
    names = path.parts[1:]
    # A name with a colon is a drive or a stream of a file; joined again it would be another path.
    if not (path.drive and path.root) or any(":" in name or name == ".." for name in names) or "\0" in root:
        raise BadConfig(
            f"{_WIN} is {_shown(root)}, which is not an absolute Windows path without '..'; "
            r"write it like D:\belljar",
            field=_WIN,
        )
    return path


def _shown(root: str) -> str:
    return ascii(root[:100])
