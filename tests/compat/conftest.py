"""One engine for all compatibility tests of a module, and the two places in which tests are run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.compat.places import NOBODY, PATH, PYTHON, Places

from belljar.engines.jail.engine import JailEngine
from belljar.engines.jail.trees import Tree


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[JailEngine]:
    engine = JailEngine()
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def _folder() -> Iterator[Path]:
    """For nobody, who may not enter the folders that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="compat-"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places(_folder: Path) -> AsyncIterator[Places]:
    # As if Debian's Python ran us: with another, the fork start would be compared to a different version.
    debian = Tree(rootfs=None, python_prefix=None, python=PYTHON, env={"PATH": PATH})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("belljar.engines.jail.engine.host_tree", lambda: debian)
        engine = JailEngine()
    yield Places(engine, _folder)
    await engine.close()
