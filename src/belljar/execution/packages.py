"""Packages for a run: installed in a jar of their own, kept, and handed to every run that asks for the same.

    wanted ─► in stock? ─► read, its digest checked ──────────────────┬─► is all of it allowed? does it fit?
                  └─ no ─► a jar: pip, wheels, the index, nothing else ─► stock ─┘

Nothing is resolved, unpacked or built on the host. The jar has the program's engine and image, so what is
installed is for that Python; its network is the operator's index, to be read from only, or none at all where
the wheels come from a folder. What a package needs is installed with it and must be allowed like it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from belljar.engines.base import Engine
from belljar.errors import LimitExceeded, PackageUnavailable
from belljar.execution import installing, runs
from belljar.execution.stock import Installed, Stock
from belljar.execution.submissions import sha256
from belljar.guest import tree, trust
from belljar.models import (
    Artifact,
    Carried,
    Contacted,
    Grant,
    InputFile,
    Language,
    Limits,
    Network,
    NetworkRules,
    Package,
    RunRequest,
    RunResult,
    SkipReason,
    Start,
    Verdict,
    canonical_json,
)
from belljar.policy.packages import FIELD, check_allowed, name_of, requirements

__all__ = ["Packages", "Supply"]

FORMAT = 1
"""Of what is kept: another one is made anew."""
MAX_FILES = 20_000
MAX_WHEELS = 2000
BASE_MB = 256
"""Memory of the jar that installs, beside the files in it."""

Tell = Callable[[Contacted | Carried], None]

_PAGE = 4096
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LAYER = "sandbox.packages"
_TOO_MUCH = frozenset({SkipReason.TOO_LARGE, SkipReason.TOO_MANY})
_PYTHON = """\
import json, platform, sys
print(json.dumps([sys.version, "%d%d" % sys.version_info[:2], platform.machine(), *platform.libc_ver()]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Where packages come from, and how much of them: the operator's word. A folder goes before an index."""

    index_url: str | None = None
    file_hosts: tuple[str, ...] = ()
    allowed_ips: tuple[str, ...] = ()
    wheelhouse: Path | None = None
    timeout_s: float = 180.0
    max_mb: int = 256


@dataclass(frozen=True, slots=True)
class _Wheel:
    path: Path
    size: int
    mtime_ns: int


class Packages:
    def __init__(self, supply: Supply, stock: Stock) -> None:
        self._supply = supply
        self._stock = stock
        self._pythons: dict[tuple[str, str | None], Sequence[str]] = {}
        """What Python a jar of an engine and image has."""

    async def prepare(
        self,
        engine: Engine,
        grant: Grant,
        wanted: Sequence[str],
        tell: Tell = lambda contacted: None,
    ) -> Installed:
        """What a run under this grant asks for; `tell` hears what the index was asked for meanwhile.

        Raises:
            PackageNotAllowed: one of them, or one that they need.
            PackageUnavailable: one of them cannot be had, or not now; says why.
            LimitExceeded: they are more than fits.
            EngineUnavailable, StoreUnavailable: of ours.
        """
        asked = requirements(wanted)
        check_allowed(asked, grant.packages)
        if self._supply.index_url is None and self._supply.wheelhouse is None:
            raise PackageUnavailable(
                "there is nowhere to install packages from; the operator sets sandbox.packages.index_url or "
                "sandbox.packages.wheelhouse",
                field=FIELD,
            )
        python = await self._python(engine, grant)
        wheels = await asyncio.to_thread(self._wheels, python)
        key = self._key(asked, [engine.name, grant.image, *python], wheels)
        installed = await asyncio.to_thread(self._stock.get, key)
        if installed is None:
            async with self._stock.making(key, self._supply.timeout_s):
                installed = await asyncio.to_thread(self._stock.get, key)
                if installed is None:
                    installed = await self._install(engine, grant, asked, wheels, tell)
                    await asyncio.to_thread(self._stock.put, key, installed)
        check_allowed([one.name for one in installed.packages], grant.packages)
        _check_room(installed, grant.limits)
        return installed

    def _key(self, asked: Sequence[str], place: Sequence[str | None], wheels: Sequence[_Wheel]) -> str:
        if self._supply.wheelhouse is None:
            source: object = self._supply.index_url
        else:
            source = [[wheel.path.name, wheel.size, wheel.mtime_ns] for wheel in wheels]
        return sha256(canonical_json([FORMAT, asked, source, place]))

    async def _python(self, engine: Engine, grant: Grant) -> Sequence[str]:
        """Asked of a jar, once: version, version without dots, machine, and what it calls its C library."""
        place = (engine.name, grant.image)
        if place not in self._pythons:
            asking = Grant(image=grant.image, accept_weaker_limits=grant.accept_weaker_limits)
            result = await runs.run(engine, asking, RunRequest(language=Language.PYTHON, code=_PYTHON))
            try:
                version, short, machine, *library = map(str, json.loads(result.stdout))
                self._pythons[place] = (version, short, machine, *library)
            except (TypeError, ValueError):
                message = f"the jar has no Python that packages can be installed for ({result.verdict})"
                raise PackageUnavailable(message, field=FIELD) from None
        return self._pythons[place]

    # What it is installed from

    def _wheels(self, python: Sequence[str]) -> list[_Wheel]:
        """Those of the folder that this Python could use, by their names; none where there is an index."""
        if self._supply.wheelhouse is None:
            return []
        wheels = []
        try:
            for path in sorted(self._supply.wheelhouse.iterdir()):
                if _is_plausible(path.name, *python[1:3]) and path.is_file():
                    found = path.stat()
                    wheels.append(_Wheel(path, found.st_size, found.st_mtime_ns))
        except OSError as error:
            raise _unreadable(error) from error
        size = sum(wheel.size for wheel in wheels)
        if len(wheels) > MAX_WHEELS or size > self._supply.max_mb << 20:
            raise PackageUnavailable(
                f"sandbox.packages.wheelhouse has {len(wheels)} wheels of {size >> 20} MB for this Python; "
                f"at most {MAX_WHEELS} of {self._supply.max_mb} MB (sandbox.packages.max_mb) are looked at",
                field=FIELD,
            )
        return wheels

    def _inputs(self, wheels: Sequence[_Wheel]) -> tuple[InputFile, ...]:
        try:
            files = {wheel.path.name: wheel.path.read_bytes() for wheel in wheels}
        except OSError as error:
            raise _unreadable(error) from error
        staged = (InputFile(f"{installing.WHEELS}/{name}", content) for name, content in files.items())
        return (InputFile(installing.PIP, _pip()), *staged)

    # The jar

    async def _install(
        self,
        engine: Engine,
        grant: Grant,
        asked: Sequence[str],
        wheels: Sequence[_Wheel],
        tell: Tell,
    ) -> Installed:
        index = None if self._supply.wheelhouse else urlsplit(self._supply.index_url or "")
        order = {
            "requirements": asked,
            "index_url": index and index.geturl(),
            "certificates": trust.CERTIFICATES,  # egress opens TLS, to see that it is only read from
            "plain_host": index.hostname if index and index.scheme == "http" else None,
        }
        request = RunRequest(
            language=Language.PYTHON,
            code=resources.files(__package__).joinpath("installing.py").read_text("utf-8"),
            start=Start.EXEC,
            inputs=await asyncio.to_thread(self._inputs, wheels),
            stdin=json.dumps(order).encode(),
        )
        result: RunResult | None = None
        async with aclosing(runs.stream(engine, self._grant(grant), request)) as events:
            async for event in events:
                if isinstance(event, Contacted | Carried):
                    tell(event)
                elif isinstance(event, RunResult):
                    result = event
        assert result is not None
        return self._installed(result)

    def _grant(self, grant: Grant) -> Grant:
        """For the jar that installs: wheels and what is in them lie in it side by side."""
        most = self._supply.max_mb
        limits = Limits(
            timeout_s=self._supply.timeout_s,
            memory_mb=4 * most + BASE_MB,
            input_mb=most + 16,
            input_files=MAX_WHEELS + 2,
            workspace_mb=2 * most + 16,
            workspace_files=2 * MAX_FILES,
            tmp_mb=2 * most + 16,
            artifact_mb=most,
            artifact_files=MAX_FILES,
        )
        network = Network() if self._supply.wheelhouse else self._network()
        return Grant(
            limits=limits,
            network=network,
            image=grant.image,
            accept_weaker_limits=grant.accept_weaker_limits,
        )

    def _network(self) -> Network:
        index = urlsplit(self._supply.index_url or "")
        hosts = (index.hostname or "", *self._supply.file_hosts)
        port = index.port or (80 if index.scheme == "http" else 443)
        rules = NetworkRules(
            _LAYER,
            hosts=hosts,
            ports=tuple(sorted({port, 443})),
            addresses=self._supply.allowed_ips,
            read_only_hosts=hosts,
        )
        return Network(True, (rules,))

    # What comes out of it

    def _installed(self, result: RunResult) -> Installed:
        if result.verdict is Verdict.TIMEOUT:
            most = f"{self._supply.timeout_s:g} s (sandbox.packages.timeout_seconds)"
            raise PackageUnavailable(f"installing the packages took longer than {most}", field=FIELD)
        skipped = {skip.reason for skip in result.skipped}
        if result.verdict in (Verdict.OOM, Verdict.DISK_FULL) or skipped & _TOO_MUCH:
            most = f"{self._supply.max_mb} MB (sandbox.packages.max_mb) or {MAX_FILES} files"
            raise LimitExceeded(f"the packages are more than {most} when they are installed", field=FIELD)
        if result.verdict is not Verdict.EXITED or result.exit_code != 0 or skipped:
            raise PackageUnavailable(f"the packages cannot be installed: {_last_words(result)}", field=FIELD)
        left = {artifact.path: artifact for artifact in result.artifacts}
        folder = f"artifacts/{installing.FOLDER}/"
        files = [
            InputFile(path.removeprefix(folder), artifact.content)
            for path, artifact in sorted(left.items())
            if path.startswith(folder)
        ]
        return Installed(_reported(left.get(f"artifacts/{installing.REPORT}")), tuple(files))


def _pip() -> bytes:
    """The pip beside us as one file: so that it can be run by a Python that has none."""
    import io
    import zipfile

    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise PackageUnavailable("belljar's own environment has no pip; install it there", field=FIELD)
    folder = Path(spec.origin).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".exe"):
                archive.write(path, f"pip/{path.relative_to(folder)}")
    return packed.getvalue()


def _is_plausible(name: str, version: str, machine: str) -> bool:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename:
        return False
    return any(
        (tag.interpreter in ("py3", f"py{version}", f"cp{version}") or tag.abi == "abi3")
        and (tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(machine)))
        for tag in tags
    )


def _reported(report: Artifact | None) -> tuple[Package, ...]:
    """What pip says it installed. It was in a jar, so it is not believed to be well-formed."""
    try:
        rows: list[Mapping[str, Any]] = json.loads(report.content if report else b"")["install"]
        found = [_package(row) for row in rows]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        message = "pip does not say what it installed, or an index gives no sha256 of a wheel"
        raise PackageUnavailable(message, field=FIELD) from error
    return tuple(sorted(found, key=lambda package: package.name))


def _package(row: Mapping[str, Any]) -> Package:
    name, version = name_of(row["metadata"]["name"]), row["metadata"]["version"]
    digest = row["download_info"]["archive_info"]["hashes"]["sha256"]
    if not (_NAME.fullmatch(name) and _SHA256.fullmatch(digest)):
        raise ValueError
    return Package(name, _shown(version)[:100], digest)


def _check_room(installed: Installed, limits: Limits) -> None:
    """Whether a jar can hold them: files lie in its memory, in whole pages."""
    size = sum(-(-len(file.content) // _PAGE) * _PAGE for file in installed.files)
    folders = {folder for file in installed.files for folder in Path(file.path).parents}
    count = len(installed.files) + len(folders)
    if size >= min(limits.workspace_mb, limits.memory_mb) << 20 or count >= limits.workspace_files:
        raise LimitExceeded(
            f"the packages are {-(-size >> 20)} MB in {count} files and folders; granted are a workspace of "
            f"{limits.workspace_mb} MB and {limits.workspace_files} files in {limits.memory_mb} MB of memory",
            field=FIELD,
        )


def _last_words(result: RunResult) -> str:
    """What pip said last, and of an index that does not answer, why."""
    lines = [line for line in result.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = (errors or lines or [f"pip ended without a word ({result.verdict})"])[-1:]
    said += [line for line in lines if line.startswith(installing.INDEX)][-1:]
    return _shown("; ".join(one[:400] for one in said))


def _shown(text: str) -> str:
    return tree.display_name(text.encode("utf-8", "replace"))


def _unreadable(error: OSError) -> PackageUnavailable:
    message = f"the folder of wheels (sandbox.packages.wheelhouse) cannot be read: {error.strerror}"
    return PackageUnavailable(message, field=FIELD)
