"""Packages installed for runs in real jars, from an index on loopback that the tests serve and from folders."""

from __future__ import annotations

import _ctypes
import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.egress.jars import jail
from tests.egress.jars import run as run_with_network
from tests.egress.places import certified
from tests.execution.wheels import HOST, Index, index, sha256, way_out, wheel

from belljar.engines.base import Engine
from belljar.engines.jail.engine import JailEngine
from belljar.errors import (
    BadRequest,
    BelljarError,
    GrantNotEnforceable,
    LimitExceeded,
    PackageNotAllowed,
    PackageUnavailable,
)
from belljar.execution import runs
from belljar.execution.packages import Packages, Supply
from belljar.execution.requests import plan
from belljar.execution.risks import risk_of
from belljar.execution.stock import Installed, Stock
from belljar.models import (
    Carried,
    Contacted,
    Grant,
    InputFile,
    Language,
    Limits,
    Package,
    PatternRules,
    RiskTier,
    RunRequest,
    RunResult,
    Start,
)

pytestmark = pytest.mark.timeout(180)  # pip takes seconds to start, on a busy machine many

ALL = Grant(packages=(PatternRules("settings", allow=("*",)),), accept_weaker_limits=True)
ALPHA = wheel("alpha", needs=["beta>=1"])
BETA = wheel("beta", "2.0")
BOTH = (
    Package("alpha", "1.0", sha256(ALPHA[1])),
    Package("beta", "2.0", sha256(BETA[1])),
)
HUGE = wheel("huge", files={"huge.py": b"#" * (40 << 20)})

SHARED = InputFile(f"alpha/{Path(_ctypes.__file__).name}", Path(_ctypes.__file__).read_bytes())

MakePackages = Callable[[Supply], Packages]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = jail(way_out())
    yield engine
    await engine.close()


@pytest.fixture
async def served() -> AsyncIterator[Index]:
    async with index(ALPHA, BETA, HUGE) as served:
        yield served


@pytest.fixture
def stocked(tmp_path: Path) -> MakePackages:
    """Each as if it were of a process of its own; they share what is kept."""
    return lambda supply: Packages(supply, Stock(tmp_path / "stock", 100))


def wheelhouse(folder: Path, *wheels: tuple[str, bytes]) -> Supply:
    folder.mkdir(exist_ok=True)
    for name, content in wheels:
        (folder / name).write_bytes(content)
    return Supply(wheelhouse=folder)


async def run(engine: Engine, code: str, installed: Installed, **request: Any) -> RunResult:
    asked = RunRequest(language=Language.PYTHON, code=code, packages=("alpha",), **request)
    return await runs.run(engine, ALL, asked, installed)


# From an index


async def test_packages_and_what_they_need_are_installed_once_and_the_next_run_touches_no_network(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    heard: list[Contacted | Carried] = []
    installed = await stocked(served.supply).prepare(engine, ALL, ["alpha"], heard.append)
    assert installed.packages == BOTH
    assert not installed.from_stock
    assert {line.split()[0] for line in served.asked} == {"GET"}
    contacts = [event for event in heard if isinstance(event, Contacted)]
    assert {contact.rule for contact in contacts} == {"sandbox.packages: allowed_domains index.test"}

    asked, served.asked = served.asked, []
    assert asked
    again = await stocked(served.supply).prepare(engine, ALL, ["Alpha"], heard.append)
    assert again == replace(installed, from_stock=True)
    assert served.asked == []

    result = await run(engine, "import alpha, beta; print(alpha.version, beta.version)", again)
    assert result.stdout == b"1.0 2.0\n", result.stderr
    assert result.packages == BOTH
    assert result.artifacts == ()
    assert result.skipped == ()


async def test_an_index_behind_tls_is_read_and_nothing_else(stocked: MakePackages) -> None:
    """Egress opens the TLS to see that: pip believes its certificate, and it the server's."""
    identities, trust = certified(HOST)
    engine = jail(way_out(trust))
    async with index(BETA, identity=identities[HOST]) as served:
        installed = await stocked(served.supply).prepare(engine, ALL, ["beta"])
        assert installed.packages == BOTH[1:]
        assert {line.split()[0] for line in served.asked} == {"GET"}
        network = stocked(served.supply)._network()
        code = f"""
        import urllib.request
        try:
            urllib.request.urlopen("https://{HOST}:{served.port}/upload", data=b"a note for the next run")
        except OSError as error:
            print(error)
        """
        result, _ = await run_with_network(engine, network, code, Language.PYTHON)
        assert b"403" in result.stdout, result
        assert not [line for line in served.asked if line.startswith("POST")]
    await engine.close()


async def test_what_was_changed_in_stock_is_made_anew(
    engine: Engine, served: Index, stocked: MakePackages, tmp_path: Path
) -> None:
    await stocked(served.supply).prepare(engine, ALL, ["beta"])
    (archive,) = (tmp_path / "stock").glob("*.files")
    archive.write_bytes(archive.read_bytes().replace(b"version = '2.0'", b"version = '6.6'"))
    served.asked.clear()
    installed = await stocked(served.supply).prepare(engine, ALL, ["beta"])
    assert served.asked
    assert InputFile("beta.py", b"version = '2.0'\n") in installed.files


async def test_many_who_ask_for_the_same_at_once_make_it_once(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    makers = [stocked(served.supply) for _ in range(4)]
    found = await asyncio.gather(*(one.prepare(engine, ALL, ["beta"]) for one in makers))
    assert [one.packages for one in found] == [BOTH[1:]] * 4
    assert sum(not one.from_stock for one in found) == 1
    assert served.asked.count("GET /files/beta-2.0-py3-none-any.whl HTTP/1.1") == 1


async def test_who_is_cancelled_leaves_no_jar_and_lets_another_make_it(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    served.slow = asyncio.Event()
    packages = stocked(served.supply)
    making = asyncio.create_task(packages.prepare(engine, ALL, ["beta"]))
    await served.reached.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    served.slow.set()
    assert (await packages.prepare(engine, ALL, ["beta"])).packages == BOTH[1:]


async def test_a_name_that_is_needed_must_be_allowed_too_also_from_stock(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    packages = stocked(served.supply)
    narrow = replace(ALL, packages=(PatternRules("role:x", allow=("alpha",)),))
    for _ in range(2):
        with pytest.raises(
            PackageNotAllowed, match=r"package beta is not allowed \(role:x: not in"
        ) as refused:
            await packages.prepare(engine, narrow, ["alpha"])
        assert refused.value.field == "packages"
    assert (await packages.prepare(engine, ALL, ["alpha"])).from_stock


async def test_a_wheel_that_is_not_what_the_index_promised_is_refused(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    served.digests[BETA[0]] = sha256(b"another")
    with pytest.raises(PackageUnavailable, match=r"(?i)hash") as refused:
        await stocked(served.supply).prepare(engine, ALL, ["beta"])
    assert refused.value.field == "packages"


async def test_sources_are_not_built(engine: Engine, served: Index, stocked: MakePackages) -> None:
    served.files["gamma-1.0.tar.gz"] = b"not even one"
    with pytest.raises(PackageUnavailable, match="No matching distribution found for gamma"):
        await stocked(served.supply).prepare(engine, ALL, ["gamma"])
    assert not any(line.startswith("GET /files") for line in served.asked)


async def test_an_index_that_does_not_answer_is_said(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    down = replace(served.supply, index_url="http://index.test:9/simple")
    with pytest.raises(PackageUnavailable, match=r"the index does not answer: 502 .*connection refused"):
        await stocked(down).prepare(engine, ALL, ["beta"])


async def test_an_index_at_an_address_that_is_not_granted_is_not_reached(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    with pytest.raises(PackageUnavailable, match=r"the index does not answer: 403 .*not a public address"):
        await stocked(replace(served.supply, allowed_ips=())).prepare(engine, ALL, ["beta"])
    assert served.asked == []


async def test_an_index_that_never_answers_ends_with_its_own_time(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    served.slow = asyncio.Event()
    with pytest.raises(PackageUnavailable, match=r"longer than 3 s \(sandbox.packages.timeout_seconds\)"):
        await stocked(replace(served.supply, timeout_s=3)).prepare(engine, ALL, ["beta"])
    served.slow.set()


async def test_packages_that_are_too_large_are_refused(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    with pytest.raises(LimitExceeded, match="sandbox.packages.max_mb") as refused:
        await stocked(replace(served.supply, max_mb=16)).prepare(engine, ALL, ["huge"])
    assert refused.value.field == "packages"


async def test_a_grant_that_is_too_small_for_them_is_told_so(
    engine: Engine, served: Index, stocked: MakePackages
) -> None:
    small = replace(ALL, limits=Limits(workspace_mb=20))
    with pytest.raises(LimitExceeded, match="granted are a workspace of 20 MB") as refused:
        await stocked(served.supply).prepare(engine, small, ["huge"])
    assert refused.value.field == "packages"


async def test_an_engine_without_a_way_out_installs_nothing(served: Index, stocked: MakePackages) -> None:
    engine = jail(None)
    with pytest.raises(GrantNotEnforceable):
        await stocked(served.supply).prepare(engine, ALL, ["beta"])
    await engine.close()


# From a folder


async def test_a_folder_of_wheels_needs_no_network(stocked: MakePackages, tmp_path: Path) -> None:
    supply = wheelhouse(tmp_path / "wheels", ALPHA, BETA, ("notes.txt", b""), ("x.whl", b"no wheel's name"))
    engine = jail(None)
    installed = await stocked(supply).prepare(engine, ALL, ["alpha"])
    assert installed.packages == BOTH
    result = await run(engine, "import alpha; print(alpha.version)", installed)
    assert result.stdout == b"1.0\n"
    await engine.close()


async def test_a_folder_goes_before_an_index_and_another_wheel_in_it_is_seen(
    engine: Engine, served: Index, stocked: MakePackages, tmp_path: Path
) -> None:
    supply = wheelhouse(tmp_path / "wheels", BETA)
    packages = stocked(replace(served.supply, wheelhouse=supply.wheelhouse))
    assert (await packages.prepare(engine, ALL, ["beta"])).packages == BOTH[1:]
    wheelhouse(tmp_path / "wheels", wheel("beta", "3.0"))
    (found,) = (await packages.prepare(engine, ALL, ["beta"])).packages
    assert found.version == "3.0"
    assert served.asked == []


async def test_wheels_for_other_machines_are_not_even_sent(
    engine: Engine, stocked: MakePackages, tmp_path: Path
) -> None:
    foreign = "beta-9.0-cp27-cp27m-win32.whl"
    supply = wheelhouse(tmp_path / "wheels", BETA, (foreign, bytes(2 << 20)))
    installed = await stocked(replace(supply, max_mb=1)).prepare(engine, ALL, ["beta"])
    assert installed.packages == BOTH[1:]


async def test_a_folder_that_holds_too_much_is_refused(
    engine: Engine, stocked: MakePackages, tmp_path: Path
) -> None:
    supply = wheelhouse(tmp_path / "wheels", ("beta-9.0-py3-none-any.whl", bytes(2 << 20)))
    with pytest.raises(PackageUnavailable, match="sandbox.packages.max_mb"):
        await stocked(replace(supply, max_mb=1)).prepare(engine, ALL, ["beta"])


async def test_a_folder_that_is_not_there_is_said_without_its_path(
    engine: Engine, stocked: MakePackages, tmp_path: Path
) -> None:
    with pytest.raises(PackageUnavailable, match="sandbox.packages.wheelhouse") as refused:
        await stocked(Supply(wheelhouse=tmp_path / "none")).prepare(engine, ALL, ["beta"])
    assert str(tmp_path) not in refused.value.message


async def test_without_a_source_the_settings_are_named(engine: Engine, stocked: MakePackages) -> None:
    with pytest.raises(PackageUnavailable, match="sandbox.packages.index_url or sandbox.packages.wheelhouse"):
        await stocked(Supply()).prepare(engine, ALL, ["beta"])


@pytest.mark.parametrize(
    "path", [pytest.param("../../evil.py", id="above"), pytest.param("/tmp/evil.py", id="absolute")]
)
async def test_a_wheel_that_writes_elsewhere_is_refused(
    engine: Engine, stocked: MakePackages, tmp_path: Path, path: str
) -> None:
    supply = wheelhouse(tmp_path / "wheels", wheel("evil", files={path: "x = 1", "evil.py": ""}))
    with pytest.raises(PackageUnavailable, match="outside the target directory"):
        await stocked(supply).prepare(engine, ALL, ["evil"])


async def test_a_wheel_is_not_run_when_it_is_installed(
    engine: Engine, stocked: MakePackages, tmp_path: Path
) -> None:
    """Not even a module that pip itself would import under that name, nor a line of a .pth file."""
    hostile = "import sys; sys.exit('it was run')"
    names = ("json.py", "distutils.py", "sitecustomize.py", "evil.py")
    files = dict.fromkeys(names, hostile) | {"evil.pth": hostile}
    supply = wheelhouse(tmp_path / "wheels", wheel("evil", files=files))
    installed = await stocked(supply).prepare(engine, ALL, ["evil"])
    assert InputFile("evil.pth", hostile.encode()) in installed.files


# In the program's jar


def given(**files: bytes) -> Installed:
    """As if it had been installed."""
    return Installed((), tuple(InputFile(path, content) for path, content in files.items()))


async def test_what_is_compiled_is_used(engine: Engine, stocked: MakePackages, tmp_path: Path) -> None:
    installed = await stocked(wheelhouse(tmp_path / "wheels", BETA)).prepare(engine, ALL, ["beta"])
    changed = [replace(one, content=b"raise 1") if one.path == "beta.py" else one for one in installed.files]
    code = "import beta; print(beta.version, beta.__cached__)"
    result = await run(engine, code, replace(installed, files=tuple(changed)))
    version, cached = result.stdout.split()
    assert version == b"2.0"  # the source was not even looked at
    assert cached.startswith(b"/workspace/inputs/.packages/__pycache__/beta")


async def test_a_program_cannot_change_what_was_installed(engine: Engine) -> None:
    code = "import alpha\nopen(alpha.__file__, 'w')"
    result = await run(engine, code, given(**{"alpha.py": b""}))
    assert b"Read-only file system" in result.stderr


async def test_extension_modules_can_be_loaded(engine: Engine) -> None:
    """One of the standard library's, in a package."""
    installed = Installed((), (InputFile("alpha/__init__.py", b""), SHARED))
    result = await run(engine, "from alpha import _ctypes; print(_ctypes.__file__)", installed)
    assert result.stdout.startswith(b"/workspace/inputs/.packages/alpha/_ctypes"), result.stderr


async def test_a_path_of_the_callers_own_is_searched_first(engine: Engine) -> None:
    result = await run(
        engine,
        "import alpha, beta; print(alpha.__file__, beta.__file__)",
        given(**{"alpha.py": b"", "beta.py": b""}),
        env={"PYTHONPATH": "/workspace/work/own"},
        files=(InputFile("own/alpha.py", b""),),
    )
    assert result.stdout == b"/workspace/work/own/alpha.py /workspace/inputs/.packages/beta.py\n"


@pytest.mark.parametrize("start", Start)
async def test_a_module_that_is_warm_already_is_not_taken_for_the_one_installed(start: Start) -> None:
    engine = JailEngine(preload=("colorsys",))
    result = await run(
        engine,
        "import colorsys; print(colorsys.version)",
        given(**{"colorsys.py": b"version = 2"}),
        start=start,
    )
    assert result.stdout == b"2\n", result.stderr
    await engine.close()


async def test_a_run_that_is_given_no_packages_does_not_begin_without_them(engine: Engine) -> None:
    asked = RunRequest(language=Language.PYTHON, code="print(1)", packages=("alpha",))
    with pytest.raises(PackageUnavailable) as refused:
        await runs.run(engine, ALL, asked)
    assert refused.value.field == "packages"


# Before anything is made


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        pytest.param(RunRequest(language=Language.BASH, code="ls"), "packages", id="bash"),
        pytest.param(RunRequest(language=Language.JAVASCRIPT, code="1"), "packages", id="javascript"),
        pytest.param(RunRequest(command=("ls",)), "packages", id="command"),
        pytest.param(RunRequest(code="1", context="main"), "packages", id="context"),
        pytest.param(RunRequest(code="1", inputs=(InputFile(".packages/x.py", b""),)), "inputs", id="place"),
    ],
)
def test_packages_are_for_python_programs(request_: RunRequest, field: str) -> None:
    interpreters = {language: (str(language),) for language in Language}
    with pytest.raises(BadRequest) as refused:
        plan(replace(request_, packages=("numpy",)), ALL, interpreters, "jail")
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("wanted", "grant", "error"),
    [
        pytest.param("numpy", Grant(), PackageNotAllowed, id="policy"),
        pytest.param("x @ file:///x", ALL, BadRequest, id="no-requirement"),
    ],
)
def test_packages_that_may_not_be_asked_for_are_refused_before_there_is_a_jar(
    wanted: str, grant: Grant, error: type[BelljarError]
) -> None:
    asked = RunRequest(code="1", packages=(wanted,))
    with pytest.raises(error) as refused:
        plan(asked, grant, {Language.PYTHON: ("python3",)}, "jail")
    assert refused.value.field == "packages"


def test_packages_make_a_run_risky() -> None:
    assert risk_of(RunRequest(code="print(1)"), Grant()).tier is RiskTier.SAFE
    found = risk_of(RunRequest(code="print(1)", packages=("numpy>=2", "pandas")), Grant())
    assert found.tier is RiskTier.HIGH
    assert found.findings[0].reason == "installs packages: numpy>=2, pandas"
