"""What the service needs of a machine beside an engine: each check tries the real thing and never raises.

A check that fails says what to do. Nothing is made, neither folder nor key nor database; but the tables of a
database that is there are brought up to date, as the service would.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from belljar.errors import BelljarError

if TYPE_CHECKING:
    from collections.abc import Callable

    from belljar.config import Config
    from belljar.engines.base import Check, Probe

_LEAST_FREE_GB = 1.0
_LEAST_FREE_FILES = 10_000
_SAMPLE_MB = 8
_SLOWEST_MB_PER_S = 5.0
_SLOWEST_SYNC_MS = 200.0
"""Every record is synced before its caller has an answer."""
_SECRETS = ("signing.key", "token", "tokens.json")
_OPEN_TO_OTHERS = 0o077
_NOT_SYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""


class Checkup(NamedTuple):
    service: list[Check]
    engines: list[Probe]
    images: list[Check]
    settings: dict[str, str]
    """Key to where its value came from; the rest have their defaults."""
    ready: bool
    """All that is required is there, and an engine that the settings allow."""


async def examine(config: Config | None, problem: str) -> Checkup:
    """`config` is None where the settings cannot be used, for the reason that `problem` gives."""
    from belljar.engines.base import Check

    service = [_attempt("versions", _versions)]
    if config is None:
        service.append(_failed("settings", problem))
    else:
        given = len(config.sources)
        service += [
            Check("settings", True, f"{given} given, the others have their defaults"),
            _attempt("policy", _policy, config),
            *_folder(config),
            await _database(config),
        ]
    service.append(_attempt("clock", _clock, config))
    probes = await _probes(config)
    allowed = [probe for probe in probes if config is None or config.engine in ("auto", probe.engine)]
    usable = [probe for probe in allowed if probe.usable]
    if config is not None and usable:
        service.append(_served(config, usable[0]))
    return Checkup(
        service=service,
        engines=probes,
        images=await _images(config, probes),
        settings={
            key: f"{source.layer} {source.where}".strip()
            for key, source in (config.sources if config else {}).items()
        },
        ready=bool(usable) and all(check.ok for check in service if check.required),
    )


def _attempt(name: str, check: Callable[..., Check], *arguments: object) -> Check:
    try:
        return check(*arguments)
    except Exception as error:
        return _problem(name, error)


def _problem(name: str, error: Exception) -> Check:
    """A broken machine may do anything, and who asks what is wrong wants an answer."""
    import errno

    if isinstance(error, BelljarError):
        return _failed(name, error.message)
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free some space" if full else "see who owns it and who may write to it"
        return _failed(name, f"{error.strerror or error}{where}; {fix}")
    return _failed(name, f"{type(error).__name__}: {error}; install belljar anew")


def _failed(name: str, message: str) -> Check:
    """Our messages say what is wrong, and after a semicolon what to do."""
    from belljar.engines.base import Check

    what, _, fix = message.partition("; ")
    return Check(name, False, what, fix or "mend what it says, and run `belljar doctor` again")


def _versions() -> Check:
    import platform
    import sqlite3
    from importlib.metadata import PackageNotFoundError, version

    from belljar import __version__
    from belljar.engines.base import Check

    found = [
        f"belljar {__version__}",
        f"Python {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
    ]
    for package in ("cryptography", "starlette", "uvicorn", "aiodocker", "asyncpg", "mcp"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    return Check("versions", True, ", ".join(found))


def _policy(config: Config) -> Check:
    from belljar.engines.base import Check
    from belljar.wiring import policies_of, secrets_for

    secrets_for(config)
    detail = policies_of(config).name
    if not config.enabled:
        return Check("policy", False, "sandbox.enabled is false", "set it to true, or nothing runs")
    return Check("policy", True, detail)


def _folder(config: Config) -> list[Check]:
    import os

    folder = config.data_dir
    if os.path.isdir(folder):
        return [
            _attempt("data directory", _written, folder),
            _attempt("secrets", _secrets, folder),
            _attempt("disk", _room, folder),
        ]
    above = next(one for one in folder.parents if os.path.isdir(one))
    return [
        _attempt("data directory", _can_be_made, folder, above),
        _attempt("disk", _room, above),
    ]


def _can_be_made(folder: Path, above: Path) -> Check:
    """Tried, because rights alone do not tell: a file system may be read-only."""
    import tempfile

    from belljar.engines.base import Check

    try:
        if folder.exists():
            raise NotADirectoryError
        with tempfile.TemporaryDirectory(dir=above):
            return Check("data directory", True, f"{folder} is made by the first run")
    except OSError:
        fix = "make it, owned by this user and with mode 700, or set sandbox.data_dir"
        return Check("data directory", False, f"{folder} cannot be made", fix)


def _written(folder: Path) -> Check:
    """One large write for how fast it is, small synced ones for how long a record takes."""
    import os
    import tempfile
    import time
    from statistics import median

    from belljar.engines.base import Check

    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:

        def synced_s(data: bytes) -> float:
            began = time.monotonic()
            file.write(data)
            os.fsync(file.fileno())
            return time.monotonic() - began

        rate = _SAMPLE_MB / max(synced_s(bytes(_SAMPLE_MB * 1_000_000)), 1e-6)
        sync_ms = 1000 * median(synced_s(bytes(4096)) for _ in range(5))
    return Check(
        "data directory",
        rate >= _SLOWEST_MB_PER_S and sync_ms <= _SLOWEST_SYNC_MS,
        f"{folder} takes {rate:.0f} MB/s, and {sync_ms:.1f} ms for a synced write",
        "set sandbox.data_dir to a local disk; every run waits for its record",
        required=False,
    )


def _secrets(folder: Path) -> Check:
    from belljar.engines.base import Check

    there = [path for path in (folder, *(folder / name for name in _SECRETS)) if path.exists()]
    bare = [path for path in there if path.stat().st_mode & _OPEN_TO_OTHERS]
    names = " ".join(str(path) for path in bare)
    return Check(
        "secrets",
        not bare,
        f"open to other users: {names}" if bare else "closed to other users",
        f"chmod go= {names}",
        required=False,
    )


def _room(folder: Path) -> Check:
    import os

    from belljar.engines.base import Check

    found = os.statvfs(folder)
    free_gb = found.f_bavail * found.f_frsize / 1e9
    few_files = 0 < found.f_files and found.f_favail < _LEAST_FREE_FILES
    return Check(
        "disk",
        free_gb >= _LEAST_FREE_GB and not few_files,
        f"{free_gb:.1f} GB free" + (f", room for {found.f_favail} files" if few_files else ""),
        "free some, or lower sandbox.keep_gb and sandbox.keep_days",
        required=False,
    )


async def _database(config: Config) -> Check:
    from belljar.audit.migrations import MIGRATIONS
    from belljar.audit.receipts import Signer
    from belljar.engines.base import Check
    from belljar.service import open_store

    key = config.data_dir / "signing.key"
    url = config.database_url
    in_file = url is None or url.startswith("sqlite:")
    path = Path(url.removeprefix("sqlite://")) if url and in_file else config.data_dir / "belljar.db"
    if in_file and not _is_there(path):
        return Check("database", True, f"{path} is made by the first run")
    if in_file and not _is_there(key):
        fix = "restore the key that belongs to these records, or move the records away"
        return Check("database", False, f"{path.name} is there, but {key} is not", fix)
    try:
        store = await open_store(config, Signer.load_or_create(key) if _is_there(key) else None)
        await store.close()
    except ImportError:
        return Check(
            "database", False, "PostgreSQL needs a driver", "in belljar's source: pip install '.[postgres]'"
        )
    except Exception as error:
        return _problem("database", error)
    kind = "SQLite" if in_file else "PostgreSQL"
    ours = "the last receipt is of this key" if _is_there(key) else "nothing was signed here yet"
    return Check("database", True, f"{kind} opens, tables of version {len(MIGRATIONS)}, {ours}")


def _is_there(path: Path) -> bool:
    """As far as can be seen; Path's own raises where that is not far."""
    import os

    return os.path.exists(path)


def _clock(config: Config | None) -> Check:
    import ctypes
    import time
    from datetime import UTC, datetime

    from belljar.engines.base import Check

    trail = config.data_dir / "audit.jsonl" if config else None
    behind_s = trail.stat().st_mtime - time.time() if trail and trail.exists() else 0.0
    libc = ctypes.CDLL(None)
    # struct timex is at most 208 bytes; all zero, it only asks.
    state = libc.adjtimex(ctypes.create_string_buffer(512)) if hasattr(libc, "adjtimex") else 0
    synchronised = state != _NOT_SYNCHRONISED
    detail = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if behind_s > 60:
        detail += f", {behind_s:.0f} s before the last record"
    if not synchronised:
        detail += ", not kept in step with others"
    return Check(
        "clock",
        behind_s <= 60 and synchronised,
        detail,
        "timedatectl set-ntp true, or install chrony",
        required=False,
    )


def _served(config: Config, probe: Probe) -> Check:
    """A person's own run takes weaker limits than a server does."""
    from belljar.engines.base import Check
    from belljar.wiring import accepts_weaker_limits

    held = all(check.ok for check in probe.checks if check.name == "cgroup")
    accepted = accepts_weaker_limits(config, person=False)
    return Check(
        "server",
        held or accepted,
        f"engine {probe.engine}"
        + ("" if held else ", with weaker limits" if accepted else ": without a cgroup it refuses runs"),
        "systemd-run --user --scope -p Delegate=yes belljar serve; or, on a machine of your own, "
        "BELLJAR_JAIL_ACCEPT_WEAKER_LIMITS=always",
        required=False,
    )


async def _probes(config: Config | None) -> list[Probe]:
    from belljar.engines import ENGINES, Choice
    from belljar.engines.base import Probe
    from belljar.wiring import choice_for

    try:
        choice = choice_for(config) if config else Choice()
    except BelljarError:  # that is told as the fault it is, of the policy
        choice = Choice()

    async def probed(name: str) -> Probe:
        try:
            return await ENGINES[name](choice).probe()
        except Exception as error:
            return Probe(name, (_problem("engine", error),))

    return [await probed(name) for name in ENGINES]


async def _images(config: Config | None, probes: list[Probe]) -> list[Check]:
    """None where there is no docker engine to have them."""
    from belljar.engines.base import Check
    from belljar.engines.docker import images
    from belljar.engines.docker.api import Api
    from belljar.wiring import images_of

    docker = next(probe for probe in probes if probe.engine == "docker")
    if config is None or not docker.checks[0].ok:
        return []
    checks = []
    for name, uses in images_of(config).items():
        try:
            api = await Api.open(config.docker_host, config.docker_context)
            try:
                image = await images.find(api, name)
            finally:
                await api.close()
        except BelljarError as error:
            fix = error.message.rpartition("; ")[2]
            checks.append(Check(name, False, f"for {uses}, not there", fix, required=False))
        else:
            checks.append(Check(name, True, f"for {uses}, {image.size // 1_000_000} MB, {image.id}"))
    return checks
