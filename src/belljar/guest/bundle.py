"""The source of our modules as one value that an interpreter we do not control can load.

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

BOOTSTRAP = """\
import importlib.abc, importlib.util, json, os, sys
class Loader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def __init__(self, sources): self.sources = sources
    def find_spec(self, name, path=None, target=None):
        if name in self.sources: return importlib.util.spec_from_loader(name, self)
    def is_package(self, name): return any(n.startswith(name + '.') for n in self.sources)
    def get_source(self, name): return self.sources[name]
def load(fd):
    with open(fd, 'rb') as file: bundle = json.load(file)
    sys.meta_path.insert(0, Loader(bundle['sources']))
    return bundle
"""
"""Defines load(fd), which makes the bundle's modules importable and returns the bundle."""


def pack(modules: tuple[str, ...], settings: dict[str, object]) -> bytes:
    sources = {}
    for module in modules:
        package, _, name = module.rpartition(".")
        sources[module] = files(package).joinpath(name + ".py").read_text()
        while package:
            sources.setdefault(package, "")
            package = package.rpartition(".")[0]
    return json.dumps({"sources": sources, "settings": settings}).encode()
