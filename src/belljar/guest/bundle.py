"""Our modules as one Python program that any interpreter can run, also one we know nothing of.

No image and no tree has to contain belljar: the text goes down the wire at start, so its version
always matches the host's.
"""

from __future__ import annotations

import json
from importlib.resources import files

GUEST = (
    "belljar.guest.protocol",
    "belljar.guest.tree",
    "belljar.guest.warm",
    "belljar.guest.program",
    "belljar.guest.agent",
)

_PROGRAM = """\
import importlib, importlib.abc, importlib.util, json, sys

class Bundled(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self)

    def is_package(self, name):
        return any(other.startswith(name + ".") for other in SOURCES)

    def get_source(self, name):
        return SOURCES[name]

SOURCES, SETTINGS = json.loads(%r)
sys.meta_path.insert(0, Bundled())
importlib.import_module(sys.argv[1]).main(SETTINGS)
"""


def pack(modules: tuple[str, ...], settings: dict[str, object]) -> bytes:
    """A program that calls `main(settings)` of the module named by its first argument."""
    sources = {}
    for module in modules:
        package, _, name = module.rpartition(".")
        sources[module] = files(package).joinpath(name + ".py").read_text()
        while package:
            sources.setdefault(package, "")
            package = package.rpartition(".")[0]
    return (_PROGRAM % json.dumps([sources, settings])).encode()


def command(python: str, fd: int, module: str, *options: str) -> list[str]:
    """Run a packed program that stands on a descriptor."""
    return [python, *options, "-c", f"exec(open({fd}, closefd=False).read())", module]
