from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.errors import PackageUnavailable, StoreUnavailable
from belljar.execution.stock import HALF_S, Installed, Stock
from belljar.models import InputFile, Package

KEY, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64


def installed(size: int = 10, name: str = "alpha") -> Installed:
    files = (InputFile(f"{name}.py", b"#" * size), InputFile(f"{name}/empty", b""))
    return Installed((Package(name, "1.0", "0" * 64),), files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packages"


@pytest.fixture
async def stock(folder: Path) -> Stock:
    stock = Stock(folder, max_mb=1)
    async with stock.making(KEY, 60):
        stock.put(KEY, installed())
    return stock


def test_what_was_put_is_got(stock: Stock) -> None:
    found = stock.get(KEY)
    assert found is not None
    assert (found.packages, found.files) == (installed().packages, installed().files)
    assert found.from_stock
    assert stock.get(OTHER) is None


def test_the_same_under_two_keys_is_kept_once(stock: Stock, folder: Path) -> None:
    stock.put(OTHER, installed())
    assert stock.get(OTHER) == stock.get(KEY)
    assert len(list(folder.glob("*.files"))) == 1


def test_only_the_service_can_read_it(stock: Stock, folder: Path) -> None:
    assert folder.stat().st_mode & 0o077 == 0


def _flip(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    content[-1] ^= 1
    archive.write_bytes(content)


def _rename_a_package(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes().replace(b'"1.0"', b'"2.0"'))


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(_flip, id="a-byte"),
        pytest.param(_rename_a_package, id="a-version"),
        pytest.param(lambda archive: archive.write_bytes(archive.read_bytes() + b"x"), id="longer"),
        pytest.param(lambda archive: archive.write_bytes(archive.read_bytes()[:-1]), id="shorter"),
        pytest.param(lambda archive: archive.write_bytes(b""), id="empty"),
        pytest.param(lambda archive: archive.write_bytes(b"[]\n"), id="another-head"),
        pytest.param(lambda archive: archive.write_bytes(b"\xff\xfe"), id="no-head"),
        pytest.param(lambda archive: archive.unlink(), id="gone"),
    ],
)
def test_an_archive_that_was_changed_is_none(
    stock: Stock, folder: Path, tamper: Callable[[Path], object]
) -> None:
    (archive,) = folder.glob("*.files")
    tamper(archive)
    assert stock.get(KEY) is None
    stock.put(KEY, installed())
    assert stock.get(KEY) is not None


@pytest.mark.parametrize("text", ["", "x", "../" * 20, "\xff", "0" * 64])
def test_a_pointer_that_was_changed_leads_nowhere(stock: Stock, folder: Path, text: str) -> None:
    (folder / KEY).write_text(text)
    assert stock.get(KEY) is None


def test_the_least_used_go_first_and_their_pointers_with_them(folder: Path, stock: Stock) -> None:
    stock.put(OTHER, installed(600_000, "beta"))
    for age, path in enumerate([folder / f"{(folder / key).read_text()}.files" for key in (OTHER, KEY)]):
        os.utime(path, (1000 - age, 1000 - age))
    assert stock.get(KEY) is not None  # used now, though it is the older one
    stock.put(THIRD, installed(600_000, "gamma"))
    assert stock.get(OTHER) is None
    assert stock.get(KEY) is not None
    assert stock.get(THIRD) is not None
    assert not (folder / OTHER).exists()


def test_what_was_just_made_stays_however_large_it_is(stock: Stock) -> None:
    stock.put(OTHER, installed(3 << 20))
    assert stock.get(OTHER) is not None
    assert stock.get(KEY) is None


def test_what_a_crash_left_half_is_swept(stock: Stock, folder: Path) -> None:
    old, new = folder / ".old", folder / ".new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, old.stat().st_mtime - HALF_S - 1))
    stock.put(OTHER, installed())
    assert not old.exists()
    assert new.exists()


def test_a_disk_that_takes_nothing_costs_nobody_their_packages(tmp_path: Path) -> None:
    (tmp_path / "packages").write_text("a file where the folder should be")
    stock = Stock(tmp_path / "packages", max_mb=1)
    stock.put(KEY, installed())
    assert stock.get(KEY) is None


async def test_one_makes_and_the_others_wait(folder: Path) -> None:
    made = []

    async def get() -> Installed | None:
        stock = Stock(folder, max_mb=1)  # as in another process: nothing is shared but the folder
        async with stock.making(KEY, 60):
            found = stock.get(KEY)
            if found is None:
                await asyncio.sleep(0.1)
                made.append(1)
                stock.put(KEY, installed())
            return found

    found = await asyncio.gather(*(get() for _ in range(5)))
    assert len(made) == 1
    assert found.count(None) == 1
    assert not [name for name in os.listdir(folder) if name.endswith(".lock")]


async def test_who_is_cancelled_while_making_lets_the_next_one_make(folder: Path) -> None:
    stock = Stock(folder, max_mb=1)
    begun = asyncio.Event()

    async def never() -> None:
        async with stock.making(KEY, 60):
            begun.set()
            await asyncio.Event().wait()

    making = asyncio.create_task(never())
    await begun.wait()
    making.cancel()
    async with asyncio.timeout(10), stock.making(KEY, 60):
        pass


async def test_who_waits_too_long_is_told_so(folder: Path) -> None:
    stock = Stock(folder, max_mb=1)
    async with stock.making(KEY, 60):
        with pytest.raises(PackageUnavailable, match="try again"):
            async with stock.making(KEY, 0):
                pass
        async with stock.making(OTHER, 0):
            pass


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="packages cannot be kept"):
        async with Stock(tmp_path / "file" / "packages", max_mb=1).making(KEY, 60):
            pass
